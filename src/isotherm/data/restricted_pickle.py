"""Read the pickles of CIFAR's python layout without running any code that a pickle could name.

A pickle may call whatever it can import. Here the few NumPy names that an array needs are replaced by inert records of
the call, every other name is refused, and the array is rebuilt afterwards from its checked parts.
"""

from __future__ import annotations

import io
import math
import pickle  # only to subclass its Unpickler
from pathlib import Path

import numpy as np

from isotherm.errors import UserError

_CONSTRUCTORS = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
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

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> _Inert:
        kind = _CONSTRUCTORS.get((module, name))
        if kind is None:
            raise UserError(f"{self._path} is a pickle that names {module}.{name}, which is not allowed; {_REMEDY}")
        return _Inert(kind)


def read(content: bytes, path: Path) -> dict[str, object]:
    """Return the dictionary in a pickle, its byte arrays as uint8 arrays; `path` is for error messages.

    Raises:
        UserError: the pickle names anything but arrays, is damaged, or is not a dictionary with string keys.
    """
    try:
        value = _Unpickler(content, path).load()
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
    match record.kind, record.state:
        case "array", (_, tuple(shape), _Inert(kind="dtype") as dtype, is_fortran, values) if isinstance(
            values, bytes
        ) and all(type(n) is int and n >= 0 for n in shape):
            pass
        case _:
            raise UserError(f"{path} has an array in an unknown form; {_REMEDY}")
    if dtype.arguments[:1] not in ((b"u1",), ("u1",)):
        raise UserError(f"{path} has an array of type {dtype.arguments[:1]}, expected ('u1',) for bytes; {_REMEDY}")
    if len(values) != math.prod(shape):
        raise UserError(f"{path} has an array of shape {shape} with {len(values):,} bytes of values; {_REMEDY}")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape, order="F" if is_fortran else "C")
