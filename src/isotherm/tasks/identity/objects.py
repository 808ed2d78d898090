"""How objects are described: by their class and their state."""

from __future__ import annotations

import collections.abc
import concurrent.futures
import copyreg
import dataclasses
import enum
import functools
import inspect
import io
import logging
import operator
import os
import random
import re
import struct
import threading
import types
import weakref
from typing import Any

import numpy as np
import torch
from torch import nn

from isotherm.tasks.identity import origin
from isotherm.tasks.identity.code import added, added_to_member, note_compiled
from isotherm.tasks.identity.reads import MISSING
from isotherm.tasks.identity.values import tensor_content
from isotherm.tasks.identity.walk import Walk
from isotherm.tasks.seeding import seeded

# What nn.Module keeps of itself, torch.compile of its work; parameters, buffers and submodules are described apart.
INTERNAL = {*vars(nn.Module()), "training", "_compiled_call_impl", "_super_module_initialized", "_initializing"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore)
# Their state has no effect on the numbers.
IGNORED: tuple[type, ...] = (
    *(logging.Logger, logging.Handler),
    *(*_LOCKS, threading.Thread, concurrent.futures.Executor),
    weakref.WeakSet,
    *(types.FrameType, types.TracebackType, types.CoroutineType, types.AsyncGeneratorType),
)
# Their state changes as they are used, so that it cannot be part of a key.
OPAQUE: tuple[type, ...] = (
    *(os._Environ, types.GeneratorType),
    *(torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random),
)
_TORCHSCRIPT_NAME = re.compile(r"__torch__(?:\.\w+)*?\.(\w+)(?![\w.])")


def by_class(walk: Walk, value: Any) -> list[object]:
    """Describe something by its class alone."""
    return ["object", walk.describe(type(value), "instance")]


def event(walk: Walk, value: threading.Event) -> object:
    """Describe a flag between threads by whether it is set."""
    return [*by_class(walk, value), value.is_set()]


def logger_adapter(walk: Walk, value: logging.LoggerAdapter[Any]) -> object:
    """Describe an adapter of a logger by what it adds."""
    return [*by_class(walk, value), walk.describe(value.extra)]


def opaque(walk: Walk, value: Any) -> object:
    """Describe a generator, random generator or the like by its class, and record that its state is not seen."""
    walk.reach.cannot_see(value, f"the state of a {origin.name_of(type(value))} object")
    return by_class(walk, value)


def file(walk: Walk, value: io.IOBase) -> object:
    """Describe an open file as one; standard output, for example, has another class in every console."""
    if not value.closed and value.readable():
        walk.reach.cannot_see(value, f"the state of a {origin.name_of(type(value))} object")
    return ["file"]


def proxy(walk: Walk, value: Any) -> object:
    """Describe a weak proxy by what it stands for."""
    try:
        return ["proxy", walk.describe(value.__repr__.__self__)]
    except ReferenceError:
        return ["proxy"]


def structure(walk: Walk, value: struct.Struct) -> object:
    """Describe a binary format by its text."""
    return ["struct", value.format]


def variable(walk: Walk, value: Any) -> object:
    """Describe a context variable by its value here and now, a weak reference by what it refers to."""
    if isinstance(value, weakref.ref):
        return ["reference", walk.describe(value())]
    try:
        return ["variable", walk.describe(value.get())]
    except LookupError:  # neither set nor given a default
        return ["variable"]


def local(walk: Walk, value: threading.local) -> object:
    """Describe what a thread's own variables are in this thread."""
    return [
        "local",
        walk.describe(type(value), "instance"),
        {name: walk.describe(item) for name, item in sorted(vars(value).items())},
    ]


def partial(walk: Walk, value: functools.partial[Any]) -> object:
    """Describe a partial call by the function and its arguments."""
    keywords = [[name, walk.describe(item)] for name, item in sorted(value.keywords.items())]
    return [
        walk.describe(type(value), "instance"),
        walk.describe(value.func),
        [walk.describe(item) for item in value.args],
        keywords,
        *added(walk, value),
    ]


