"""Read the pickles of CIFAR's python layout without running any code that a pickle could name.

A pickle may call whatever it can import. Here its instructions are read one by one and followed by `_Machine`, which
knows those that plain values and arrays need: the few NumPy names of an array become inert records of the call, every
other name is refused, and the array is rebuilt afterwards from its checked parts. What an instruction says of itself,
such as a length or a place in the memo, reserves no memory, and nothing is hashed but names and numbers: nested tuples
that share their parts would take for ever.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from isotherm.errors import UserError

_CONSTRUCTORS = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy.core.numeric", "_frombuffer"): "buffer",  # an array in protocol 5, the default from Python 3.14 on
    ("numpy._core.numeric", "_frombuffer"): "buffer",
    ("numpy", "ndarray"): "type",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "bytes",  # how Python 3 writes bytes in the old protocols, and empty ones:
    ("builtins", "bytes"): "bytes",
    ("__builtin__", "bytes"): "bytes",
}
_REMEDY = "use the binary layout of the data set instead"


class _Inert:
    """The stand-in for an allowed name: it records call arguments and state, and creates bytes but nothing else."""

    __slots__ = ("arguments", "kind", "state")

    def __init__(self, kind: str, arguments: tuple[object, ...] = ()) -> None:
        self.kind = kind
        self.arguments = arguments
        self.state: object = None

    def __call__(self, *arguments: object) -> _Inert | bytes:
        if self.kind != "bytes":
            return _Inert(self.kind, arguments)
        match arguments:
            case ():
                return b""
            case (str(text), "latin1" | b"latin1"):
                return text.encode("latin-1")
        raise ValueError("bytes in an unknown form")


class _Machine:
    """Follows the instructions of a pickle; what it is not meant to follow is a ValueError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below every mark
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> object:
        """Return the value of a pickle."""
        for operation, argument, _ in pickletools.genops(io.BytesIO(content)):
            name = operation.name
            if name == "STOP":
                return self._stack.pop()
            if name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name in _LITERALS:
                self._stack.append(argument)
            elif name in _BYTE_STRINGS:
                self._stack.append(str(argument).encode("latin-1"))
            elif name in _ACTIONS:
                _ACTIONS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"the instruction {name} is not one of plain values and arrays")
        raise ValueError("it has no end")

    def mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _above_mark(self) -> list[Any]:
        above, self._stack = self._stack, self._below.pop()
        return above

    def tuple_of_mark(self, _: Any) -> None:
        values = tuple(self._above_mark())
        self._stack.append(values)

    def tuple_of(self, num: int) -> None:
        if len(self._stack) < num:
            raise ValueError("a tuple of more values than there are")
        self._stack[-num:] = [tuple(self._stack[-num:])]

    def list_of_mark(self, _: Any) -> None:
        values = self._above_mark()
        self._stack.append(values)

    def dict_of_mark(self, _: Any) -> None:
        values = self._above_mark()
        self._stack.append({})
        self._set(values)

    def append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def appends(self, _: Any) -> None:
        self._extend(self._above_mark())

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise ValueError("values for what is no list")
        self._stack[-1].extend(values)

    def set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def set_items(self, _: Any) -> None:
        self._set(self._above_mark())

    def _set(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(values) % 2:
            raise ValueError("items for what is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes | int):
                raise UserError(
                    f"{self._path} has a dictionary key of type {type(key).__name__}, expected a name; {_REMEDY}"
                )
            target[key] = value

    def put(self, index: int) -> None:
        self._memo[int(index)] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, index: int) -> None:
        self._stack.append(self._memo[int(index)])

    def name(self, words: str) -> None:
        module, _, name = words.partition(" ")
        self._stack.append(self._known(module, name))

    def name_on_stack(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise ValueError("a name that is no text")
        self._stack.append(self._known(module, name))

    def _known(self, module: str, name: str) -> _Inert:
        kind = _CONSTRUCTORS.get((module, name))
        if kind is None:
            raise UserError(f"{self._path} is a pickle that names {module}.{name}, which is not allowed; {_REMEDY}")
        return _Inert(kind)

    def call(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Inert) or not isinstance(arguments, tuple):
            raise ValueError("a call of what cannot be called")
        self._stack.append(function(*arguments))

    def build(self, _: Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if not isinstance(target, _Inert):
            raise ValueError("a state for what has none")
        target.state = state


_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_BYTE_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_of_mark,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "LIST": _Machine.list_of_mark,
    "EMPTY_LIST": lambda machine, _: machine._stack.append([]),
    "DICT": _Machine.dict_of_mark,
    "EMPTY_DICT": lambda machine, _: machine._stack.append({}),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_on_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}


def read(content: bytes, path: Path) -> dict[str, object]:
    """Return the dictionary in a pickle, its byte arrays as uint8 arrays; `path` is for error messages.

    Raises:
        UserError: the pickle names anything but arrays, is damaged, or is not a dictionary with string keys.
    """
    try:
        value = _Machine(path).run(content)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UserError(f"{path} is not an intact pickle ({type(error).__name__}: {error}); {_REMEDY}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, expected a dictionary; {_REMEDY}")
    return {_text(key, path): _array(item, path) if isinstance(item, _Inert) else item for key, item in value.items()}


def _text(key: object, path: Path) -> str:
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if isinstance(key, str):
        return key
    raise UserError(f"{path} has a dictionary key of type {type(key).__name__}, expected a name; {_REMEDY}")


def _array(record: _Inert, path: Path) -> np.ndarray:
    match record.kind, record.arguments, record.state:
        case "array", _, (_, tuple(shape), _Inert(kind="dtype") as dtype, is_fortran, values):
            pass
        case "buffer", (values, _Inert(kind="dtype") as dtype, tuple(shape), "C" | "F" as order), _:
            is_fortran = order == "F"
        case _:
            raise UserError(f"{path} has an array in an unknown form; {_REMEDY}")
    if not isinstance(values, bytes | bytearray) or not all(type(n) is int and n >= 0 for n in shape):
        raise UserError(f"{path} has an array in an unknown form; {_REMEDY}")
    if dtype.arguments[:1] not in ((b"u1",), ("u1",)):
        raise UserError(f"{path} has an array of type {dtype.arguments[:1]}, expected ('u1',) for bytes; {_REMEDY}")
    if len(values) != math.prod(shape):
        raise UserError(f"{path} has an array of shape {shape} with {len(values):,} bytes of values; {_REMEDY}")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape, order="F" if is_fortran else "C")
