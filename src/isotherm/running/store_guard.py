"""Notices when the file of a store is deleted, emptied or replaced under its writer, and saves what it held.

A program that opened a file keeps it, whatever happens to its name: SQLite would go on writing what nobody finds again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from isotherm.errors import StoreError


class FileGuard:
    """Knows which file a writer opened, and how large it has been.

    Args:
        file: the store, links resolved.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        status = file.stat()
        self._inode, self._size = (status.st_dev, status.st_ino), status.st_size

    def fault(self) -> str | None:
        """Return what has happened to the file; None if nothing has."""
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return "deleted"
        except OSError as error:
            return f"lost ({error.strerror})"
        if (status.st_dev, status.st_ino) != self._inode:
            return "replaced by another file"
        if status.st_size < self._size:
            return "emptied" if status.st_size == 0 else "cut off"
        self._size = status.st_size
        return None


def rescued(file: Path, connection: sqlite3.Connection, write_known: Callable[[Path], None]) -> Path | None:
    """Save what a lost store held beside it; return where, or None where that cannot be written either.

    Args:
        file: the store.
        connection: to the file that was opened, which still has everything unless it was emptied.
        write_known: writes what this process put, to a path; for a file that was.
    """
    path = _free(file)
    try:
        connection.execute("VACUUM INTO ?", (str(path),))
        _check(path)
    except (sqlite3.Error, StoreError):
        path.unlink(missing_ok=True)
        try:
            write_known(path)
        except (OSError, sqlite3.Error, StoreError):
            return None
    return path


def _check(path: Path) -> None:
    """Refuse a copy that is no whole store."""
    connection = sqlite3.connect(path)
    try:
        if connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise StoreError(f"{path} is damaged")
        connection.execute("SELECT COUNT(*) FROM tallies").fetchone()
    finally:
        connection.close()


def _free(file: Path) -> Path:
    """Return the first name beside a store that no file has."""
    number = 1
    while os.path.lexists(path := file.with_name(f"{file.stem}.rescued-{number}{file.suffix}")):
        number += 1
    return path
