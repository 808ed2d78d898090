"""A user's files, written, imported and hashed: as they are, and with one thing changed."""

import contextlib
import importlib
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

from isotherm.errors import UnseenWarning
from isotherm.tasks import identity
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.metrics import accuracy

HEAD = "import functools\nimport torch\nfrom torch import nn\n"
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        {forward}

def build():
    return Net()
"""
# In a text, <<a||b>> is a in one variant and b in the other; "# file: NAME" begins another file.
_CHOICE = re.compile(r"<<(.*?)\|\|(.*?)>>", re.DOTALL)
_FILE = re.compile(r"^# file: (\S+)\n", re.MULTILINE)


def files_of(text: str, forward: str = "return self.layer(x)") -> dict[str, str]:
    """Return the files of a case by name; net.py gets the usual imports and, unless it has one, a model."""
    body, *more = _FILE.split(forward)
    first, *rest = _FILE.split(text)
    main = HEAD + first + ("" if "def build" in first or "\nbuild =" in first else NET.format(forward=body))
    named = [*rest, *more]
    return {"net.py": main, **dict(zip(named[::2], named[1::2], strict=True))}


def variant(files: dict[str, str], which: int) -> dict[str, str]:
    """Return the files with the first or the second of every choice."""
    return {name: _CHOICE.sub(lambda match: match[which + 1], text) for name, text in files.items()}


def write(files: dict[str, str], folder: Path) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@contextlib.contextmanager
def imported(folder: Path, name: str = "net"):
    """Import a module of a folder, and forget it and its neighbours afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for module in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]


def parts_of(module: ModuleType, **changed: object) -> dict[str, str]:
    """Return the parts of the identity of what a user's module defines."""
    settings = {"transform": module.transform} if hasattr(module, "transform") else {}
    given = {
        "loss": getattr(module, "loss", cross_entropy),
        "metric": getattr(module, "metric", accuracy),
        "settings": settings,
        **changed,
    }
    return identity.model_parts(module.build, **given)


def parts_in(folder: Path, files: dict[str, str], name: str = "net") -> dict[str, str]:
    """Write, import and hash; what cannot be seen is not the question here."""
    with imported(write(files, folder), name) as module, warnings.catch_warnings():
        warnings.simplefilter("ignore", UnseenWarning)
        return parts_of(module)
