"""Checks that passed, remembered on disk, so that later processes need not repeat them.

Each is a small JSON file, named by the hash of all that its outcome depends on: what was checked, the GPU, the versions
of PyTorch and Triton, and the source of this package. A check that failed is not saved: it is made again, and says
again what is wrong. The folder is $ISOTHERM_CHECKS, else `isotherm/checks` in the user's cache; `ISOTHERM_CHECKS=0`
saves nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from isotherm.core.json import json_line
from isotherm.kernels import availability

logger = logging.getLogger("isotherm")

_PACKAGE = Path(__file__).parent.parent
# The rooms whose code the outcome of a check may depend on.
_ROOMS = ("core", "data", "engine", "kernels", "models", "tasks")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedChecks:
    """The checks that passed in one setting.

    Args:
        folder: where they are; None for nowhere.
        setting: GPU, versions and source.
    """

    folder: Path | None
    setting: dict[str, str] = field(default_factory=dict)

    @classmethod
    def on(cls, device: torch.device) -> SavedChecks:
        """Return what is known about a GPU; a CPU is checked anew, which is quick."""
        if device.type != "cuda":
            return cls(folder=None)
        return cls(folder=default_folder(), setting=_setting(torch.cuda.get_device_name(device)))

    def has_passed(self, *what: str | int) -> bool:
        """Tell whether a check passed before; a file that cannot be read is ignored, with a warning."""
        if self.folder is None:
            return False
        path = self._path(self.folder, what)
        try:
            content = json.loads(path.read_text())
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            logger.warning("the saved check %s cannot be read and is made again: %s", path, error)
            return False
        if content == self._content(what):
            return True
        logger.warning("the saved check %s is not what its name says and is made again", path)
        return False

    def add(self, *what: str | int) -> None:
        """Note that a check passed; several processes may note the same one at once."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(self._path(self.folder, what), json_line(self._content(what)))
        except OSError as error:
            logger.warning("checks cannot be saved in %s and will be repeated: %s", self.folder, error)

    def _content(self, what: tuple[str | int, ...]) -> dict[str, Any]:
        return {"what": list(what), "setting": dict(sorted(self.setting.items()))}

    def _path(self, folder: Path, what: tuple[str | int, ...]) -> Path:
        text = json_line(self._content(what))
        return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def default_folder() -> Path | None:
    """Return where checks are saved; None for nowhere."""
    given = os.environ.get("ISOTHERM_CHECKS")
    if given is not None:
        return None if given in ("", "0") else Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "isotherm" / "checks"


def source_hash(package: Path, rooms: tuple[str, ...] = _ROOMS) -> str:
    """Return a hash of the source files in some folders of a package."""
    found = hashlib.sha256()
    for path in sorted(path for room in rooms for path in (package / room).rglob("*.py")):
        found.update(f"{path.relative_to(package).as_posix()}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


@functools.cache
def _setting(gpu: str) -> dict[str, str]:
    return {"gpu": gpu, **availability.versions(), "source": source_hash(_PACKAGE)}


def _write(path: Path, text: str) -> None:
    """Write a file that other processes see whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
