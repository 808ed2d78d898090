"""What a function's code refers to: globals, variables of enclosing functions, and imports of its own.

Attributes of modules are resolved as far as the code spells them out, so that of `layers.act(x)` only `act` counts and
not all of `layers`. A module that is handed on as a whole counts as a whole.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from isotherm.tasks.identity import origin
from isotherm.tasks.identity.source import codes_within

MISSING = object()  # the name has no value when it is looked up
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_LOCALS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_UNSTABLE = {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__builtins__", "__path__"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """One use of a name.

    Args:
        path: the name as the code spells it, with the attributes of modules.
        value: what it stands for now.
        library: its name in a library's module, if it was reached through one.
        after: the attribute that is taken of the value, if one is.
        line: where in the file.
    """

    path: str
    value: Any
    library: str | None = None
    after: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bound:
    """What a name is bound to, and its name in a library if it was imported from one."""

    value: Any
    library: str | None = None


def reads_of(function: types.FunctionType) -> list[Read]:
    """Return what a function and the functions inside it refer to."""
    codes = list(codes_within(function.__code__))
    listings = [[i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"] for code in codes]
    closure = closure_of(function)
    local = {name: [_Bound(value=value)] for name, value in closure.items() if isinstance(value, types.ModuleType)}
    found = [Read(path=name, value=value) for name, value in closure.items() if name not in local]
    for listing in listings:
        found += _imports(listing, function.__globals__, local)
    for listing in listings:
        found += _loads(listing, function.__globals__, local)
    return found


def attributes_in(function: types.FunctionType) -> Iterator[tuple[str, int | None]]:
    """Yield every attribute that the code takes of anything, with its line."""
    for code in codes_within(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in _ATTRIBUTES:
                yield instruction.argval, _line(instruction)


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses, as far as they have a value yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = MISSING
    return found


def contents(module: types.ModuleType | dict[str, Any]) -> dict[str, Any]:
    """Return all that a module defines."""
    space = module if isinstance(module, dict) else vars(module)
    return {name: value for name, value in space.items() if not (name.startswith("__") and name.endswith("__"))}


def _loads(listing: list[dis.Instruction], space: dict[str, Any], local: dict[str, list[_Bound]]) -> Iterator[Read]:
    for index, instruction in enumerate(listing):
        for name in _names_loaded(instruction):
            bound = local.get(name, []) if instruction.opname != "LOAD_GLOBAL" else []
            bound = [*bound, _global(name, space)] if instruction.opname.startswith(_GLOBALS) else bound
            for one in bound:
                read = _followed(listing, index, name, one)
                yield read
                if read.value is builtins.globals:
                    yield Read(path="globals()", value=contents(space))
                if read.after == "__globals__" and isinstance(read.value, types.FunctionType):
                    yield Read(path=f"{read.path}.__globals__", value=contents(read.value.__globals__))


def _names_loaded(instruction: dis.Instruction) -> tuple[str, ...]:
    if not instruction.opname.startswith((*_GLOBALS, *_LOCALS)):
        return ()
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return tuple(name for name in names if name not in _UNSTABLE)


def _global(name: str, space: dict[str, Any]) -> _Bound:
    return _Bound(value=space[name] if name in space else getattr(builtins, name, MISSING))


def _followed(listing: list[dis.Instruction], index: int, path: str, bound: _Bound) -> Read:
    """Return the read with the attributes of modules that follow it."""
    value, library, line = bound.value, bound.library, _line(listing[index])
    rest = iter([i for i in listing[index + 1 : index + 20] if i.opname not in ("CACHE", "PUSH_NULL")])
    following = next(rest, None)
    while isinstance(value, types.ModuleType) and following is not None and following.opname in _ATTRIBUTES:
        name = following.argval
        library = f"{value.__name__}.{name}" if origin.is_library_module(value) else None
        path, value, following = f"{path}.{name}", _attribute(value, name), next(rest, None)
    after = following.argval if following is not None and following.opname in _ATTRIBUTES else None
    return Read(path=path, value=value, library=library, after=after, line=line)


def _attribute(module: types.ModuleType, name: str) -> Any:
    return contents(module) if name == "__dict__" else getattr(module, name, MISSING)


def _imports(listing: list[dis.Instruction], space: dict[str, Any], local: dict[str, list[_Bound]]) -> Iterator[Read]:
    """Add to `local` what import statements inside the code bind; yield what need not be loaded to be used.

    Functions inside may use one name for two things, and what a class imports is reached as its attribute.
    """
    for index, instruction in enumerate(listing):
        if instruction.opname != "IMPORT_NAME":
            continue
        level, names = listing[index - 2].argval, listing[index - 1].argval or ()
        full = _absolute(instruction.argval, level, space)
        is_renamed = listing[index + 1].opname == "IMPORT_FROM"
        bound = [_imported(full, name) for name in names] or [_Bound(value=_bound_module(full, is_renamed))]
        for one, (operation, name) in zip(bound, _stores(listing[index + 1 :]), strict=False):
            local.setdefault(name, []).append(one)
            if operation == "STORE_NAME" or not isinstance(one.value, types.ModuleType):
                yield Read(path=name, value=one.value, library=one.library, line=_line(instruction))


def _bound_module(full: str, is_renamed: bool) -> Any:
    """Return what `import a.b` binds, which is a, or `import a.b as c`, which is b."""
    module = _module(full)
    return module if is_renamed else _module(full.partition(".")[0])


def _stores(rest: list[dis.Instruction]) -> Iterator[tuple[str, str]]:
    """Yield the operations that store the names imported next, and their variables."""
    return ((i.opname, i.argval) for i in rest if i.opname.startswith("STORE_"))


def _absolute(name: str, level: int, space: dict[str, Any]) -> str:
    if not level:
        return name
    package = space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


def _module(name: str) -> Any:
    """Return a module by its name. A user's is imported if need be, as `forward` would; a library's is only named."""
    if name in sys.modules:
        return sys.modules[name]
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not origin.is_library_file(spec.origin):
            return importlib.import_module(name)
    except Exception:  # whatever a user's module raises: an optional dependency is missing, perhaps
        return MISSING
    named = types.ModuleType(name)
    named.__file__ = spec.origin
    return named


def _imported(module: str, name: str) -> _Bound:
    """Return what `from module import name` gives."""
    home = _module(module)
    if isinstance(home, types.ModuleType) and origin.is_library_module(home) and not origin.is_isotherms(home):
        return _Bound(value=getattr(home, name, MISSING), library=f"{module}.{name}")
    value = getattr(home, name, MISSING)
    return _Bound(value=_module(f"{module}.{name}") if value is MISSING else value)


def _line(instruction: dis.Instruction) -> int | None:
    return instruction.positions.lineno if instruction.positions is not None else None