def member_of_enum(walk: Walk, value: enum.Enum) -> object:
    """Describe a member by its class, name and value, and what was set on it."""
    content = [value.name, walk.describe(value._value_), *added_to_member(walk, value)]
    return ["member", walk.describe(type(value), "instance"), *content]


def module(walk: Walk, value: nn.Module) -> object:
    """Describe a module by its class, attributes, hooks, parameters, buffers and submodules."""
    tensors = [*value._parameters.items(), *value._buffers.items()]
    return [
        "module",
        walk.describe(type(value), "instance"),
        value.training,  # nobody but its owner sets it
        attributes(walk, value),
        [[name, None if t is None else [t.requires_grad, tensor_content(t)]] for name, t in tensors],
        [[name, walk.describe(part)] for name, part in value._modules.items()],
    ]


def attributes(walk: Walk, value: nn.Module) -> object:
    """Describe what a module holds besides parameters, buffers and submodules."""
    if isinstance(value, torch.jit.ScriptModule):
        return _scripted(walk, value)
    hooks = [_hooks(walk, vars(value), name) for name in _HOOKS]
    if isinstance(value, torch.fx.GraphModule):
        return [hooks, value.code, [_target(walk, value, node) for node in value.graph.nodes]]
    if type(value).__module__.startswith("torch._dynamo"):  # torch.compile: what it computes is its submodule
        return hooks
    held = {
        name: item for name, item in vars(value).items() if name not in INTERNAL and not _is_cache(walk, value, name)
    }
    return [hooks, {name: walk.describe(item) for name, item in sorted(held.items())}]


def _target(walk: Walk, value: torch.fx.GraphModule, node: torch.fx.Node) -> object:
    """Describe the function that a node of a traced graph calls, or the attribute that it reads."""
    if node.op == "get_attr":
        return walk.describe(operator.attrgetter(str(node.target))(value))
    return walk.describe(node.target)


def global_hooks(walk: Walk) -> list[object]:
    """Describe the hooks that run for every module there is."""
    return [_hooks(walk, vars(nn.modules.module), f"_global{name}") for name in _HOOKS]


def script_function(walk: Walk, value: Any) -> object:
    """Describe a function compiled by `torch.jit` by its graph."""
    return ["script", _graph(walk, value.inlined_graph)]


def plain_object(walk: Walk, value: Any) -> object:
    """Describe an object by its class, its content if it is also a container or number, and its attributes."""
    state = {name: walk.describe(item) for name, item in sorted(_state(walk, value).items())}
    if origin.is_isotherms(type(value)) and dataclasses.is_dataclass(value):  # a new field changes no old key
        defaults = {field.name: walk.describe(field.default) for field in dataclasses.fields(value)}
        state = {name: item for name, item in state.items() if item != defaults.get(name)}
    has_own = getattr(type(value), "__reduce__", None) is not object.__reduce__  # of a parent in C, such as datetime
    pickled = library_object(walk, value) if has_own else None
    return ["object", walk.describe(type(value), "instance"), _content(walk, value), state, pickled]


def library_object(walk: Walk, value: Any) -> object:
    """Describe an object of a library by what pickle would keep of it."""
    note_compiled(walk, value)
    if type(value).__module__.startswith("triton.") and hasattr(value, "fn"):
        return ["kernel", walk.describe(type(value), "instance"), walk.describe(value.fn)]
    if type(value).__module__ == "torch._library.custom_ops":  # the rest of its state counts registrations
        return ["operator", {n: walk.describe(item) for n, item in sorted(vars(value).items()) if "_fn" in n}]
    has_wrapped = inspect.getattr_static(value, "__wrapped__", None) is not None  # asks no `__getattr__`
    wrapped = walk.describe(value.__wrapped__ if has_wrapped else None)
    try:
        reduced = _reduced(value)
    except Exception:  # whatever a library raises for what cannot be pickled
        walk.reach.cannot_see(value, f"the state of a {origin.name_of(type(value))} object")
        held = walk.describe(_without_copied_names(_held(value)))
        return ["object", walk.describe(type(value), "instance"), wrapped, held]
    if isinstance(reduced, str):
        return ["object", walk.describe(type(value), "instance"), reduced, wrapped]
    parts = [list(part) if isinstance(part, collections.abc.Iterator) else part for part in reduced[:5]]
    parts = [_without_copied_names(part) if type(part) is dict else part for part in parts]
    return ["object", walk.describe(type(value), "instance"), [walk.describe(part) for part in parts], wrapped]


