"""The numbers of all runs of a store, packed as `RECORD`s: written with every put, read in one go.

A row of the table holds the runs of one task that were put together, with a checksum. New rows come after all others
and are never changed, so a reader may ask for what came after the last row that it knows.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from isotherm.core.json import exact_json
from isotherm.core.run_table import RECORD, Records, record_of
from isotherm.running.store_rows import StoredRun

FIELDS = ",".join(RECORD.names or ())
# Of a provenance: what many runs share and reports tell.
ORIGIN = ("isotherm", "torch", "device", "num_threads", "fleet_size")
Ids = tuple[str, str]
_OF_TASKS = """ FROM numbers WHERE id > ? AND id <= ?
    AND (? IS NULL OR data_id || ' ' || model_id IN
        (SELECT json_extract(value, '$[0]') || ' ' || json_extract(value, '$[1]') FROM json_each(?)))"""
_NUM_RUNS = "SELECT COALESCE(SUM(num), 0)" + _OF_TASKS
_PACKED = "SELECT num, fields, records, checksum" + _OF_TASKS + " ORDER BY id"

# Many small rows are packed into few large ones when a store is opened for writing.
MOST_ROWS = 5_000
RUNS_PER_ROW = 20_000


class DamagedNumbersError(Exception):
    """Packed numbers are not what was written."""


def put_numbers(cursor: sqlite3.Cursor, runs: Sequence[tuple[str, bytes, StoredRun]]) -> None:
    """Pack runs, each given with its key and what identifies its cell."""
    groups: dict[Ids, list[tuple[Any, ...]]] = {}
    origins: dict[str, int] = {}
    for key, cell, run in runs:
        content = exact_json({name: run.provenance[name] for name in ORIGIN if name in run.provenance})
        if content not in origins:
            origins[content] = _origin(cursor, content)
        spec = run.spec
        record = record_of(spec, run.result, key=key, cell=cell, origin=origins[content])
        groups.setdefault((spec.data_id, spec.model_id), []).append(record)
    for ids, records in groups.items():
        _insert(cursor, ids, np.array(records, dtype=RECORD))


def read_numbers(
    connection: sqlite3.Connection, tasks: Iterable[Ids] | None = None, *, after: int = 0
) -> tuple[Records, int]:
    """Return the records of some tasks, or all, in the order in which they were stored, and the last row's number.

    Args:
        connection: to the store.
        tasks: (data_id, model_id) of those wanted; all by default.
        after: leaves out rows up to this one.

    Raises:
        DamagedNumbersError: a row is not what was written.
    """
    wanted = None if tasks is None else exact_json(list(tasks))
    (last,) = connection.execute("SELECT COALESCE(MAX(id), 0) FROM numbers").fetchone()
    (num_runs,) = connection.execute(_NUM_RUNS, (after, last, wanted, wanted)).fetchone()
    records, filled = np.empty(num_runs, dtype=RECORD), 0
    for num, fields, content, expected in connection.execute(_PACKED, (after, last, wanted, wanted)):
        if filled + num > num_runs or (fields, zlib.crc32(content)) != (FIELDS, expected):
            raise DamagedNumbersError
        records[filled : filled + num] = np.frombuffer(content, dtype=RECORD)
        filled += num
    return records[:filled], last


def read_origins(connection: sqlite3.Connection) -> dict[int, Mapping[str, Any]]:
    """Return how runs were trained, by the number in their records."""
    rows = connection.execute("SELECT id, content FROM origins").fetchall()
    return {number: json.loads(content) for number, content in rows}


def pack_rows(cursor: sqlite3.Cursor) -> None:
    """Pack many small rows into few large ones."""
    num, runs = cursor.execute("SELECT COUNT(*), COALESCE(SUM(num), 0) FROM numbers").fetchone()
    if num <= MOST_ROWS or runs > num * RUNS_PER_ROW // 2:
        return
    (last,) = cursor.execute("SELECT MAX(id) FROM numbers").fetchone()
    for ids in cursor.execute("SELECT DISTINCT data_id, model_id FROM numbers").fetchall():
        records, _ = read_numbers(cursor.connection, [ids])
        for start in range(0, len(records), RUNS_PER_ROW):
            _insert(cursor, ids, records[start : start + RUNS_PER_ROW])
    cursor.execute("DELETE FROM numbers WHERE id <= ?", (last,))


def _insert(cursor: sqlite3.Cursor, ids: Ids, records: Records) -> None:
    content = records.tobytes()
    cursor.execute(
        "INSERT INTO numbers (data_id, model_id, num, fields, records, checksum) VALUES (?, ?, ?, ?, ?, ?)",
        (*ids, len(records), FIELDS, content, zlib.crc32(content)),
    )


def _origin(cursor: sqlite3.Cursor, content: str) -> int:
    cursor.execute("INSERT OR IGNORE INTO origins (content) VALUES (?)", (content,))
    (number,) = cursor.execute("SELECT id FROM origins WHERE content = ?", (content,)).fetchone()
    return int(number)
