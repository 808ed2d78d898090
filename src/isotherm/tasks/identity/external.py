"""Finds what is external to a program in a function's code and among the values that it gets at."""

from __future__ import annotations

import configparser
import ctypes
import datetime
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from isotherm.tasks.identity import origin
from isotherm.tasks.identity.external_names import BY_NAME, CLOCK, COMPILED, EXTERNAL, FILE, HARMLESS, MODULES
from isotherm.tasks.identity.reads import Read, attributes_in
from isotherm.tasks.identity.source import codes_within

_METHODS = {"read_text": FILE, "read_bytes": FILE, "open": FILE}
# Methods with names that other classes have too: they count where training gets at an object of the class.
_PATH = "exists stat lstat iterdir glob rglob walk is_file is_dir is_symlink is_mount resolve readlink samefile owner"
_METHODS_OF: dict[type, frozenset[str]] = {
    pathlib.PurePath: frozenset(_PATH.split()),
    configparser.RawConfigParser: frozenset(("read", "read_file")),
}
_OF_CLASSES: dict[tuple[type, str], str] = {
    **{(datetime.datetime, name): CLOCK for name in ("now", "utcnow", "today")},
    (datetime.date, "today"): CLOCK,
    (pathlib.Path, "cwd"): "the working directory",
    (pathlib.Path, "home"): "an environment variable",
}
FOREIGN: tuple[type, ...] = (ctypes.CDLL, ctypes._CFuncPtr)  # type: ignore[attr-defined]
_FOREIGN_MODULES = {"_cffi_backend", "cffi.api"}
_PLAIN = (str, bytes, int, float, type(None))
Found = tuple[int | None, str, type | None]  # the line, what it is, and the class that must be met for it to count


class ExternalNames:
    """Names through which code depends on something external, and what they stand for as far as it is loaded."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[str, str]] = {}
        for name, thing in _loaded():
            self._by_id.setdefault(id(thing), BY_NAME[name])
        for name, thing in _functions(MODULES):
            self._by_id.setdefault(id(thing), (MODULES[name.rpartition(".")[0]], name))

    def found_in(self, function: types.FunctionType, reads: list[Read]) -> Iterator[Found]:
        """Yield what a function's own code depends on."""
        for read in reads:
            found = self._of_read(read)
            if found is not None:
                yield read.line, found, None
        resolved = {(read.line, read.path.rpartition(".")[2]) for read in reads}
        taken = [(name, line) for name, line in attributes_in(function) if (line, name) not in resolved]
        for name, line in taken:
            yield from _of_method(name, line)
        yield from self._of_modules(function, reads, {name for name, _ in taken})

    def name_of(self, value: Any) -> str | None:
        """Return what a value depends on if it is itself external, such as `open` in a table."""
        if id(value) in self._by_id:
            what, name = self._by_id[id(value)]
            return f"{what} through {name.removeprefix('builtins.')}"
        if issubclass(type(value), types.MethodType | types.BuiltinMethodType):  # a dead proxy has a type and no class
            return _of_bound(value)
        if issubclass(type(value), FOREIGN) or type(value).__module__ in _FOREIGN_MODULES:
            return f"{COMPILED} through a {origin.name_of(type(value))} object"
        return None

    def covers(self, number: int | str) -> bool:
        """Tell whether the object with this `id` is in the tables."""
        return number in self._by_id

    def _of_read(self, read: Read) -> str | None:
        name = read.library or ""
        found = BY_NAME.get(name) or self._by_id.get(id(read.value)) or _of_module(name, read.value)
        if found is not None:
            return f"{found[0]} through {read.path if read.library is None else found[1].removeprefix('builtins.')}"
        what = _of_class(read.value, read.after)
        return f"{what} through {read.library or read.path}.{read.after}" if what else self.name_of(read.value)

    def _of_modules(self, function: types.FunctionType, reads: list[Read], attributes: set[str]) -> Iterator[Found]:
        """Yield what is taken of a library's module by a text, as in getattr(os, "environ"), or by another name."""
        modules = [(module, read.line) for read in reads if (module := _whole_module(read)) is not None]
        texts = {item for code in codes_within(function.__code__) for item in code.co_consts if isinstance(item, str)}
        texts |= {read.value for read in reads if isinstance(read.value, str)}
        if any(read.value is getattr for read in reads):  # which has the module; the attributes are of something else
            attributes = set()
        for module, line in modules:
            for name in sorted(texts | attributes):
                found = self._in_module(module, name)
                if found is not None:
                    yield line, f"{found[0]} through {found[1].removeprefix('builtins.')}", None

    def _in_module(self, module: types.ModuleType, name: str) -> tuple[str, str] | None:
        full = f"{module.__name__}.{name}"
        if name not in vars(module):  # it may not be loaded
            return BY_NAME.get(full)
        value = vars(module)[name]
        return BY_NAME.get(full) or self._by_id.get(id(value)) or _of_module(full, value)


def class_met(value: Any) -> type | None:
    """Return the class with methods that read something external, if a value is one, a child or an object of it."""
    kind = value if issubclass(type(value), type) else type(value)
    return next((known for known in _METHODS_OF if known in kind.__mro__), None)


def class_named(name: str) -> type | None:
    """Return the same for a name in a library that is not loaded."""
    home = name.rpartition(".")[0]
    return next((known for known in _METHODS_OF if home and known.__module__.partition(".")[0] == home), None)


def _of_method(name: str, line: int | None) -> Iterator[Found]:
    if name in _METHODS:
        yield line, f"{_METHODS[name]} through .{name}()", None
    for kind, names in _METHODS_OF.items():
        if name in names:
            yield line, f"{FILE} through .{name}()", kind


def _of_bound(method: Any) -> str | None:
    owner, name = method.__self__, getattr(method, "__name__", "")  # that of an object that is called has none
    what = _of_class(owner, name)
    kind = None if issubclass(type(owner), type) else class_met(owner)
    if kind is not None and (name in _METHODS_OF[kind] or name in _METHODS):
        what = FILE
    return what and f"{what} through {getattr(method, '__qualname__', name)}"


def _of_class(owner: Any, name: str | None) -> str | None:
    return next((what for (kind, known), what in _OF_CLASSES.items() if known == name and owner is kind), None)


def _of_module(name: str, value: Any) -> tuple[str, str] | None:
    what = MODULES.get(name.rpartition(".")[0])
    is_function = not isinstance(value, type | types.ModuleType) and name not in HARMLESS
    return (what, name) if what is not None and is_function else None


def _whole_module(read: Read) -> types.ModuleType | None:
    """Return the library's module that a read hands on as a whole, if it does."""
    if (read.library or "").endswith(".__dict__"):
        return sys.modules.get((read.library or "").removesuffix(".__dict__"))
    is_one = isinstance(read.value, types.ModuleType) and origin.is_library_module(read.value)
    return read.value if is_one and not origin.is_isotherms(read.value) else None


def _loaded() -> Iterator[tuple[str, Any]]:
    """Yield what the names stand for, as far as their modules are loaded; a text or number is no one's own."""
    for modules in EXTERNAL.values():
        for module in (module for module in modules if module in sys.modules):
            space = getattr(sys.modules[module], "__dict__", {})
            for name in modules[module].split():
                if not isinstance(space.get(name), _PLAIN):
                    yield f"{module}.{name}", space[name]


def _functions(modules: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the public functions of the modules that are loaded."""
    for module in modules:
        for name, thing in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if not name.startswith("_") and callable(thing) and _of_module(f"{module}.{name}", thing):
                yield f"{module}.{name}", thing
