"""The tables of a store, and how a store of an earlier schema becomes one of the present.

`runs` is what was trained, one row for every run. `numbers` holds the same runs' numbers again, packed as `RECORD`s in
the order in which they were stored: what status and analysis read. It can be made from `runs` at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from isotherm.core.json import exact_json
from isotherm.running.store_numbers import put_numbers
from isotherm.running.store_rows import ALL_ROWS, NEVER, WITH_KEYS, checksum, is_sound, packable, text_checksum

# 2: clipping, training metric and others in the rows. 3: the parts of the keys, which are unknown for earlier rows.
# 4: checksums, and the numbers of all runs packed.
SCHEMA_VERSION = 4
APPLICATION_ID = 0x1507EE43  # tells a store from any other SQLite file

_RUNS = """
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    outcome TEXT NOT NULL CHECK (outcome IN ('finished', 'diverged', 'failed')),
    task TEXT NOT NULL,
    batch_size INTEGER NOT NULL,
    num_steps INTEGER NOT NULL,
    effective_learning_rate REAL NOT NULL,
    momentum REAL NOT NULL,
    seed INTEGER NOT NULL,
    spec TEXT NOT NULL,
    result TEXT NOT NULL,
    provenance TEXT NOT NULL,
    stored_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE studies (
    name TEXT PRIMARY KEY,
    definition TEXT NOT NULL,
    stored_at REAL NOT NULL
) WITHOUT ROWID;
"""
# The parts behind every data_id and model_id in the rows.
_PARTS = """
CREATE TABLE parts (
    id TEXT PRIMARY KEY,
    content TEXT NOT NULL
) WITHOUT ROWID;
"""
# A row without a checksum has none to be compared with. An origin is what provenances have in common.
_NUMBERS = """
ALTER TABLE runs ADD COLUMN checksum INTEGER;
ALTER TABLE studies ADD COLUMN checksum INTEGER;
CREATE TABLE numbers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    data_id TEXT NOT NULL,
    model_id TEXT NOT NULL,
    num INTEGER NOT NULL,
    fields TEXT NOT NULL,
    records BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX numbers_of_task ON numbers (data_id, model_id, num);
CREATE TABLE origins (
    id INTEGER PRIMARY KEY,
    content TEXT NOT NULL UNIQUE
);
CREATE TABLE tallies (
    outcome TEXT PRIMARY KEY,
    num INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO tallies SELECT outcome, COUNT(*) FROM runs GROUP BY outcome;
"""
_ROWS_AT_ONCE = 10_000


def create(cursor: sqlite3.Cursor) -> None:
    """Make the tables of an empty store."""
    _execute(cursor, _RUNS + _PARTS + _NUMBERS)
    cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    cursor.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def migrate(cursor: sqlite3.Cursor, version: int) -> None:
    """Bring a store to the present schema; what its rows say stays as it is."""
    if version < 3:
        _execute(cursor, _PARTS)
    if version < 4:
        _execute(cursor, _NUMBERS)
        for name, definition in cursor.execute("SELECT name, definition FROM studies").fetchall():
            cursor.execute("UPDATE studies SET checksum = ? WHERE name = ?", (text_checksum(name, definition), name))
        _fill(cursor)
    cursor.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _fill(cursor: sqlite3.Cursor) -> None:
    """Give every row a checksum, and pack its numbers."""
    keys = [key for (key,) in cursor.execute("SELECT key FROM runs").fetchall()]
    for start in range(0, len(keys), _ROWS_AT_ONCE):
        some = keys[start : start + _ROWS_AT_ONCE]
        rows = cursor.execute(ALL_ROWS + WITH_KEYS, (exact_json(some),)).fetchall()
        packed = [packable(row) for row in rows]
        sums = [(NEVER if found is None else checksum(row), row[0]) for row, found in zip(rows, packed, strict=True)]
        cursor.executemany("UPDATE runs SET checksum = ? WHERE key = ?", sums)
        put_numbers(cursor, [found for found in packed if found is not None])


def pack_again(cursor: sqlite3.Cursor) -> None:
    """Make the packed numbers of all runs anew from their rows; damaged rows are left out."""
    cursor.execute("DELETE FROM numbers")
    rows = cursor.connection.cursor().execute(ALL_ROWS)
    while some := rows.fetchmany(_ROWS_AT_ONCE):
        put_numbers(cursor, [found for row in some if is_sound(row) and (found := packable(row)) is not None])


def _execute(cursor: sqlite3.Cursor, script: str) -> None:
    """Execute statements without leaving the transaction."""
    for statement in _statements(script):
        cursor.execute(statement)


def _statements(script: str) -> Iterable[str]:
    return [part for part in (piece.strip() for piece in script.split(";")) if part]
