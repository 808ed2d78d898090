"""SQLite's errors as sentences: by their codes, whatever their words."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from isotherm.errors import StoreError
from isotherm.running.store_file import translated

FILE = Path("results.sqlite")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "what was stored is intact: free some space"),
        (sqlite3.SQLITE_CORRUPT, "the file is damaged"),
        (sqlite3.SQLITE_CORRUPT_VTAB, "the file is damaged"),
        (sqlite3.SQLITE_NOTADB, "the file is damaged"),
        (sqlite3.SQLITE_READONLY, "it cannot be written"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "it cannot be written"),
        (sqlite3.SQLITE_CANTOPEN, "it cannot be written"),
        (sqlite3.SQLITE_BUSY, "another program holds it"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "another program holds it"),
        (sqlite3.SQLITE_LOCKED, "another program holds it"),
        (sqlite3.SQLITE_IOERR, "check the disk"),
    ],
)
def test_the_code_of_an_error_says_what_to_do(code: int, words: str) -> None:
    error = sqlite3.OperationalError("words that may change: full, locked, malformed")
    error.sqlite_errorcode = code
    with (
        pytest.raises(StoreError, match=f"the store results.sqlite: words that may change.*; .*{words}"),
        translated(FILE),
    ):
        raise error


def test_an_error_without_a_code_is_translated_too() -> None:
    connection = sqlite3.connect(":memory:")
    connection.close()
    with pytest.raises(StoreError, match=r"closed database\.?; check the disk"), translated(FILE):
        connection.execute("SELECT 1")


def test_errors_of_python_code_pass() -> None:
    with pytest.raises(ZeroDivisionError), translated(FILE):
        1 / 0  # noqa: B018
