"""A fleet's state on disk, so that a fleet that was killed goes on from there.

A file is a line that says what it is, a line of JSON that says whose it is, the state as `torch.save` writes it, and a
line with the sha256 of everything before that. It is whole or it is not there; what is damaged is told and not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import torch

from isotherm.core.json import exact_json
from isotherm.engine.memory import is_out_of_memory

logger = logging.getLogger("isotherm")

# Nested dicts and lists of tensors, numbers, strings and None: what `torch.load` reads without running any code.
State = dict[str, Any]

# Part of every identity. Raise it when the state of a fleet has another shape or meaning than before.
FORMAT = 2
_MAGIC = b"isotherm checkpoint\n"
_END = b"\nsha256 "
_END_SIZE = len(_END) + 64 + 1
_CHUNK = 2**20


class UnusableError(Exception):
    """A file is no checkpoint that can be used; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a checkpoint says of itself before its state.

    Args:
        identity: names the fleet.
        about: plain values that say what the fleet is.
        seconds: how long it had been trained.
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


class Checkpoint:
    """Where a fleet keeps its state, and when.

    Args:
        path: the file; its folder is made when it is needed.
        seconds: time between two saves.
        identity: names the fleet; a file of another identity is not loaded.
        about: plain values that say what the fleet is; `read_header` finds them without reading the state.
    """

    def __init__(
        self, path: Path, *, seconds: float = 60.0, identity: str, about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.seconds_before = 0.0  # that the fleet was trained before this process went on with it
        self._seconds = seconds
        self._identity = identity
        self._about = dict(about or {})
        self._start = self._last = time.monotonic()
        self._has_warned = False

    def load(self, map_location: torch.device | str) -> State | None:
        """Return the state that was saved last.

        None where there is none; one that is damaged or of another fleet is reported, removed and None too.
        """
        try:
            with self.path.open("rb") as file:
                state, header = self._read(file, map_location)
        except FileNotFoundError:
            return None
        except (OSError, UnusableError) as error:
            self._give_up(error)
            return None
        self.seconds_before = header.seconds
        return state

    def refuse(self, reason: str) -> None:
        """Report and remove what was loaded, as nobody can go on from it."""
        self.seconds_before = 0.0
        self._give_up(UnusableError(reason))

    def _give_up(self, error: OSError | UnusableError) -> None:
        report_unusable(self.path, error)
        self.remove()

    def is_due(self) -> bool:
        """Tell whether it is time to save."""
        return time.monotonic() - self._last >= self._seconds

    def save(self, state: State) -> None:
        """Keep a state in place of the one before; a kill at any moment leaves one of the two.

        A disk that fails is warned of once; the training goes on.
        """
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(exist_ok=True)
            with temporary.open("wb") as file:
                self._write(file, state)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            self._warn(error)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file, if there is one."""
        with contextlib.suppress(OSError):  # what cannot be removed is cleaned up by a later run
            self.path.unlink(missing_ok=True)

    def _read(self, file: IO[bytes], map_location: torch.device | str) -> tuple[State, Header]:
        end = _checked_end(file)
        file.seek(len(_MAGIC))
        header = Header.parsed(file.readline())
        if header.identity != self._identity:
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

    def _write(self, file: IO[bytes], state: State) -> None:
        writer = _Writer(file)
        trained = self.seconds_before + time.monotonic() - self._start
        writer.write(_MAGIC)
        writer.write(Header(identity=self._identity, about=self._about, seconds=trained).line())
        torch.save(state, writer)  # type: ignore[arg-type]  # it has what PyTorch asks for: write and flush
        writer.write(_END + writer.digest() + b"\n")
        if writer.error is not None:
            raise writer.error

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            logger.warning(
                "the checkpoint %s cannot be written: %s; training goes on, but would start over after a kill: "
                "make room, or check the permissions of the folder",
                self.path,
                error.strerror or error,
            )
        self._has_warned = True


def read_header(path: Path) -> Header:
    """Return what a checkpoint says of itself; its state is neither read nor checked.

    Raises:
        UnusableError: it is no checkpoint.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        _check_magic(file)
        return Header.parsed(file.readline())


def report_unusable(path: Path, error: Exception) -> None:
    """Warn of a checkpoint that cannot be used."""
    reason = f"it cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    logger.warning("the checkpoint %s is not used, and its fleet starts over: %s", path, reason)


def _check_magic(file: IO[bytes]) -> None:
    start = file.read(len(_MAGIC))
    if start != _MAGIC:
        raise UnusableError("it is cut off" if _MAGIC.startswith(start) else "it is not a checkpoint of Isotherm")


def _checked_end(file: IO[bytes]) -> int:
    """Return where the state ends, once the whole file has been checked."""
    _check_magic(file)
    end = file.seek(0, os.SEEK_END) - _END_SIZE
    file.seek(max(0, end))
    last = file.read()
    if end < len(_MAGIC) or not (last.startswith(_END) and last.endswith(b"\n")):
        raise UnusableError("it is cut off, or its end is damaged")
    digest, left = hashlib.sha256(), end
    file.seek(0)
    while left:
        piece = file.read(min(left, _CHUNK))
        digest.update(piece)
        left -= len(piece)
    if digest.hexdigest().encode() != last[len(_END) : -1]:
        raise UnusableError("its content is damaged: the sha256 at its end is another")
    return end


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class _Writer:
    """Writes and hashes. After an error it takes what comes and writes nothing: PyTorch would hide the error."""

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
        self._file, self._start, self._size, self._place = file, start, stop - start, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read anywhere."""
        return True

    def tell(self) -> int:
        """Return the place that is read next."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place and return it."""
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the part goes."""
        self._file.seek(self._start + self._place)
        wanted = memoryview(buffer).cast("B")
        data = self._file.read(max(0, min(len(wanted), self._size - self._place)))
        wanted[: len(data)] = data
        self._place += len(data)
        return len(data)
