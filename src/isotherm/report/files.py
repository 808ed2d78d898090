"""Files written whole: a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isotherm.core.json import json_text
from isotherm.errors import UserError

_STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTORS = ("/dev/fd", "/proc/self/fd")
_LONGEST_NUMBER = 7  # of a descriptor; the kernel allows about a million


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> Path:
    """Write a temporary file, then move it to its path; folders are created as needed.

    Of a symbolic link the file it names is replaced, and the link stays. A terminal, `/dev/null` and other character
    devices are written to, never replaced; so is what is open already under the name of a descriptor, such as
    `/dev/fd/63`, the pipe that a shell's `>(command)` stands for.

    Args:
        path: of the file.
        content: in one piece, or in pieces for what is too large.

    Raises:
        UserError: it cannot be written, or there is a folder, a pipe or something else there that is no file.
    """
    pieces = [content] if isinstance(content, bytes) else content
    try:
        if require_writable(path):
            number = open_descriptor(path)
            with path.open("wb") if number is None else os.fdopen(os.dup(number), "wb") as device:
                device.writelines(pieces)
            return path
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.writelines(pieces)
            Path(temporary).chmod(0o644)  # mkstemp's 0600 would hide a report from its readers
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except BrokenPipeError as error:
        raise UserError(f"{path} cannot be written: its reader has ended; look at what the reader says") from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; choose a folder you may write to, with space left"
        ) from error
    return path


def open_descriptor(path: Path) -> int | None:
    """Return the number of the open file that a path such as `/dev/fd/63` or `/dev/stdout` stands for.

    >>> open_descriptor(Path("/dev/fd/63")), open_descriptor(Path("/dev/stderr")), open_descriptor(Path("a.json"))
    (63, 2, None)
    """
    if str(path) in _STANDARD:
        return _STANDARD[str(path)]
    is_number = path.name.isdecimal() and len(path.name) < _LONGEST_NUMBER
    return int(path.name) if is_number and str(path.parent) in _DESCRIPTORS else None


def require_writable(path: Path) -> bool:
    """Refuse what is there and is neither a file nor a character device; return whether it is written in place.

    That are devices, and what is open already. A pipe on disk would block until somebody reads it, or be replaced by a
    file behind its reader's back.

    Raises:
        UserError: there is a folder, a pipe, a socket or a block device, or it may not be looked at.
    """
    number = open_descriptor(path)
    if number is not None:
        _require_open_for_writing(path, number)
        return True
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # also a link to a file that is yet to be written
        return False
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name another file") from error
    if stat.S_ISREG(mode) or stat.S_ISCHR(mode):
        return stat.S_ISCHR(mode)
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a disk"}
    kind = kinds.get(stat.S_IFMT(mode), "something else")
    if stat.S_ISFIFO(mode):
        raise UserError(f"{path} is a pipe, not a file; name /dev/stdout instead, and add > {path} to the command")
    raise UserError(f"{path} is {kind}, not a file; name a new file, or one to replace")


def _require_open_for_writing(path: Path, number: int) -> None:
    import fcntl  # not on Windows, which has no such paths

    try:
        mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError as error:
        raise UserError(f"{path} cannot be written: nothing is open there; name a file") from error
    if mode == os.O_RDONLY:
        raise UserError(f"{path} cannot be written: it is open for reading; name a file")


def write_json(path: Path, content: Any) -> Path:
    """Write a JSON file; see `json_text`."""
    return write_atomically(path, json_text(content).encode())


# In bytes; a name of a file has at most 255, and endings are added.
_LONGEST_STEM = 180


def file_stem(name: str) -> str:
    """Return a name as part of a file name: letters, digits, '.', '_' and '-' stay, the rest becomes '_'.

    >>> file_stem("constant steps: 1/2"), file_stem("../..")
    ('constant_steps_1_2', 'figure')
    """
    stem = re.sub(r"[^\w.\-]+", "_", name).strip("._") or "figure"
    if len(stem.encode()) <= _LONGEST_STEM:
        return stem
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{stem.encode()[: _LONGEST_STEM - 9].decode(errors='ignore')}_{digest}"


def unique_stems(names: list[str]) -> list[str]:
    """Return a file stem for every name; one that is taken gets a number.

    >>> unique_stems(["a b", "a_b", "c"])
    ['a_b', 'a_b-2', 'c']
    """
    stems: list[str] = []
    for name in names:
        stem, number = file_stem(name), 2
        while stem in stems:
            stem, number = f"{file_stem(name)}-{number}", number + 1
        stems.append(stem)
    return stems
