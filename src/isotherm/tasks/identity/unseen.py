"""What decides a run's numbers and cannot be read off: files, the environment, the clock, compiled code.

Only what runs during training is warned about. Whatever a builder reads ends in the module it returns, and that is
hashed whole: parameters, buffers and attributes.
"""

from __future__ import annotations

import collections
import datetime
import pathlib
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isotherm.errors import UnseenWarning
from isotherm.tasks.identity.reads import Read, attributes_in

_FILE = "the content of a file"
_EXTERNAL = {
    _FILE: (
        "builtins.open io.open os.open os.listdir os.scandir os.stat os.path.exists os.path.isfile os.path.getsize "
        "os.walk glob.glob glob.iglob "
        "numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile numpy.memmap torch.load torch.from_file "
        "torch.jit.load torch.hub.load torch.hub.load_state_dict_from_url json.load tomllib.load "
        "gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile sqlite3.connect linecache.getlines fileinput.input "
        "PIL.Image.open h5py.File yaml.load yaml.safe_load joblib.load pandas.read_csv pandas.read_parquet "
        "safetensors.torch.load_file scipy.io.loadmat imageio.imread cv2.imread torchvision.io.read_image"
    ),
    "an environment variable": "os.environ os.environb os.getenv os.getenvb os.path.expandvars os.path.expanduser",
    "the command line": "sys.argv sys.stdin builtins.input",
    "the working directory": "os.getcwd os.getcwdb",
    "the clock": (
        "time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns "
        "time.process_time time.localtime time.gmtime time.ctime"
    ),
    "code put together at run time": (
        "builtins.exec builtins.eval builtins.compile builtins.__import__ importlib.import_module importlib.__import__ "
        "runpy.run_path runpy.run_module sys.modules"
    ),
    "the answer of another program": (
        "subprocess.run subprocess.Popen subprocess.check_output subprocess.call subprocess.getoutput os.system "
        "os.popen urllib.request.urlopen requests.get requests.post socket.socket"
    ),
}
_Step = tuple[int | str, bool, str]
_METHODS = {"read_text": _FILE, "read_bytes": _FILE, "open": _FILE}
_OF_CLASSES: dict[tuple[type, str], str] = {
    **{(datetime.datetime, name): "the clock" for name in ("now", "utcnow", "today")},
    (datetime.date, "today"): "the clock",
    (pathlib.Path, "cwd"): "the working directory",
    (pathlib.Path, "home"): "an environment variable",
}


class Reach:
    """Records what leads to what, and what of it cannot be seen.

    A step may say how it leads on: from an object to its class ("instance"), from a class to its parent ("parent"), to
    its constructor ("constructs"), or to the constructor of a module, which runs before training ("builds").
    """

    def __init__(self) -> None:
        self._steps: dict[int | str, list[tuple[int, str]]] = {}
        self._unseen: dict[int | str, list[tuple[int | None, str]]] = {}
        self._functions: dict[int | str, types.FunctionType] = {}
        self._external = _ExternalNames()
        self._kept: list[Any] = []  # an id stays taken while its object lives

    def leads(self, source: int | str, target: Any, how: str) -> None:
        """Record a step."""
        self._steps.setdefault(source, []).append((id(target), how))
        self._kept.append(target)

    def examine(self, function: types.FunctionType, reads: list[Read]) -> None:
        """Record what a function depends on beyond its code and what the code refers to."""
        self._functions[id(function)] = function
        lines: dict[str, int | None] = {}
        for line, what in self._external.found_in(function, reads):
            lines.setdefault(what, line)
        for what, line in lines.items():
            self.cannot_see(function, what, line)

    def cannot_see(self, thing: Any, what: str, line: int | None = None) -> None:
        """Record that a thing depends on something that is not hashed."""
        self._unseen.setdefault(id(thing), []).append((line, what))
        self._kept.append(thing)

    def unseen_from(self, roots: Mapping[str, str]) -> list[str]:
        """Return what cannot be seen of all that the roots lead to; each root has a name for people."""
        pending = collections.deque[_Step]((root, True, name) for root, name in roots.items())
        done, found = set(), []
        while pending:
            node, is_constructed, owner = pending.popleft()
            function = self._functions.get(node)
            owner = owner if function is None else where(function, None)
            for line, what in self._unseen.get(node, ()):
                found.append(f"{owner if function is None else where(function, line)} depends on {what}")
            for target, passes in self._passable(node, is_constructed):
                if (target, passes) not in done:
                    done.add((target, passes))
                    pending.append((target, passes, owner))
        return list(dict.fromkeys(found))

    def _passable(self, node: int | str, is_constructed: bool) -> Iterator[tuple[int, bool]]:
        """Yield where training gets to from a node, and whether it constructs objects of what is there."""
        for target, how in self._steps.get(node, ()):
            if how != "builds" and (how != "constructs" or is_constructed):
                yield target, is_constructed if how == "parent" else how != "instance"


def warn_of(unseen: Iterable[str]) -> None:
    """Warn of each thing that is not part of the task's key."""
    for what in unseen:
        remedy = "set version='...' on the task, and change it whenever that changes"
        warnings.warn(f"{what}, which is no part of the task's key; {remedy}", UnseenWarning, stacklevel=3)


def where(function: types.FunctionType, line: int | None) -> str:
    """Return a function's name and place for people."""
    file = function.__code__.co_filename
    place = f"{pathlib.Path(file).name}, " if not file.startswith("<") else ""
    return f"{function.__qualname__} ({place}line {line or function.__code__.co_firstlineno})"


class _ExternalNames:
    """Names through which code depends on something external, and what they stand for as far as it is loaded."""

    def __init__(self) -> None:
        self._by_name = {name: what for what, names in _EXTERNAL.items() for name in names.split()}
        self._by_id = {id(thing): self._by_name[name] for name, thing in _loaded(self._by_name)}

    def found_in(self, function: types.FunctionType, reads: list[Read]) -> Iterator[tuple[int | None, str]]:
        for read in reads:
            what = self._by_id.get(id(read.value)) or self._by_name.get(read.library or "") or _of_class(read)
            if what is not None:
                yield read.line, f"{what} through {read.library or read.path}"
        resolved = {(read.line, read.path.rpartition(".")[2]) for read in reads}
        for name, line in attributes_in(function):
            if name in _METHODS and (line, name) not in resolved:
                yield line, f"{_METHODS[name]} through .{name}()"


def _loaded(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield what the names stand for, as far as their modules are loaded."""
    for name in names:
        module, _, attribute = name.rpartition(".")
        if module in sys.modules and hasattr(sys.modules[module], attribute):
            yield name, getattr(sys.modules[module], attribute)


def _of_class(read: Read) -> str | None:
    if not isinstance(read.value, type) or read.after is None:
        return None
    return next((what for (kind, name), what in _OF_CLASSES.items() if name == read.after and read.value is kind), None)
