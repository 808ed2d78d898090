"""How functions and classes are described: by their code and by all that the code refers to."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from isotherm.tasks.identity import origin
from isotherm.tasks.identity.reads import MISSING, Read, attributes_in, closure_of, contents, reads_of
from isotherm.tasks.identity.source import byte_code
from isotherm.tasks.identity.walk import Walk

_CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "reset_parameters"}
# What Python, abc, enum and torch.autograd keep on a class for themselves; some of it counts classes or methods.
_BOOKKEEPING = {"_abc_impl", "_backward_cls", "_autograd_function_id", "_compiled_autograd_backward_state"}
_COMPARISONS = {"__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}
_GENERATED = {"__init__", "__repr__", "__setattr__", "__delattr__", "__replace__"} | _COMPARISONS
_LIBRARY_STATE = {"cache_token"}  # of functools.singledispatch: counts the classes registered so far
# What Python, copyreg, typing and dataclasses set on a class.
_BY_PYTHON = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__"),
    *("__classcell__", "__slotnames__", "__abstractmethods__", "__parameters__", "__orig_bases__", "__type_params__"),
    *("__dataclass_fields__", "__dataclass_params__", "__signature__", "__text_signature__", "__protocol_attrs__"),
    *("__non_callable_proto_members__", "__callable_proto_members_only__", "__class_vars__"),
    *("__private_attributes__", "__required_keys__", "__optional_keys__", "__readonly_keys__", "__mutable_keys__"),
}
_OF_A_WRAPPER = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "cache_parameters", "func", "lock", "attrname"}
# option -> what it is where nobody says otherwise
_OF_A_FIELD: dict[str, tuple[Any, ...]] = {
    **{"init": (True, None), "compare": (True,), "hash": (None,), "kw_only": (False, None)},
    **{"metadata": ({}, []), "validate_default": (None,)},
}
_OF_A_DATACLASS: dict[str, tuple[Any, ...]] = {
    **{"init": (True,), "eq": (True,), "order": (False,), "unsafe_hash": (False,), "frozen": (False,)}
}
_INDIRECT = ("__subclasses__", "__globals__")
_METHOD_TYPES = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)
_COMPILED_SUFFIXES = (".so", ".pyd", ".dylib")
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_NAMESPACES = {"aten", "prim", "prims", "quantized", "isotherm", "torchvision"}


def function(walk: Walk, value: types.FunctionType) -> object:
    """Describe a function by its text, its defaults and all that it refers to; a library's by name and closure."""
    held = dict(vars(value))
    if "_torchdynamo_orig_callable" in held:  # torch.compile computes the same, faster
        return ["compiled", walk.describe(held["_torchdynamo_orig_callable"])]
    if origin.is_library_function(value):
        closure = {n: walk.describe(item) for n, item in closure_of(value).items() if n not in _LIBRARY_STATE}
        return ["library", origin.name_of(value), value.__name__, closure, walk.describe(held.get("__wrapped__"))]
    reads = reads_of(value)
    walk.reach.examine(value, reads)
    return [
        "function",
        walk.sources.text(value),
        _reads(walk, reads),
        walk.describe(list(value.__defaults__ or ())),
        walk.describe(sorted((value.__kwdefaults__ or {}).items())),
        {name: walk.describe(item) for name, item in sorted(held.items())},
        *_indirect(walk, value, reads),
    ]


def method(walk: Walk, value: types.MethodType) -> object:
    """Describe a bound method by its function and its object."""
    return ["method", walk.describe(value.__func__), walk.describe(value.__self__)]


def member(walk: Walk, value: Any) -> object:
    """Describe a member of a class: a method of any kind, or a property."""
    own = [walk.describe(type(value), "instance"), *added(walk, value)] if origin.is_users(value) else []
    if isinstance(value, property):
        return ["property", *(walk.describe(part) for part in (value.fget, value.fset, value.fdel)), *own]
    return [type(value).__name__, walk.describe(_function(value)), *own]


def cached(walk: Walk, value: Any) -> object:
    """Describe a function behind `lru_cache`; what the cache holds follows from it."""
    return ["cached", walk.describe(value.__wrapped__), repr(value.cache_parameters()), *added(walk, value)]


def added(walk: Walk, value: Any) -> list[object]:
    """Describe what was set on a wrapper of a function besides what it was made of; nothing in most cases."""
    held = {n: item for n, item in getattr(value, "__dict__", {}).items() if n not in _OF_A_WRAPPER}
    return [{name: walk.describe(item) for name, item in sorted(held.items())}] if held else []


def added_to_member(walk: Walk, value: enum.Enum) -> list[object]:
    """Describe what was set on a member of an enumeration besides its value."""
    held = {n: item for n, item in vars(value).items() if not (n.startswith("_") and n.endswith("_"))}
    if not held or not origin.is_users(value):
        return []
    return [{name: walk.describe(item) for name, item in sorted(held.items())}]


