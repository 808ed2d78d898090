"""Content hashes of models: what makes two runs the same run.

A store returns a result for a key without asking again, so two different computations must not share one. Whatever a
builder, module, loss or metric holds is followed: closures, defaults, attributes, tensors, classes and their parents.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.core.records import content_hash
from isotherm.errors import UserError
from isotherm.tasks.seeding import initial_model

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# Of a module: what nn.Module itself keeps; parameters, buffers and submodules are described on their own.
_INTERNAL = set(vars(nn.Module())) | {"training"}
_LIBRARIES = ("torch", "numpy", "typing_extensions")
_DIGITS = 32  # of a part: 128 bits, and still read in a terminal
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


def model_parts(
    model: Callable[[], nn.Module],
    *,
    loss: Any,
    metric: Any,
    version: str = "",
    settings: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return a hash for each part of what defines a module's computation, as far as it can be read off.

    Hashed: source, closure, defaults, attributes of builder, loss and metric, and what they and the functions they call
    refer to by a global name; of every submodule its class and the class's parents outside the libraries, and its
    attributes; every parameter and buffer of the module built with seed 0; `version`, and `settings`: what
    else decides how the module is trained. Sources are compared as Python's parser prints them, without comments and
    layout; another minor release of Python may print them otherwise. Not hashed: libraries,
    and the state of global objects other than values; change `version` when one of them matters.
    """
    try:
        module = initial_model(model, seed=0)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"building the model raised {type(error).__name__}: {error}") from error
    modules = list(module.named_modules())
    parts: dict[str, object] = {
        "code": [_Describer()(value) for value in (model, [type(part) for _, part in modules])],
        "architecture": [
            [[name, _Describer()(part)] for name, part in modules],
            [[name, list(p.shape), str(p.dtype), p.requires_grad] for name, p in module.named_parameters()],
        ],
        "weights": [[name, _tensor(t)] for name, t in (*module.named_parameters(), *module.named_buffers())],
        "loss": _Describer()(loss),
        "metric": _Describer()(metric),
        "settings": _Describer()(dict(settings or {})),
        "version": version,
    }
    return {name: content_hash(part)[:_DIGITS] for name, part in parts.items()}


def model_id(parts: Mapping[str, str]) -> str:
    """Return the one hash of all parts.

    >>> model_id({"code": "a", "version": "b"}) == model_id({"version": "b", "code": "a"})
    True
    """
    return content_hash(dict(parts))


def module_attributes(module: nn.Module) -> dict[str, object]:
    """Return what a module and its parts keep besides parameters and buffers, comparable before and after a call."""
    return {
        f"{name}.{key}".lstrip("."): _Describer()(value)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in _INTERNAL
    }


