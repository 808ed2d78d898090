"""A run as a row of a store: its columns, and the checksum by which a damaged row is known."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isotherm.core.json import exact_json
from isotherm.core.records import RunResult, RunSpec
from isotherm.core.run_keys import CELL_ID_BYTES, cell_id

# What is read of a row, in the order in which the functions below expect it; earlier schemas have no checksum.
ALL_ROWS = "SELECT key, outcome, spec, result, provenance, checksum FROM runs"
EARLIER_ROWS = "SELECT key, outcome, spec, result, provenance, NULL FROM runs"
WITH_KEYS = " WHERE key IN (SELECT value FROM json_each(?))"
IN_ORDER = " ORDER BY task, batch_size, num_steps, momentum, effective_learning_rate, seed, key"
Row = Sequence[Any]
NEVER = -1  # the checksum of no row: one of an earlier schema that could not be read


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A stored run; `provenance` records how it was computed and is not part of its identity."""

    spec: RunSpec
    result: RunResult
    provenance: dict[str, Any]


def insertable(run: StoredRun, key: str) -> tuple[Any, ...]:
    """Return all columns of a run's row."""
    spec = run.spec
    outcome = str(run.result.outcome)
    texts = [exact_json(content) for content in (spec.to_json(), run.result.to_json(), run.provenance)]
    axes = (spec.batch_size, spec.num_steps, spec.effective_learning_rate, spec.momentum, spec.seed)
    return (key, outcome, spec.task, *axes, *texts, time.time(), text_checksum(key, outcome, *texts))


def checksum(row: Row) -> int:
    """Return the checksum that a row should have."""
    return text_checksum(*row[:5])


def text_checksum(*texts: Any) -> int:
    """Return the CRC-32 of some texts and where they are divided."""
    return zlib.crc32("\x1f".join(map(str, texts)).encode(errors="surrogatepass"))


def is_sound(row: Row) -> bool:
    """Tell whether a row is as it was written, as far as is known: rows of earlier schemas had no checksum."""
    return row[5] is None or row[5] == checksum(row)


def run_of(row: Row) -> StoredRun:
    """Return the run of a row."""
    return StoredRun(spec=RunSpec.from_json(json.loads(row[2])), result=result_of(row), provenance=json.loads(row[4]))


def result_of(row: Row) -> RunResult:
    """Return the result of a row."""
    return RunResult.from_json(json.loads(row[3]))


def packable(row: Row) -> tuple[str, bytes, StoredRun] | None:
    """Return key, cell and run of a row; None where it cannot be read.

    The key of a row may be one that its run had in an earlier version; then it belongs to no cell of the present.
    """
    try:
        run, key = run_of(row), str(row[0])
        return key, cell_id(run.spec) if run.spec.key == key else bytes.fromhex(key)[:CELL_ID_BYTES], run
    except (ValueError, KeyError, TypeError):
        return None