def module(walk: Walk, value: types.ModuleType) -> object:
    """Describe a library's module by its name, a user's by all that it defines."""
    if origin.is_isotherms(value):
        return ["library", "isotherm", value.__name__.rpartition(".")[2]]
    if origin.is_library_module(value):
        return ["library", value.__name__]
    return ["module", {name: walk.describe(item) for name, item in sorted(contents(value).items())}]


def builtin(walk: Walk, value: Any) -> object:
    """Describe a compiled function by its name, and a method also by its object."""
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType) and type(owner).__name__ != "PyCapsule":
        return ["builtin method", value.__name__, walk.describe(owner)]
    note_compiled(walk, value)
    if isinstance(value, np.ufunc) and value.__name__.endswith(" (vectorized)"):  # by np.frompyfunc
        walk.reach.cannot_see(value, f"the code inside the NumPy function {value.__name__}")
    return ["builtin", origin.name_of(value)]


def operator(walk: Walk, value: Any) -> object:
    """Describe an operator of PyTorch by its name."""
    name = str(value)
    if name.partition(".")[0] not in _NAMESPACES:
        walk.reach.cannot_see(value, f"compiled code through the operator {name}")
    return ["operator", name]


def foreign(walk: Walk, value: Any) -> object:
    """Describe a library loaded by `ctypes`, or a function of it, by its name; the rest of its state is addresses."""
    return ["foreign", walk.describe(type(value), "instance"), str(getattr(value, "__name__", ""))]


def class_(walk: Walk, value: type) -> object:
    """Describe a class by its parents and all that it defines; a library's by name and what was set on it since."""
    parents = [walk.describe(base, "parent") for base in value.__bases__ if base is not object]
    if origin.is_library_class(value):
        patched = {n: m for n, m in vars(value).items() if inspect.isfunction(m) and _is_a_patch(m)}
        return ["library", origin.name_of(value), parents, {n: walk.describe(m) for n, m in sorted(patched.items())}]
    note_compiled(walk, value)
    return [
        "class",
        value.__qualname__,
        parents,
        walk.describe(type(value)),
        {name: walk.describe(item, _step_to(value, name)) for name, item in sorted(_members(value).items())},
        _fields(walk, value),
        *_about(walk, value),
    ]


def patches(walk: Walk, homes: Iterable[Any] = (torch, nn.functional, nn.init, torch.Tensor)) -> list[object]:
    """Describe what a user has put in place of functions and methods of PyTorch."""
    found = [(n, m) for home in homes for n, m in vars(home).items() if inspect.isfunction(m)]
    return [
        [name, walk.describe(member)] for name, member in sorted(found, key=lambda item: item[0]) if _is_a_patch(member)
    ]


def generic(walk: Walk, value: Any) -> object:
    """Describe a type with arguments, such as list[int]."""
    about = [[walk.describe(item) for item in value.__metadata__]] if hasattr(value, "__metadata__") else []
    return ["generic", walk.describe(value.__origin__), [walk.describe(a) for a in value.__args__], *about]


def union(walk: Walk, value: types.UnionType) -> object:
    """Describe int | float and the like."""
    return ["union", [walk.describe(kind) for kind in value.__args__]]


def code_object(walk: Walk, value: types.CodeType) -> object:
    """Describe compiled code by its instructions."""
    return ["code", byte_code(value)]


def type_variable(walk: Walk, value: Any) -> object:
    """Describe a type variable by its name."""
    return ["type variable", value.__name__]


