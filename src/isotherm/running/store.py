"""The store: one SQLite file with every run under the hash of what determines it.

Contract. One writer at a time, which holds a lock that the operating system releases when the writer dies; any number
of readers. When `put` returns, its runs are on disk, all or none of them: `kill -9` loses only what was never put. A
finished or diverged run is never overwritten; a failed one may be. A store of a newer schema is refused; one of an
earlier schema is migrated when it is opened for writing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from isotherm.core.json import exact_json
from isotherm.core.records import Identity, Outcome, RunResult, RunSpec
from isotherm.errors import StoreError
from isotherm.running.store_file import check_header, checked_path, stores_like, take_lock, translated

# 2: clipping, training metric and others in the rows. 3: the parts of the keys, which are unknown for earlier rows.
SCHEMA_VERSION = 3
APPLICATION_ID = 0x1507EE43  # tells a store from any other SQLite file
_IN_MEMORY = ":memory:"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
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
CREATE TABLE IF NOT EXISTS studies (
    name TEXT PRIMARY KEY,
    definition TEXT NOT NULL,
    stored_at REAL NOT NULL
) WITHOUT ROWID;
"""
# The parts behind every data_id and model_id in the rows.
_SCHEMA_OF_PARTS = """
CREATE TABLE IF NOT EXISTS parts (
    id TEXT PRIMARY KEY,
    content TEXT NOT NULL
) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A stored run; `provenance` records how it was computed and is not part of its identity."""

    spec: RunSpec
    result: RunResult
    provenance: dict[str, Any]


