"""The numbers of many runs as arrays: what status and analysis read, instead of one object for every run.

A `RunTable` is a mapping from keys to results like any other, but the results of a cell are looked up at once, without
their keys, and its numbers are there without the results. Curves and error messages are loaded when asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.core.run_keys import cell_id, keys_of_seeds

T = TypeVar("T")
Records = NDArray[np.void]
# Full results by key, of those of the given keys that are there.
Load = Callable[[Sequence[str]], Mapping[str, RunResult]]

NUMBERS = tuple(f.name for f in dataclasses.fields(RunResult) if f.name not in ("outcome", "curve", "error"))
# As it is written into stores: to change it, raise their schema. `has` has a bit for every number that is not None.
RECORD = np.dtype(
    [
        ("cell", "<u8"),
        ("cell_rest", "<u8"),
        ("seed", "<i8"),
        ("key", "V32"),
        ("origin", "<u4"),
        ("has", "<u4"),
        ("outcome", "u1"),
        *((name, "<f8") for name in NUMBERS),
    ]
)
_KEY_DIGITS = 2 * RECORD["key"].itemsize
MISSING = 0
CODES = {Outcome.FINISHED: 1, Outcome.DIVERGED: 2, Outcome.FAILED: 3}


def record_of(spec: RunSpec, result: RunResult, *, key: str, cell: bytes, origin: int = 0) -> tuple[Any, ...]:
    """Return a run as a row of `RECORD`; `origin` is a number for how it was trained."""
    values = [getattr(result, name) for name in NUMBERS]
    return (
        *_name(cell),
        spec.seed,
        bytes.fromhex(key),
        origin,
        sum(1 << place for place, value in enumerate(values) if value is not None),
        CODES[result.outcome],
        *(math.nan if value is None else value for value in values),
    )


class CellRuns(Sequence[RunResult | None]):
    """The results of one cell in the order of its seeds, None where a run is missing; made when asked for.

    Args:
        records: one for every seed; the outcome of a missing run is `MISSING`.
        load: makes results.
    """

    def __init__(self, records: Records, load: Load) -> None:
        self.records = records
        self.load = load

    @functools.cached_property
    def all(self) -> tuple[RunResult | None, ...]:
        """Every result."""
        keys = [None if code == MISSING else key.hex() for code, key in zip(self.codes, self._keys(), strict=True)]
        found = self.load([key for key in keys if key is not None])
        return tuple(None if key is None else found[key] for key in keys)

    @functools.cached_property
    def codes(self) -> NDArray[np.uint8]:
        """The outcomes as `CODES`."""
        return np.ascontiguousarray(self.records["outcome"])  # asked for often, and far apart in the records

    def quantity(self, name: str) -> NDArray[np.float64]:
        """Return a quantity of every run; NaN where there is none."""
        if name == "train_objective":
            penalty = self.records["l2_penalty"] / self.records["loss_scale"]
            return np.asarray(self.records["train_loss"] + penalty)
        values: NDArray[np.float64] = self.records[name]
        return values

    def _keys(self) -> list[bytes]:
        keys: list[bytes] = self.records["key"].tolist()
        return keys

    @overload
    def __getitem__(self, index: int) -> RunResult | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RunResult | None]: ...
    def __getitem__(self, index: int | slice) -> RunResult | Sequence[RunResult | None] | None:
        return self.all[index]

    def __len__(self) -> int:
        return len(self.records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.all == tuple(other)

    def __hash__(self) -> int:
        return hash(self.all)


Runs = Sequence[RunResult | None]


def codes_of(runs: Runs) -> NDArray[np.uint8]:
    """Return the outcomes of runs as `CODES`."""
    if isinstance(runs, CellRuns):
        return runs.codes
    return np.array([MISSING if run is None else CODES[run.outcome] for run in runs], dtype=np.uint8)


def quantities(runs: Runs, name: str) -> list[float]:
    """Return a quantity of every run; NaN where a run is missing or has none."""
    if isinstance(runs, CellRuns):
        values: list[float] = runs.quantity(name).tolist()
        return values
    return [math.nan if run is None else run.quantity(name) for run in runs]


def first_of(runs: Runs, num: int) -> Runs:
    """Return the first runs of a cell; only they are loaded."""
    return CellRuns(runs.records[:num], runs.load) if isinstance(runs, CellRuns) else runs[:num]


def keys_of(runs: Runs, places: Sequence[int]) -> list[str] | None:
    """Return the keys of some runs, none of which is missing, if they are known without computing them."""
    if not isinstance(runs, CellRuns):
        return None
    digits = runs.records["key"][np.asarray(places, dtype=np.intp)].tobytes().hex()
    return [digits[start : start + _KEY_DIGITS] for start in range(0, len(digits), _KEY_DIGITS)]


def result_columns(runs: Runs, places: Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return fields of some runs, none of which is missing, by name; what a run does not have is None.

    Only where runs failed are their results made, for what they raised.
    """
    if not isinstance(runs, CellRuns) or (runs.codes == CODES[Outcome.FAILED]).any():
        return {name: [getattr(runs[place], name) for place in places] for name in names}
    records = runs.records[np.asarray(places, dtype=np.intp)]
    return {name: _column(records, name) for name in names}


