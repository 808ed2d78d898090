"""The file of a store: its lock, its header, and SQLite's errors as sentences."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from isotherm.errors import StoreError, UserError
from isotherm.running.file_lock import lock_now

_DAMAGED = "the file is damaged; restore it from a copy, or move it away and start again"
_NOT_WRITABLE = "it cannot be written; check the permissions of the file and its folder"
_HELD = "another program holds it; close that and run again"
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "beegfs", "gpfs", "ceph", "afs", "glusterfs")
# By SQLite's primary error code.
_REMEDIES = {
    sqlite3.SQLITE_FULL: "no space is left; what was stored is intact: free some space and run the same command again",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _NOT_WRITABLE,
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
}


_held: weakref.WeakSet[IO[str]] = weakref.WeakSet()


def _let_go() -> None:
    """Close the locks in a process that was forked, which would hold them beyond the death of its parent."""
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_let_go)


def checked_path(path: object) -> Path:
    """Return the path of a store."""
    if not isinstance(path, str | os.PathLike):
        raise StoreError(f"a store is a path, not {type(path).__name__}; name a file, e.g. store='results.sqlite'")
    return Path(path)


def stores_like(file: Path) -> str:
    """Return what to do about a store that is not there: the nearest that is."""
    folder = file if file.is_dir() else file.parent
    names = [] if not folder.is_dir() else sorted(found.name for found in folder.glob("*.sqlite") if found.is_file())
    with_suffix = file.name + ".sqlite"
    if not file.is_dir() and with_suffix in names:
        return f"did you mean {file.with_name(with_suffix)}?"
    if names:
        what = "it is a folder" if file.is_dir() else "check the path"
        return f"{what}; stores in {folder}: {', '.join(names)}"
    return "check the path, or create one with `isotherm run STUDY --store FILE`"


def take_lock(file: Path) -> IO[str]:
    """Take the lock of a store, or say who holds it; the operating system releases it when this process ends.

    Args:
        file: the store, links resolved: its lock has the same name under whatever name it is opened.
    """
    _refuse_hard_links(file)
    path = file.with_name(file.name + ".lock")
    try:
        lock = path.open("a+")
    except OSError as error:
        raise StoreError(
            f"the store {file} cannot be written: {error.strerror} ({path}); choose a folder you may write to"
        ) from error
    try:
        lock_now(lock)
    except OSError as error:
        lock.seek(0)
        owner = " ".join(lock.read(1_000).split()) or "unknown"
        lock.close()
        raise StoreError(
            f"the store {file} is being written by another process (pid {owner}); wait for it, or use another store"
        ) from error
    try:
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        lock.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # closing tries once more to write what did not fit
            lock.close()
        raise StoreError(f"the store {file} cannot be written: {error.strerror} ({path}); make room first") from error
    return lock


def _refuse_hard_links(file: Path) -> None:
    """Refuse a file with two names: each has its own lock and journal, so that two writers would ruin it."""
    try:
        num_names = file.stat().st_nlink
    except OSError:  # it is yet to be made
        return
    if num_names > 1:
        raise StoreError(
            f"the store {file} has {num_names} names (hard links), and another program may write it under another one; "
            f"make a copy and write that: cp {file} {file.with_name(file.stem + '-copy' + file.suffix)}"
        )


def journal_mode(file: Path) -> str:
    """Return how SQLite may keep a store consistent: a write-ahead log, but not where other machines see the disk.

    The log's index is shared memory, which a network disk does not share between machines.
    """
    return "DELETE" if file_system(file) in _NETWORK or file_system(file).startswith("fuse.") else "WAL"


def file_system(file: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the kind of file system that a file is on, e.g. "ext4"; nothing where the system does not say.

    The longest mount point that holds the file counts, of equal ones the last.
    """
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    folder, found = str(file.parent.absolute()) + "/", ("", "")
    for line in lines:
        place, _, kind = line.partition(" - ")
        fields = place.split()
        if len(fields) > 4 and kind:
            point = _unescaped(fields[4]).rstrip("/") + "/"
            if folder.startswith(point) and len(point) >= len(found[0]):
                found = point, kind.split()[0]
    return found[1]


def _unescaped(text: str) -> str:
    r"""Return a path of the mount table as it is.

    >>> _unescaped(r"/media/my\040disk")
    '/media/my disk'
    """
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def check_header(file: Path) -> None:
    """Refuse a file that is not SQLite before SQLite touches it."""
    try:
        if not file.exists() or file.stat().st_size == 0:
            return
        with file.open("rb") as stream:
            header = stream.read(16)
    except OSError as error:
        raise StoreError(f"the store {file} cannot be read: {error.strerror}; check its permissions") from error
    if header != b"SQLite format 3\x00":
        raise StoreError(
            f"{file} is not a store: it does not start as an SQLite file does; it may be damaged, or be another file. "
            "Restore it from a copy, or choose another path"
        )


@contextmanager
def translated(file: Path) -> Iterator[None]:
    """Turn SQLite's errors into sentences."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more than a remedy needs
        remedy = _REMEDIES.get(code, "check the disk and the file's permissions")
        raise StoreError(f"the store {file}: {error}; {remedy}") from error
    except UserError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the store {file} holds a damaged row ({error}), changed by another program or a failing disk: "
            "restore it from a copy"
        ) from error