class _Describer:
    """Turns anything into JSON values that depend on its content and never on its place in memory."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # ids stay taken while their objects live

    def __call__(self, value: Any) -> object:
        """Return the description of a value; a value met before is named by its number."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Tensor):
            return _tensor(value)
        if isinstance(value, np.ndarray):
            return ["array", str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        if id(value) in self._seen:
            return ["again", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return self._compound(value)

    def _compound(self, value: Any) -> object:
        if isinstance(value, list | tuple):
            return [type(value).__name__, *(self(item) for item in value)]
        if isinstance(value, set | frozenset):
            return ["set", *sorted(repr(item) for item in value)]
        if isinstance(value, dict):
            return ["dict", *([self(key), self(item)] for key, item in value.items())]
        if isinstance(value, functools.partial):
            return ["partial", self(value.func), self(list(value.args)), self(dict(value.keywords))]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if inspect.ismethod(value):
            return ["method", self(value.__func__), self(value.__self__)]
        if inspect.isfunction(value):
            return self._function(value)
        if isinstance(value, type):
            return ["class", *(part for kind in value.__mro__ for part in self._class(kind))]
        if inspect.isbuiltin(value) or isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return [
                "builtin",
                getattr(value, "__module__", ""),
                getattr(value, "__qualname__", type(value).__qualname__),
            ]
        return self._object(value)

    def _function(self, function: types.FunctionType) -> object:
        if _of_a_library(function):
            return ["function", function.__module__, function.__qualname__]
        names = _names_in(function.__code__)
        return [
            "function",
            function.__qualname__,
            _source(function),
            self(_closure(function)),
            {name: self._global(value) for name, value in sorted(function.__globals__.items()) if name in names},
            self(list(function.__defaults__ or ())),
            self(dict(function.__kwdefaults__ or {})),
        ]

    def _global(self, value: Any) -> object:
        """Describe what code refers to by a global name: values, functions and classes, not the state of services."""
        known = isinstance(value, (*_PLAIN, Tensor, np.ndarray, list, tuple, set, frozenset, dict, functools.partial))
        if known or inspect.isfunction(value) or isinstance(value, type | types.ModuleType | nn.Module):
            return self(value)
        return f"{type(value).__module__}.{type(value).__qualname__}"

    def _class(self, kind: type) -> list[object]:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if _of_a_library(kind):
            return [name]
        own = {key: _functions_of(value) for key, value in sorted(vars(kind).items())}
        methods = {
            key: [self(part) for part in parts if not _is_generated(kind, part)] for key, parts in own.items() if parts
        }
        return [name, _source(kind), methods]

    def _object(self, value: Any) -> object:
        skipped = _INTERNAL if isinstance(value, nn.Module) else set()
        slots = [
            name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)
        ]
        held = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
        attributes = {name: self(item) for name, item in sorted(held.items()) if name not in skipped}
        described = ["object", self(type(value)), attributes]
        if isinstance(value, nn.Module):  # a loss may be a module with buffers, weights for example
            described.append([[name, _tensor(buffer)] for name, buffer in value.named_buffers(recurse=False)])
        return described


def _of_a_library(thing: Any) -> bool:
    """Tell whether a thing's source is left out: it changes with every release of PyTorch, NumPy or Python itself."""
    top = (getattr(thing, "__module__", None) or "").split(".")[0]
    if top in _LIBRARIES:
        return True
    if top not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(top), "__file__", None)  # a user's module may have a standard one's name
    return file is None or file.startswith(_STANDARD_LIBRARY)


def _functions_of(member: Any) -> list[types.FunctionType]:
    """Return the functions behind a member of a class: a method of any kind, or a property's."""
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    parts = [member.fget, member.fset, member.fdel] if isinstance(member, property) else [member]
    parts = [part.func if isinstance(part, functools.cached_property) else part for part in parts]
    return [part for part in parts if inspect.isfunction(part)]


def _names_in(code: types.CodeType) -> set[str]:
    """Return the global names that code may refer to, that of lambdas and comprehensions inside it included."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names, *(name for part in inner for name in _names_in(part))}


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses, as far as they have a value yet."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _is_generated(kind: type, method: types.FunctionType) -> bool:
    """Tell whether a method was written by `dataclass`: its fields say all of it, its byte code only the release."""
    return (
        dataclasses.is_dataclass(kind)
        and method.__name__.startswith("__")
        and method.__code__.co_filename == "<string>"
    )


def _tensor(tensor: Tensor) -> list[object]:
    content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return ["tensor", str(tensor.dtype), list(tensor.shape), hashlib.sha256(content.tobytes()).hexdigest()]


def _source(thing: Any) -> str:
    """Return the source without comments, docstrings and layout; byte code where there is none, as in a console."""
    try:
        text = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        if code is None:
            return ""
        return repr((code.co_code, [c for c in code.co_consts if isinstance(c, _PLAIN)], code.co_names))
    try:
        return ast.unparse(_without_docstrings(ast.parse(text)))
    except SyntaxError:  # a lambda cut out of the middle of a statement
        return text


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree
