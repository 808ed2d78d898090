"""Which description fits which kind of value; the first that matches counts."""

from __future__ import annotations

import collections
import collections.abc
import contextvars
import enum
import functools
import io
import logging
import struct
import threading
import types
import typing
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.tasks.identity import code, objects, origin, values
from isotherm.tasks.identity.external import FOREIGN
from isotherm.tasks.identity.walk import Handler

_BUILTIN = (
    *(types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, np.ufunc),
)
_GENERIC = (types.GenericAlias, typing._GenericAlias)  # type: ignore[attr-defined]
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_EXACT: dict[type, Handler] = {
    **dict.fromkeys((list, tuple, collections.deque, *_VIEWS), values.sequence),
    **dict.fromkeys((set, frozenset), values.unordered),
    **dict.fromkeys((dict, collections.OrderedDict, collections.Counter, types.MappingProxyType), values.mapping),
    slice: values.slice_,
    struct.Struct: objects.structure,
    **dict.fromkeys(weakref.ProxyTypes, objects.proxy),
    **dict.fromkeys((bytearray, memoryview), values.buffer),
}
_KINDS: tuple[tuple[Any, Handler], ...] = (
    (Tensor, values.tensor),
    ((np.ndarray, np.generic), values.array),
    (types.FunctionType, code.function),
    (types.MethodType, code.method),
    ((staticmethod, classmethod, property, functools.cached_property), code.member),
    (functools._lru_cache_wrapper, code.cached),
    (torch.jit.ScriptFunction, objects.script_function),
    (types.ModuleType, code.module),
    (code.OPERATORS, code.operator),
    (_GENERIC, code.generic),
    (types.UnionType, code.union),
    (types.CodeType, code.code_object),
    (typing.TypeVar, code.type_variable),
    (type, code.class_),
    (_BUILTIN, code.builtin),
    (nn.Module, objects.module),
    (enum.Enum, objects.member_of_enum),
    (functools.partial, objects.partial),
    ((contextvars.ContextVar, weakref.ref), objects.variable),
    (threading.local, objects.local),
    (io.IOBase, objects.file),
    (threading.Event, objects.event),
    (logging.LoggerAdapter, objects.logger_adapter),
    ((weakref.WeakKeyDictionary, weakref.WeakValueDictionary), values.mapping),
    (FOREIGN, code.foreign),
    (objects.IGNORED, objects.by_class),
    (objects.OPAQUE, objects.opaque),
)


def handler_of(value: Any) -> Handler:
    """Return the function that describes a value."""
    if type(value) in _EXACT:
        return _EXACT[type(value)]
    for kind, handler in _KINDS:
        if isinstance(value, kind):
            return handler
    if isinstance(value, collections.abc.Iterator) and origin.is_library_class(type(value)):
        return objects.opaque
    if isinstance(value, types.SimpleNamespace) or origin.is_users(value) or origin.is_isotherms(type(value)):
        return objects.plain_object
    return objects.library_object
