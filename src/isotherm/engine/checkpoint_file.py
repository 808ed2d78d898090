"""The file of a checkpoint: a state with a header, whole or refused.

A file is a line that says what it is, a line of JSON that says whose it is, the state as `torch.save` writes it, and a
line with the sha256 of everything before that.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import torch

from isotherm.core.json import exact_json
from isotherm.engine.memory import is_out_of_memory

# Nested dicts and lists of tensors, numbers, strings and None: what `torch.load` reads without running any code.
State = dict[str, Any]

# Part of every identity. Raise it when the state of a fleet gets another shape or meaning.
FORMAT = 3
MAGIC = b"isotherm checkpoint\n"
CHUNK = 2**20
_END = b"\nsha256 "
_END_SIZE = len(_END) + 64 + 1


class UnusableError(Exception):
    """A file is not a usable checkpoint; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a checkpoint says of itself before its state.

    Args:
        identity: of the fleet.
        about: JSON values that describe the fleet.
        seconds: how long the fleet had been trained.
    """

    identity: str
    about: Mapping[str, Any]
    seconds: float

    def line(self) -> bytes:
        """Return the header as it is written."""
        content = {"format": FORMAT, "identity": self.identity, "about": self.about, "seconds": self.seconds}
        return exact_json(content).encode() + b"\n"

    @classmethod
    def parsed(cls, line: bytes) -> Self:
        """Return the header that `line` wrote."""
        try:
            content = json.loads(line)
            if content["format"] != FORMAT:
                raise UnusableError(f"it has format {content['format']!r}, this Isotherm reads {FORMAT}")
            header = cls(identity=content["identity"], about=content["about"], seconds=content["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableError("its header is damaged") from error
        if not (isinstance(header.identity, str) and isinstance(header.about, dict) and _is_duration(header.seconds)):
            raise UnusableError("its header is damaged")
        return header


def read_header(path: Path) -> Header:
    """Return the header of a checkpoint; its state is neither read nor checked.

    Raises:
        UnusableError: it is not a checkpoint.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        _check_magic(file)
        return Header.parsed(file.readline())


def read_state(file: IO[bytes], *, identity: str, map_location: torch.device | str) -> tuple[State, Header]:
    """Return the state of a checkpoint and its header, once the whole file has been checked.

    Args:
        file: open for reading.
        identity: of the fleet; the state of another is refused.
        map_location: the device to load tensors to.

    Raises:
        UnusableError: the file is damaged or of another fleet.
    """
    end = _checked_end(file)
    file.seek(len(MAGIC))
    header = Header.parsed(file.readline())
    if header.identity != identity:
        raise UnusableError("it is of another fleet: other runs, another version or another kind of device")
    part = io.BufferedReader(_Part(file, start=file.tell(), stop=end))
    try:
        state = torch.load(part, map_location=map_location, weights_only=True)
    except Exception as error:  # PyTorch raises many kinds
        if is_out_of_memory(error):
            raise
        raise UnusableError(f"its state cannot be decoded ({_first_line(error)})") from error
    if not isinstance(state, dict):
        raise UnusableError(f"its state is a {type(state).__name__}, not a dict")
    return state, header


def write_state(file: IO[bytes], state: State, header: Header) -> None:
    """Write a state and its header.

    Raises:
        OSError: the disk fails.
    """
    writer = _Writer(file)
    writer.write(MAGIC)
    writer.write(header.line())
    torch.save(state, writer)  # type: ignore[arg-type]  # it has what PyTorch asks for: write and flush
    writer.write(_END + writer.digest() + b"\n")
    if writer.error is not None:
        raise writer.error


def _check_magic(file: IO[bytes]) -> None:
    start = file.read(len(MAGIC))
    if start != MAGIC:
        raise UnusableError("it is cut off" if MAGIC.startswith(start) else "it is not a checkpoint of Isotherm")


def _checked_end(file: IO[bytes]) -> int:
    """Return where the state ends, once the whole file has been checked."""
    _check_magic(file)
    end = file.seek(0, os.SEEK_END) - _END_SIZE
    file.seek(max(0, end))
    last = file.read()
    if end < len(MAGIC) or not (last.startswith(_END) and last.endswith(b"\n")):
        raise UnusableError("it is cut off, or its end is damaged")
    digest, left = hashlib.sha256(), end
    file.seek(0)
    while left:
        piece = file.read(min(left, CHUNK))
        digest.update(piece)
        left -= len(piece)
    if digest.hexdigest().encode() != last[len(_END) : -1]:
        raise UnusableError("its content is damaged: the sha256 at its end does not match")
    return end


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class _Writer:
    """Writes and hashes. After an error it accepts data and writes nothing, since PyTorch would hide the error."""

    def __init__(self, file: IO[bytes]) -> None:
        self.error: OSError | None = None
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        """Write some bytes."""
        self._hash.update(data)
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing; the file is flushed once, at the end."""

    def digest(self) -> bytes:
        """Return the sha256 of everything so far, in hexadecimal."""
        return self._hash.hexdigest().encode()


class _Part(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: IO[bytes], *, start: int, stop: int) -> None:
        super().__init__()
        self._file, self._start, self._size, self._position = file, start, stop - start, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position that is read next."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position and return it."""
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the part goes."""
        self._file.seek(self._start + self._position)
        wanted = memoryview(buffer).cast("B")
        data = self._file.read(max(0, min(len(wanted), self._size - self._position)))
        wanted[: len(data)] = data
        self._position += len(data)
        return len(data)
