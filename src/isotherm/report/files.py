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


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> Path:
    """Write a temporary file, then move it to its path; folders are created as needed.

    Of a symbolic link the file it names is replaced, and the link stays. A terminal, `/dev/null` and other character
    devices are written to, never replaced.

    Args:
        path: of the file.
        content: in one piece, or in pieces for what is too large.

    Raises:
        UserError: it cannot be written, or there is a folder, a pipe or something else there that is no file.
    """
    pieces = [content] if isinstance(content, bytes) else content
    try:
        if require_writable(path):
            with path.open("wb") as device:
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
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; choose a folder you may write to, with space left"
        ) from error
    return path


def require_writable(path: Path) -> bool:
    """Refuse what is there and is neither a file nor a character device; return whether it is such a device.

    A pipe would block until somebody reads it, or be replaced by a file behind its reader's back.

    Raises:
        UserError: there is a folder, a pipe, a socket or a block device, or it may not be looked at.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # also a link to a file that is yet to be written
        return False
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name another file") from error
    if stat.S_ISREG(mode) or stat.S_ISCHR(mode):
        return stat.S_ISCHR(mode)
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a disk"}
    raise UserError(
        f"{path} is {kinds.get(stat.S_IFMT(mode), 'something else')}, not a file; name a new file, or one to replace"
    )


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