def _column(records: Records, name: str) -> list[Any]:
    if name == "error":
        return [None] * len(records)
    if name == "outcome":
        words = {code: outcome for outcome, code in CODES.items()}
        return [words[code] for code in records["outcome"].tolist()]
    has = (records["has"] >> NUMBERS.index(name)) & 1
    if not has.any():
        return [None] * len(records)
    values = records[name].tolist()
    if name == "divergence_step":
        values = [int(value) if math.isfinite(value) else value for value in values]
    return values if has.all() else [value if there else None for value, there in zip(values, has, strict=True)]


class RunTable(Mapping[str, RunResult]):
    """Results by key, with their numbers in arrays.

    Args:
        records: in the order in which they were stored; of several of one run the last counts.
        load: makes full results, curves and errors included.
        origins: how runs were trained, by the number in their records.
    """

    def __init__(self, records: Records, *, load: Load, origins: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        self.records = records if _is_grouped(records) else _sorted(records)
        self.origins = dict(origins or {})
        self._stored = load
        starts = np.flatnonzero(_starts(self.records, "cell", "cell_rest"))
        ends = np.append(starts, len(self.records))[1:]
        names = _pairs(self.records[starts])
        self._slices = dict(zip(names, zip(starts.tolist(), ends.tolist(), strict=True), strict=True))
        self._added: dict[str, RunResult] = {}
        self._added_records: dict[tuple[int, int], dict[int, tuple[Any, ...]]] = {}
        self._kept: dict[Hashable, Any] = {}

    def cell(self, spec: RunSpec, seeds: Sequence[int]) -> CellRuns:
        """Return the results of runs that differ from one in their seed alone."""
        name = _name(cell_id(spec))
        start, end = self._slices.get(name, (0, 0))
        stored, wanted = self.records[start:end], np.asarray(seeds, dtype=np.int64)
        added = self._added_records.get(name)
        if added is None and np.array_equal(stored["seed"], wanted):
            return CellRuns(stored, self.load)
        rows = _missing(wanted)
        index = np.minimum(np.searchsorted(stored["seed"], wanted), max(0, len(stored) - 1))
        if len(stored):
            known = stored["seed"][index] == wanted
            rows[known] = stored[index[known]]
        for place, seed in enumerate(seeds if added else ()):
            if added is not None and seed in added:
                rows[place] = added[seed]
        return CellRuns(rows, self.load)

    def add(self, runs: Iterable[tuple[RunSpec, RunResult]]) -> None:
        """Add runs that were trained in the meantime; they replace failed ones."""
        for spec, result in runs:
            key = spec.key
            cell = cell_id(spec)
            self._added[key] = result
            self._added_records.setdefault(_name(cell), {})[spec.seed] = record_of(spec, result, key=key, cell=cell)
        self._kept.clear()

    def load(self, keys: Sequence[str]) -> Mapping[str, RunResult]:
        """Return full results by key, of those keys that are there."""
        stored = [key for key in keys if key not in self._added]
        found = dict(self._stored(stored)) if stored else {}
        return {**found, **{key: self._added[key] for key in keys if key in self._added}}

    def origins_of(self, cells: Iterable[Runs]) -> list[Mapping[str, Any]]:
        """Return how the runs of some cells were trained, one for every run that is there and says so."""
        found: list[Mapping[str, Any]] = []
        for runs in cells:
            assert isinstance(runs, CellRuns)
            there = runs.records["origin"][runs.codes != MISSING]
            for number, num in zip(*np.unique(there, return_counts=True), strict=True):
                if origin := self.origins.get(int(number)):
                    found += [origin] * int(num)
        return found

    def failed_keys(self) -> set[str]:
        """Return the keys of the runs that failed."""
        failed = self.records["key"][self.records["outcome"] == CODES[Outcome.FAILED]]
        stored = {key.hex() for key in failed.tolist()} - self._added.keys()
        return stored | {key for key, result in self._added.items() if result.outcome is Outcome.FAILED}

    def kept(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return what was made of these results under a name, until runs are added."""
        if name not in self._kept:
            self._kept[name] = make()
        made: T = self._kept[name]
        return made

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {key.hex(): place for place, key in enumerate(self.records["key"].tolist())}

    def __getitem__(self, key: str) -> RunResult:
        if key not in self:
            raise KeyError(key)
        return self.load([key])[key]

    def __contains__(self, key: object) -> bool:
        return key in self._added or key in self._positions

    def __iter__(self) -> Iterator[str]:
        yield from self._positions
        yield from (key for key in self._added if key not in self._positions)

    def __len__(self) -> int:
        return len(self.records) + sum(key not in self._positions for key in self._added)

    def everything(self) -> dict[str, RunResult]:
        """Return all full results: an object for every run."""
        return dict(self.load(list(self)))

    def items(self) -> Any:
        """Return keys and full results, loaded at once."""
        return self.everything().items()

    def values(self) -> Any:
        """Return full results, loaded at once."""
        return self.everything().values()


def failed_keys(results: Mapping[str, RunResult]) -> set[str]:
    """Return the keys of the runs that failed."""
    if isinstance(results, RunTable):
        return results.failed_keys()
    return {key for key, result in results.items() if result.outcome is Outcome.FAILED}


def found_in(results: Mapping[str, RunResult], spec: RunSpec, seeds: Sequence[int]) -> Runs:
    """Return the results of runs that differ from one in their seed alone."""
    if isinstance(results, RunTable):
        return results.cell(spec, seeds)
    return tuple(results.get(key) for key in keys_of_seeds(spec, seeds))


def _name(cell: bytes) -> tuple[int, int]:
    return int.from_bytes(cell[:8], "little"), int.from_bytes(cell[8:], "little")


def _pairs(records: Records) -> list[tuple[int, int]]:
    return list(zip(records["cell"].tolist(), records["cell_rest"].tolist(), strict=True))


def _missing(seeds: NDArray[np.int64]) -> Records:
    rows = np.zeros(len(seeds), dtype=RECORD)
    rows["seed"] = seeds
    for name in NUMBERS:
        rows[name] = np.nan
    return rows


def _is_grouped(records: Records) -> bool:
    """Tell whether the runs of every cell come one after another, with rising seeds: nothing has to be moved."""
    is_new = _starts(records, "cell", "cell_rest")
    if not (is_new[1:] | (records["seed"][1:] > records["seed"][:-1])).all():
        return False
    cells = records["cell"][is_new]
    return len(np.unique(cells)) == len(cells)


def _sorted(records: Records) -> Records:
    """Return the records by cell and seed, the last of every run."""
    ordered = records[np.argsort(np.ascontiguousarray(records["cell"]), kind="stable")]
    if not _is_in_order(ordered):  # seeds of a cell that did not come one after another
        ordered = records[np.lexsort((records["seed"], records["cell_rest"], records["cell"]))]
    is_last = np.append(_starts(ordered, "cell", "cell_rest", "seed")[1:], True)
    return ordered if is_last.all() else ordered[is_last]


def _is_in_order(records: Records) -> bool:
    """Tell whether records that are sorted by the first part of their cell are sorted by the rest and the seed too."""
    new_cell = records["cell"][1:] != records["cell"][:-1]
    same_rest = records["cell_rest"][1:] == records["cell_rest"][:-1]
    return bool((new_cell | (same_rest & (records["seed"][1:] >= records["seed"][:-1]))).all())


def _starts(records: Records, *names: str) -> NDArray[np.bool_]:
    """Return where one of these fields is another than in the record before."""
    starts = np.zeros(len(records), dtype=np.bool_)
    starts[:1] = True
    for name in names:
        values = records[name]
        starts[1:] |= values[1:] != values[:-1]
    return starts
