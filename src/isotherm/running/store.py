"""The store: one SQLite file with every run under the hash of what determines it.

Contract. One writer at a time, which holds a lock that the operating system releases when the writer dies; any number
of readers. When `put` returns, its runs are on disk, all or none of them: `kill -9` loses only what was never put. A
finished or diverged run is never overwritten; a failed one may be. A store of a newer schema is refused; one of an
earlier schema is migrated when it is opened for writing.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from isotherm.core.json import exact_json
from isotherm.core.records import Identity, Outcome, RunResult
from isotherm.core.run_keys import cell_id
from isotherm.core.run_table import RECORD, RunTable, record_of
from isotherm.errors import StoreError
from isotherm.running.store_file import check_header, checked_path, journal_mode, stores_like, take_lock, translated
from isotherm.running.store_guard import FileGuard, rescued
from isotherm.running.store_numbers import DamagedNumbersError, Ids, pack_rows, put_numbers, read_numbers, read_origins
from isotherm.running.store_rows import (
    ALL_ROWS,
    EARLIER_ROWS,
    IN_ORDER,
    WITH_KEYS,
    Row,
    StoredRun,
    insertable,
    is_sound,
    packable,
    result_of,
    run_of,
    text_checksum,
)
from isotherm.running.store_schema import APPLICATION_ID, SCHEMA_VERSION, create, migrate, pack_again

_IN_MEMORY = ":memory:"
_OUTCOMES = "SELECT key, outcome FROM runs WHERE key IN (SELECT value FROM json_each(?))"
_INSERT = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_STUDIES = "SELECT name, definition, checksum FROM studies ORDER BY stored_at"
_EARLIER_STUDIES = "SELECT name, definition, NULL FROM studies ORDER BY stored_at"
logger = logging.getLogger("isotherm")

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "Store", "StoredRun"]


class Store:
    """Results by key. Open it with `Store.write`, `Store.read` or `Store.in_memory`; close it or use it in a `with`."""

    def __init__(self, connection: sqlite3.Connection, *, path: str, lock: IO[str] | None = None) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._is_closed = False
        self._guard: FileGuard | None = None
        # What this process put, should the file be lost.
        self._put: list[StoredRun] = []
        self._studies_put: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        try:
            (num,) = self._connection.execute("SELECT count(*) FROM runs").fetchone()
        except sqlite3.Error:  # closed, or another program has written over it
            return f"Store({self.path!r}: closed)"
        return f"Store({self.path!r}: {num:,} runs)"

    @classmethod
    def write(cls, path: str | os.PathLike[str]) -> Self:
        """Open for writing and create if absent; refused while another process writes."""
        file = Path(os.path.realpath(checked_path(path)))  # a link, or another folder later on, changes nothing
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
                connection.execute(f"PRAGMA journal_mode = {journal_mode(file)}")
                connection.execute("PRAGMA synchronous = FULL")
            store._create_schema()
            store._raise_schema()
            store._tidy()
            store._guard = FileGuard(file)
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
        file = file.absolute()  # also after the folder has changed
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
        keyed: dict[str, StoredRun] = {}
        for run in runs:  # of equal ones the first stays, unless it failed
            key = run.spec.key
            if key not in keyed or keyed[key].result.outcome is Outcome.FAILED:
                keyed[key] = run
        rows = {key: insertable(run, key) for key, run in keyed.items()}
        self._put += keyed.values() if self._guard is not None else []
        self.check_file()
        try:
            self._insert(keyed, rows)
        except StoreError:
            self.check_file()
            raise
        self.check_file()

    def _insert(self, keyed: Mapping[str, StoredRun], rows: Mapping[str, tuple[Any, ...]]) -> None:
        with self._transaction() as cursor:
            known = cursor.execute(_OUTCOMES, (exact_json(list(keyed)),)).fetchall()
            there = {key: Outcome(outcome) for key, outcome in known}
            new = [key for key in keyed if there.get(key) in (None, Outcome.FAILED)]
            cursor.executemany(_INSERT, [rows[key] for key in new])
            put_numbers(cursor, [(key, cell_id(keyed[key].spec), keyed[key]) for key in new])
            _tally(cursor, [there[key] for key in new if key in there], -1)
            _tally(cursor, [keyed[key].result.outcome for key in new], 1)

    def check_file(self) -> None:
        """Make sure that what was stored is in the file of this name; else save it beside it.

        Raises:
            StoreError: the file was deleted, emptied or replaced since it was opened; the message says what was saved.
        """
        fault = None if self._guard is None else self._guard.fault()
        if fault is None:
            return
        self._guard = None
        file = Path(self.path)
        saved = rescued(file, self._connection, self._write_known)
        if saved is None:
            raise StoreError(f"the store {file} was {fault} while it was written, and {file.parent} cannot be written")
        raise StoreError(
            f"the store {file} was {fault} while it was written; what it held was saved to {saved}: move that file "
            f"back to {file.name} and run the same command again, which goes on from there"
        )

    def _write_known(self, path: Path) -> None:
        """Write what this process put, and the studies, to another file."""
        with Store.write(path) as store:
            store.put(self._put)
            for name, definition in self._studies_put.items():
                store.put_study(name, definition)

    def results(self) -> dict[str, RunResult]:
        """Return every result by key: an object for every run, where `table` has numbers."""
        with translated(Path(self.path)):
            return {row[0]: result_of(row) for row in self._sound_rows()}

    def results_of(self, keys: Iterable[str]) -> dict[str, RunResult]:
        """Return the results of some runs by key; those that are not stored are left out."""
        with translated(Path(self.path)):
            return {row[0]: result_of(row) for row in self._sound_rows(list(keys))}

    def table(self, tasks: Iterable[Ids] | None = None) -> RunTable:
        """Return the numbers of all runs of some tasks, or of all: what is read of a store of many runs.

        Curves and errors are loaded from the file when they are asked for, also once this store is closed.

        Args:
            tasks: their (data_id, model_id).
        """
        if self._schema_version() < 4:
            return self._table_of_rows()
        try:
            with translated(Path(self.path)):
                records, _ = read_numbers(self._connection, tasks)
                origins = read_origins(self._connection)
        except DamagedNumbersError:
            logger.warning("the packed numbers of the store %s are damaged; its rows are read instead", self.path)
            return self._table_of_rows()
        return RunTable(records, load=self._load, origins=origins)

    def provenance(self) -> dict[str, dict[str, Any]]:
        """Return where and how every run was trained, by key."""
        with translated(Path(self.path)):
            return {row[0]: json.loads(row[4]) for row in self._sound_rows()}

    def runs(self) -> Iterator[StoredRun]:
        """Yield every run in a fixed order: by task, batch size, steps, momentum, learning rate and seed."""
        with translated(Path(self.path)):
            found = [run_of(row) for row in self._sound_rows(order=IN_ORDER)]
        yield from found

    def counts(self) -> dict[Outcome, int]:
        """Return the number of runs by outcome."""
        query = "SELECT outcome, num FROM tallies"
        if self._schema_version() < 4:
            query = "SELECT outcome, COUNT(*) FROM runs GROUP BY outcome"
        with translated(Path(self.path)):
            rows = dict(self._connection.execute(query).fetchall())
        return {outcome: rows.get(str(outcome), 0) for outcome in Outcome}

    def discard_damaged(self, keys: Sequence[str] | None = None) -> list[str]:
        """Remove rows that are not as they were written, so that their runs are trained again; return their keys.

        Args:
            keys: of the rows to look at; all by default.
        """
        with self._transaction() as cursor:
            damaged = [(row[0], row[1]) for row in self._rows(keys) if not is_sound(row)]
            if damaged:
                cursor.executemany("DELETE FROM runs WHERE key = ?", [(key,) for key, _ in damaged])
                pack_again(cursor)
                cursor.execute("DELETE FROM tallies")
                cursor.execute("INSERT INTO tallies SELECT outcome, COUNT(*) FROM runs GROUP BY outcome")
        return [key for key, _ in damaged]

    def num_changes(self) -> int:
        """Return a number that differs after another connection has written, for one that only reads."""
        with translated(Path(self.path)):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def put_study(self, name: str, definition: dict[str, Any]) -> None:
        """Store what a study asks for, so that status and reports need only the store."""
        text = exact_json(definition)
        self._studies_put[name] = definition
        with self._transaction() as cursor:
            (last,) = cursor.execute("SELECT COALESCE(MAX(stored_at), 0) FROM studies").fetchone()
            now = max(time.time(), math.nextafter(last, math.inf))  # a clock may be set back
            cursor.execute(
                "INSERT OR REPLACE INTO studies VALUES (?, ?, ?, ?)", (name, text, now, text_checksum(name, text))
            )

    def remove_study(self, name: str) -> None:
        """Forget what a study asks for; its runs stay."""
        self._studies_put.pop(name, None)
        with self._transaction() as cursor:
            cursor.execute("DELETE FROM studies WHERE name = ?", (name,))

    def studies(self) -> dict[str, dict[str, Any]]:
        """Return the definitions of the studies run into this store, by name."""
        query = _EARLIER_STUDIES if self._schema_version() < 4 else _STUDIES
        with translated(Path(self.path)):
            found = {}
            for name, definition, expected in self._connection.execute(query).fetchall():
                if expected in (None, text_checksum(name, definition)):
                    found[name] = json.loads(definition)
                else:
                    logger.warning(
                        "the definition of the study %r in %s is damaged and is not used: run the study again, which "
                        "writes it anew; its runs are kept",
                        name,
                        self.path,
                    )
            return found

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
            if self._schema_version() < 4:
                rows = self._connection.execute("SELECT spec FROM runs").fetchall()
                return sum(json.loads(spec)["model_id"] not in known for (spec,) in rows)
            tasks = self._connection.execute("SELECT DISTINCT data_id, model_id FROM numbers").fetchall()
        unknown = [ids for ids in tasks if ids[1] not in known]
        return len(self.table(unknown)) if unknown else 0

    def close(self) -> None:
        """Close the file and let the next writer in."""
        self._connection.close()
        self._is_closed = True
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
                create(cursor)

    def _raise_schema(self) -> None:
        """Migrate a store of an earlier schema; what its rows say stays as it is."""
        if (version := self._schema_version()) < SCHEMA_VERSION:
            with self._transaction() as cursor:
                migrate(cursor, version)

    def _tidy(self) -> None:
        """Pack the numbers of many small fleets together, or anew where they are damaged."""
        with self._transaction() as cursor:
            try:
                pack_rows(cursor)
                read_numbers(self._connection)
            except DamagedNumbersError:
                logger.warning("the packed numbers of the store %s were damaged; they were made anew", self.path)
                pack_again(cursor)

    def _rows(self, keys: Sequence[str] | None = None, *, order: str = "") -> Iterator[Row]:
        """Yield some rows, or all."""
        query = ALL_ROWS if self._schema_version() >= 4 else EARLIER_ROWS
        if keys is None:
            yield from self._connection.execute(query + order)
        else:
            yield from self._connection.execute(query + WITH_KEYS, (exact_json(list(keys)),))

    def _sound_rows(self, keys: Sequence[str] | None = None, *, order: str = "") -> Iterator[Row]:
        """Yield rows that are as they were written; of the others it is said that they are not used."""
        for row in self._rows(keys, order=order):
            if is_sound(row):
                yield row
            else:
                logger.warning(
                    "the row of run %s in %s is damaged (its checksum does not match) and is not used: "
                    "run its study again, which trains it anew",
                    str(row[0])[:12],
                    self.path,
                )

    def _table_of_rows(self) -> RunTable:
        """Return the table made from rows alone; for stores of earlier schemas, and damaged ones."""
        with translated(Path(self.path)):
            packed = [found for row in self._sound_rows() if (found := packable(row)) is not None]
        origins = {number: run.provenance for number, (_, _, run) in enumerate(packed)}
        records = [
            record_of(run.spec, run.result, key=key, cell=cell, origin=number)
            for number, (key, cell, run) in enumerate(packed)
        ]
        return RunTable(np.array(records, dtype=RECORD), load=self._load, origins=origins)

    def _load(self, keys: Sequence[str]) -> Mapping[str, RunResult]:
        """Return full results by key, from the file if this store is closed."""
        if not self._is_closed:
            return self.results_of(keys)
        with Store.read(self.path) as store:
            return store.results_of(keys)

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


def _tally(cursor: sqlite3.Cursor, outcomes: Sequence[Outcome], sign: int) -> None:
    """Count runs that came or went."""
    for outcome in set(outcomes):
        change = sign * outcomes.count(outcome)
        cursor.execute(
            "INSERT INTO tallies VALUES (?, ?) ON CONFLICT (outcome) DO UPDATE SET num = num + excluded.num",
            (str(outcome), change),
        )
