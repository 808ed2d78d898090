"""Every run as a row: as values, and as `runs.csv`, the one file of a report that grows with the number of runs.

Runs come cell by cell and column by column; what the runs of a cell have in common is looked up, and written as text,
once. Optimisers other than SGD have a learning rate, and neither an effective one nor a temperature.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotherm.core.optimizers import has_temperature
from isotherm.core.records import RunResult, RunSpec
from isotherm.core.run_keys import cell_id, keys_of_seeds
from isotherm.core.run_table import MISSING, codes_of, keys_of, result_columns
from isotherm.core.temperature import temperature
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_cells, distinct_cells

Row = dict[str, Any]

_ROWS_AT_ONCE = 10_000
# Columns that mean nothing for other optimisers.
_OF_SGD = ("effective_learning_rate", "temperature")
_QUOTED = ',"\r\n'  # a field with one of these needs quotes


def runs_rows(study: StudyResults) -> list[Row]:
    """Return one row per run with a result; a run that sweeps share appears once, with all their names."""
    columns = _columns_of(study)
    return [
        dict(zip(columns, row, strict=True))
        for cell in _cells(study)
        for row in zip(*(cell.values(column) for column in columns), strict=True)
    ]


def runs_csv(study: StudyResults) -> Iterator[bytes]:
    """Yield the same as a CSV file, in pieces; a missing quantity is an empty field."""
    columns = _columns_of(study)
    yield (",".join(map(_field, columns)) + "\n").encode()
    for cell in _cells(study):
        lines = map(",".join, zip(*_texts(cell, columns), strict=False))
        while piece := list(itertools.islice(lines, _ROWS_AT_ONCE)):
            yield ("\n".join(piece) + "\n").encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cell:
    """The runs of a cell that have a result, by column: what they `share`, and what is each one's `own`."""

    num: int
    shared: Row
    own: dict[str, list[Any]]

    def values(self, column: str) -> list[Any]:
        """Return a column; None where it does not apply."""
        return self.own[column] if column in self.own else [self.shared.get(column)] * self.num


def _cells(study: StudyResults) -> Iterator[_Cell]:
    sweeps: dict[bytes, list[tuple[str, tuple[int, ...]]]] = {}
    for sweep in study.plan.sweeps:
        for cell in all_cells([sweep], study.by_key):
            sweeps.setdefault(cell_id(cell.spec), []).append((sweep.name, cell.seeds))
    for cell in distinct_cells(study.plan.sweeps, study.by_key):
        spec = cell.spec
        there = np.flatnonzero(codes_of(cell.results) != MISSING).tolist()
        if not there:
            continue
        seeds = [cell.seeds[place] for place in there]
        names = _names_by_seed(sweeps[cell_id(spec)], seeds)
        shared = spec.to_json() | {"optimizer": spec.method.label, "learning_rate": spec.learning_rate}
        shared |= dict.fromkeys(_OF_SGD) if not has_temperature(spec.method) else {"temperature": _temperature(spec)}
        keys = keys_of(cell.results, there) or keys_of_seeds(spec, seeds)
        own: dict[str, list[Any]] = {"sweep": names, "seed": seeds, "key": keys}
        own |= result_columns(cell.results, there, _result_fields())
        yield _Cell(num=len(seeds), shared=shared, own=own)


def _temperature(spec: RunSpec) -> float:
    return temperature(spec.effective_learning_rate, spec.batch_size)


def _names_by_seed(sweeps: Sequence[tuple[str, tuple[int, ...]]], seeds: Sequence[int]) -> list[str]:
    """Return the names of the sweeps that call for each run of a cell."""
    if len({name for name, _ in sweeps}) == 1:
        return [sweeps[0][0]] * len(seeds)
    sets = [(name, set(members)) for name, members in sweeps]
    return ["; ".join(dict.fromkeys(name for name, members in sets if seed in members)) for seed in seeds]


def _columns_of(study: StudyResults) -> list[str]:
    """Return the columns; those of SGD only where a sweep has them."""
    is_of_sgd = any(sweep.has_temperature for sweep in study.plan.sweeps)
    return [name for name in _columns() if is_of_sgd or name not in _OF_SGD]


@functools.cache
def _columns() -> list[str]:
    spec_fields = [field.name for field in dataclasses.fields(RunSpec)]
    return ["sweep", "key", *spec_fields, "learning_rate", "temperature", *_result_fields()]


def _result_fields() -> list[str]:
    return [field.name for field in dataclasses.fields(RunResult) if field.name != "curve"]


# -- as text --------------------------------------------------------------------------------------------------------


def _texts(cell: _Cell, columns: Sequence[str]) -> Iterator[Iterable[str]]:
    """Yield parts of the rows from left to right: a column, or the text of all columns up to the next that varies."""
    shared: list[str] = []
    for column in columns:
        values = cell.own.get(column)
        if values is None or values.count(None) == cell.num:
            shared.append(_field(cell.shared.get(column)))
            continue
        if shared:
            yield itertools.repeat(",".join(shared))
            shared = []
        yield _fields(values)
    if shared:
        yield itertools.repeat(",".join(shared))


def _fields(values: list[Any]) -> Iterable[str]:
    """Return the values of a column as fields; one of them, or more, is not None."""
    first = next(value for value in values if value is not None)
    if isinstance(first, int | float):  # needs no quotes
        return ["" if value is None else repr(value) for value in values] if None in values else map(repr, values)
    if None not in values:  # keys, outcomes
        joined = "".join(values)
        if not any(mark in joined for mark in _QUOTED):
            return values
    fields = {value: _field(value) for value in set(values)}
    return map(fields.__getitem__, values)


def _field(value: Any) -> str:
    """Return a value as a field, in quotes where it needs them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([value, ""])  # an empty field alone would be quoted
    return text.getvalue().removesuffix(",\n")