def _state(walk: Walk, value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots included."""
    names = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{kind.__name__.lstrip('_')}{name}" if is_private else name)
    hidden = {"__dict__", "__weakref__", "__pydantic_fields_set__"}
    held = {name: _slot(value, name) for name in names if name not in hidden}
    held = {name: item for name, item in held.items() if item is not MISSING} | _held(value)
    return {name: item for name, item in _without_copied_names(held).items() if not _is_cache(walk, value, name)}


def _held(value: Any) -> dict[str, Any]:
    """Return the attributes of an object without asking its `__getattr__`, which may raise anything."""
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}


def _slot(value: Any, name: str) -> Any:
    """Return what a slot holds, if anything."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return MISSING


def _reduced(value: Any) -> Any:
    """Return what pickle would keep of an object."""
    registered = copyreg.dispatch_table.get(type(value))
    return value.__reduce_ex__(4) if registered is None else registered(value)


def _without_copied_names(held: dict[str, Any]) -> dict[str, Any]:
    """Leave out what functools.update_wrapper copies onto an object and means nothing."""
    return {name: item for name, item in held.items() if name not in ("__module__", "__doc__", "__annotations__")}


def _is_cache(walk: Walk, value: Any, name: str) -> bool:
    """Tell whether an attribute is the kept result of a cached property, and not something set in its place."""
    found = inspect.getattr_static(type(value), name, None)
    if not isinstance(found, functools.cached_property):
        return False
    try:
        with seeded(0, "cached property"):
            fresh = found.func(value)
    except Exception:  # whatever a user's property raises
        return False
    return walk.unordered([fresh]) == walk.unordered([_held(value).get(name)])


def _hooks(walk: Walk, held: dict[str, Any], name: str) -> list[object]:
    """Describe hooks in their order, each with how it is called; their numbers count all hooks of the process."""
    ways = [held.get(f"{name}_{way}", {}) for way in ("with_kwargs", "always_called")]
    return [[walk.describe(hook), [number in way for way in ways]] for number, hook in held.get(name, {}).items()]


def _content(walk: Walk, value: Any) -> object:
    """Describe what an object holds as a number, a text or a container of its class."""
    if isinstance(value, collections.defaultdict):
        return [walk.describe(value.default_factory), [[walk.describe(k), walk.describe(v)] for k, v in value.items()]]
    if isinstance(value, dict):
        return [[walk.describe(key), walk.describe(item)] for key, item in value.items()]
    if isinstance(value, collections.deque):
        return [value.maxlen, [walk.describe(item) for item in value]]
    if isinstance(value, list | tuple):
        return [walk.describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return walk.unordered(value)
    for kind in (int, float, complex, str, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value)
    return None


def _scripted(walk: Walk, value: torch.jit.ScriptModule) -> object:
    """Describe a module compiled by `torch.jit` by its graphs and the attributes that they read."""
    compiled = value._c
    graphs = {name: compiled._get_method(name).inlined_graph for name in compiled._method_names()}
    names = {node.s("name") for graph in graphs.values() for node in graph.findAllNodes("prim::GetAttr")}
    held = {
        f"{path}.{name}": part._c.getattr(name)
        for path, part in value.named_modules()
        for name in names
        - {name for name, _ in [*part.named_parameters(), *part.named_buffers(), *part.named_children()]}
        if part._c.hasattr(name)
    }
    attributes = {name: walk.describe(item) for name, item in sorted(held.items())}
    return ["script", {name: _graph(walk, graph) for name, graph in sorted(graphs.items())}, attributes]


def _graph(walk: Walk, graph: Any) -> object:
    """Describe a graph by its text, without the names of modules, and the values of its constant tensors."""
    constants = [
        tensor_content(node.t("value"))
        for node in graph.findAllNodes("prim::Constant")
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    ]
    return [_TORCHSCRIPT_NAME.sub(r"\1", graph.str(False)), constants]