class Store:
    """Results by key. Open it with `Store.write`, `Store.read` or `Store.in_memory`; close it or use it in a `with`."""

    def __init__(self, connection: sqlite3.Connection, *, path: str, lock: IO[str] | None = None) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock

    def __repr__(self) -> str:
        try:
            (num,) = self._connection.execute("SELECT count(*) FROM runs").fetchone()
        except sqlite3.Error:  # closed, or another program has written over it
            return f"Store({self.path!r}: closed)"
        return f"Store({self.path!r}: {num:,} runs)"

    @classmethod
    def write(cls, path: str | os.PathLike[str]) -> Self:
        """Open for writing and create if absent; refused while another process writes."""
        file = checked_path(path)
        if file.is_dir():
            raise StoreError(f"the store {file} is a folder; name a file, e.g. {file / 'results.sqlite'}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the folder {file.parent} cannot be created: {error.strerror}; choose another folder"
            ) from error
        check_header(file)
        if file.exists() and not os.access(file, os.W_OK):
            raise StoreError(f"the store {file} is read-only; change its permissions or choose another file")
        lock = take_lock(file)
        try:
            with translated(file):
                connection = sqlite3.connect(file, isolation_level=None, timeout=30.0)
            store = cls(connection, path=str(file), lock=lock)
        except BaseException:
            lock.close()
            raise
        try:
            if not store._is_empty():  # before the first write: a refused file stays unchanged
                store._check_schema()
            with translated(file):
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
            store._create_schema()
            store._raise_schema()
            return store
        except BaseException:
            store.close()
            raise

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Open for reading while others may write; needs no write permission."""
        file = checked_path(path)
        if not file.is_file():
            raise StoreError(f"there is no store at {file}; {stores_like(file)}")
        check_header(file)
        # SQLite needs to write beside a WAL file even to read it; without permission the file itself must do. With it,
        # a connection that may write tidies up behind itself when it is the last.
        option = "mode=rw" if os.access(file, os.W_OK) else "mode=ro"
        option = option if os.access(file.parent, os.W_OK) else "immutable=1"
        journal = file.with_name(file.name + "-wal")
        if option == "immutable=1" and journal.exists() and journal.stat().st_size > 0:
            raise StoreError(
                f"the store {file} lies in a read-only folder, and its last runs are still in {journal.name}; "
                "copy both files to a folder you may write to and read the copy"
            )
        with translated(file):
            uri = f"{file.resolve().as_uri()}?{option}"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30.0)
            connection.execute("PRAGMA query_only = ON")
        store = cls(connection, path=str(file))
        try:
            if store._is_empty():
                raise StoreError(f"the store {file} is empty: its writer was stopped before the first run; run again")
            store._check_schema()
            return store
        except BaseException:
            store.close()
            raise

    @property
    def is_in_memory(self) -> bool:
        """Whether the store is in memory only."""
        return self.path == _IN_MEMORY

    @classmethod
    def in_memory(cls) -> Self:
        """Open a store that lives as long as the object."""
        store = cls(sqlite3.connect(_IN_MEMORY, isolation_level=None), path=_IN_MEMORY)
        store._create_schema()
        return store

    def put(self, runs: Sequence[StoredRun]) -> None:
        """Store runs, all or none of them; finished and diverged runs already there stay as they are."""
        rows = [
            (
                run.spec.key,
                str(run.result.outcome),
                run.spec.task,
                run.spec.batch_size,
                run.spec.num_steps,
                run.spec.effective_learning_rate,
                run.spec.momentum,
                run.spec.seed,
                exact_json(run.spec.to_json()),
                exact_json(run.result.to_json()),
                exact_json(run.provenance),
                time.time(),
            )
            for run in runs
        ]
        with self._transaction() as cursor:
            cursor.executemany(
                """INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                ON CONFLICT (key) DO UPDATE SET outcome = excluded.outcome, result = excluded.result,
                    provenance = excluded.provenance, stored_at = excluded.stored_at
                WHERE runs.outcome = 'failed'""",
                rows,
            )

    def results(self) -> dict[str, RunResult]:
        """Return every result by key."""
        with translated(Path(self.path)):
            rows = self._connection.execute("SELECT key, result FROM runs").fetchall()
            return {key: RunResult.from_json(json.loads(result)) for key, result in rows}

    def provenance(self) -> dict[str, dict[str, Any]]:
        """Return where and how every run was trained, by key."""
        with translated(Path(self.path)):
            rows = self._connection.execute("SELECT key, provenance FROM runs").fetchall()
            return {key: json.loads(provenance) for key, provenance in rows}

    def runs(self) -> Iterator[StoredRun]:
        """Yield every run in a fixed order: by task, batch size, steps, momentum, learning rate and seed."""
        query = """SELECT spec, result, provenance FROM runs
            ORDER BY task, batch_size, num_steps, momentum, effective_learning_rate, seed, key"""
        with translated(Path(self.path)):
            found = [
                StoredRun(
                    spec=RunSpec.from_json(json.loads(spec)),
                    result=RunResult.from_json(json.loads(result)),
                    provenance=json.loads(provenance),
                )
                for spec, result, provenance in self._connection.execute(query)
            ]
        yield from found

    def counts(self) -> dict[Outcome, int]:
        """Return the number of runs by outcome."""
        with translated(Path(self.path)):
            rows = dict(self._connection.execute("SELECT outcome, COUNT(*) FROM runs GROUP BY outcome").fetchall())
        return {outcome: rows.get(str(outcome), 0) for outcome in Outcome}

    def outcomes(self) -> dict[str, str]:
        """Return how every run ended, by key: what has changed shows without reading the results."""
        with translated(Path(self.path)):
            return dict(self._connection.execute("SELECT key, outcome FROM runs").fetchall())

    def results_of(self, keys: Iterable[str]) -> dict[str, RunResult]:
        """Return the results of some runs by key; those that are not stored are left out."""
        found: dict[str, RunResult] = {}
        with translated(Path(self.path)):
            for key in keys:
                row = self._connection.execute("SELECT result FROM runs WHERE key = ?", (key,)).fetchone()
                if row is not None:
                    found[key] = RunResult.from_json(json.loads(row[0]))
        return found

    def num_changes(self) -> int:
        """Return a number that differs after another connection has written, for one that only reads."""
        with translated(Path(self.path)):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def put_study(self, name: str, definition: dict[str, Any]) -> None:
        """Store what a study asks for, so that status and reports need only the store."""
        with self._transaction() as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO studies VALUES (?, ?, ?)", (name, exact_json(definition), time.time())
            )

    def studies(self) -> dict[str, dict[str, Any]]:
        """Return the definitions of the studies run into this store, by name."""
        with translated(Path(self.path)):
            rows = self._connection.execute("SELECT name, definition FROM studies ORDER BY stored_at").fetchall()
            return {name: json.loads(definition) for name, definition in rows}

    def put_identity(self, identity: Identity) -> None:
        """Store the parts that the ids of a task are made of, once for all its runs."""
        rows = [
            (identity.data_id, exact_json(identity.data_parts)),
            (identity.model_id, exact_json(identity.model_parts)),
        ]
        with self._transaction() as cursor:
            cursor.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?)", rows)

    def parts(self) -> dict[str, dict[str, str]]:
        """Return the parts of every data_id and model_id, as far as they are known."""
        if self._schema_version() < 3:
            return {}
        with translated(Path(self.path)):
            rows = self._connection.execute("SELECT id, content FROM parts").fetchall()
            return {id_: json.loads(content) for id_, content in rows}

    def num_unidentified(self) -> int:
        """Return how many runs were stored by an earlier Isotherm, so that the parts of their keys are unknown."""
        known = self.parts()
        with translated(Path(self.path)):
            rows = self._connection.execute("SELECT spec FROM runs").fetchall()
            return sum(json.loads(spec)["model_id"] not in known for (spec,) in rows)

    def close(self) -> None:
        """Close the file and let the next writer in."""
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with translated(Path(self.path)):
            cursor = self._connection.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    cursor.execute("ROLLBACK")
                raise

    def _is_empty(self) -> bool:
        with translated(Path(self.path)):
            return not self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]

    def _create_schema(self) -> None:
        if self._is_empty():
            with self._transaction() as cursor:
                for statement in _statements(_SCHEMA + _SCHEMA_OF_PARTS):
                    cursor.execute(statement)
                cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                cursor.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _raise_schema(self) -> None:
        """Migrate a store of an earlier schema; its rows stay as they are."""
        if self._schema_version() < SCHEMA_VERSION:
            with self._transaction() as cursor:
                for statement in _statements(_SCHEMA_OF_PARTS):
                    cursor.execute(statement)
                cursor.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _schema_version(self) -> int:
        with translated(Path(self.path)):
            return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _check_schema(self) -> None:
        with translated(Path(self.path)):
            application = self._connection.execute("PRAGMA application_id").fetchone()[0]
        version = self._schema_version()
        if application != APPLICATION_ID:
            raise StoreError(f"{self.path} is an SQLite file, but not a store of Isotherm; choose another file")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store {self.path} was written with schema {version}, this Isotherm knows schemas up to "
                f"{SCHEMA_VERSION}; update Isotherm, or use another store"
            )


def _statements(script: str) -> Iterable[str]:
    return [part for part in (piece.strip() for piece in script.split(";")) if part]