def note_compiled(walk: Walk, value: Any) -> None:
    """Record compiled code that is not a library's."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    file = str(getattr(home, "__file__", None) or "")
    if file.endswith(_COMPILED_SUFFIXES) and not origin.is_library_file(file):
        walk.reach.cannot_see(value, f"compiled code through {origin.name_of(value)}")


def _reads(walk: Walk, reads: list[Read]) -> dict[str, list[object]]:
    """Describe all that the names in a function stand for; functions inside it may use one name for two things."""
    found: dict[str, list[object]] = {}
    for read in sorted(reads, key=lambda read: read.path):
        described = _read(walk, read)
        if described not in found.setdefault(read.path, []):
            found[read.path].append(described)
    return found


def _read(walk: Walk, read: Read) -> object:
    """Describe what a name stands for; constants of a library, such as math.pi, by their name."""
    if read.after == "__subclasses__" and isinstance(read.value, type):
        return [walk.describe(read.value), walk.unordered(_descendants(read.value))]
    if read.library is None or isinstance(read.value, (types.ModuleType, *OPERATORS)):
        return walk.describe(read.value)
    if read.value is not MISSING and origin.is_users(read.value):  # set there by the user
        return walk.describe(read.value)
    top, _, name = read.library.partition(".")
    if top == "isotherm":  # it may move between modules
        return walk.describe(read.value) if callable(read.value) else ["library", f"isotherm.{name.rpartition('.')[2]}"]
    return ["library", read.library]


def _members(kind: type) -> dict[str, Any]:
    """Return what a class defines, without what Python adds to every class."""
    hidden = (types.MemberDescriptorType, types.GetSetDescriptorType)
    found = {n: m for n, m in vars(kind).items() if n not in _BOOKKEEPING and not isinstance(m, hidden)}
    if issubclass(kind, enum.Enum):
        found = {n: m for n, m in found.items() if n not in kind.__members__ and not _is_librarys(m)}
        found = {n: m for n, m in found.items() if isinstance(m, _METHOD_TYPES) or not n.startswith("_")}
    return {n: m for n, m in found.items() if _counts(kind, n, m)}


def _function(value: Any) -> Any:
    """Return the function behind a member of a class."""
    names = ("__func__", "fget", "func")
    return next((getattr(value, name) for name in names if hasattr(value, name)), value)


def _is_librarys(value: Any) -> bool:
    function = _function(value)
    return inspect.isfunction(function) and origin.is_library_function(function)


def _counts(kind: type, name: str, value: Any) -> bool:
    if isinstance(value, types.FunctionType) and _is_generated(kind, value):
        return False
    is_bookkeeping = name in _BY_PYTHON or name.startswith(("__pydantic", "__attrs_"))
    return isinstance(value, _METHOD_TYPES) or not is_bookkeeping


def _fields(walk: Walk, kind: type) -> list[object]:
    """Describe the fields of a dataclass or a pydantic model and the members of an enumeration, in their order."""
    if issubclass(kind, enum.Enum):
        members = kind.__members__.items()
        return [[name, walk.describe(item._value_), *added_to_member(walk, item)] for name, item in members]
    fields: dict[str, Any] = getattr(kind, "__pydantic_fields__", {})
    if dataclasses.is_dataclass(kind):
        fields = {field.name: field for field in dataclasses.fields(kind)}
    parts = ("default", "default_factory", "annotation")  # of which a dataclass's has the first two
    return [
        [n, *(walk.describe(getattr(f, part)) for part in parts if hasattr(f, part)), *_unusual(walk, f, _OF_A_FIELD)]
        for n, f in fields.items()
    ]


def _unusual(walk: Walk, thing: Any, usual: Mapping[str, tuple[Any, ...]]) -> list[object]:
    """Describe the options of a dataclass or a field that have not their usual value; nothing in most cases."""
    options = {name: getattr(thing, name, values[0]) for name, values in usual.items()}
    changed = {n: walk.describe(item) for n, item in options.items() if not any(item == value for value in usual[n])}
    return [changed] if changed else []


def _about(walk: Walk, kind: type) -> list[object]:
    """Describe how a class was made a dataclass, and which classes were registered as its own; mostly nothing."""
    found = _unusual(walk, getattr(kind, "__dataclass_params__", None), _OF_A_DATACLASS)
    registered = abc._get_dump(kind)[0] if isinstance(kind, abc.ABCMeta) else ()  # type: ignore[attr-defined]
    alive = [one for one in (reference() for reference in registered) if one is not None]
    return [*found, ["registered", walk.unordered(alive)]] if alive else found


def _indirect(walk: Walk, function: types.FunctionType, reads: list[Read]) -> list[object]:
    """Describe the classes that a method finds through `__subclasses__`; warn of what is found in no known place."""
    resolved = {(read.line, read.after) for read in reads if read.after in _INDIRECT}
    found: list[object] = []
    for name, line in attributes_in(function):
        if name not in _INDIRECT or (line, name) in resolved:
            continue
        home = function.__globals__.get(function.__qualname__.partition(".")[0])
        if name == "__subclasses__" and isinstance(home, type):
            found.append(["subclasses", walk.unordered(_descendants(home))])
        else:
            walk.reach.cannot_see(function, f"what it finds through .{name}")
    return found


def _descendants(kind: type) -> list[type]:
    """Return the classes derived from a class, and those derived from them."""
    children: list[type] = type.__subclasses__(kind)
    return list(dict.fromkeys(one for child in children for one in (child, *_descendants(child))))


def _is_generated(kind: type, function: types.FunctionType) -> bool:
    """Tell whether a method was written by `dataclass`: its fields say all of it, its byte code only the release."""
    code = inspect.unwrap(function).__code__
    return dataclasses.is_dataclass(kind) and function.__name__ in _GENERATED and code.co_filename == "<string>"


def _step_to(kind: type, name: str) -> str:
    if name not in _CONSTRUCTORS:
        return ""
    return "builds" if issubclass(kind, nn.Module) else "constructs"


def _is_a_patch(function: types.FunctionType) -> bool:
    """Tell whether a function in a library was written in a user's file or console, and not generated there."""
    space = function.__globals__
    is_written = not function.__code__.co_filename.startswith("<")
    return (is_written or "__file__" in space or space.get("__name__") == "__main__") and origin.is_users(function)
