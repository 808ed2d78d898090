"""A table of runs says the same as a dict of results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from helpers_protocol import diverged, failed, finished, make_spec
from isotherm.core.records import QUANTITIES, Outcome, RunResult, RunSpec
from isotherm.core.run_keys import cell_id
from isotherm.core.run_table import (
    CODES,
    MISSING,
    RECORD,
    CellRuns,
    RunTable,
    codes_of,
    failed_keys,
    found_in,
    quantities,
    record_of,
    result_columns,
)

SPEC = make_spec()
RESULTS = [
    finished(0.5, train_loss=0.25, loss_scale=2.0, l2_penalty=0.5),
    diverged(),
    failed(),
    finished(math.nan, test_loss=math.inf),
    RunResult(outcome=Outcome.FINISHED),
]


def specs(num: int = len(RESULTS), spec: RunSpec = SPEC) -> list[RunSpec]:
    return [dataclasses.replace(spec, seed=seed) for seed in range(num)]


class Loader:
    """Loads full results and remembers which were asked for."""

    def __init__(self, by_key: Mapping[str, RunResult]) -> None:
        self.by_key = by_key
        self.asked: list[list[str]] = []

    def __call__(self, keys: Sequence[str]) -> dict[str, RunResult]:
        self.asked.append(list(keys))
        return {key: self.by_key[key] for key in keys if key in self.by_key}


def table_of(runs: Sequence[tuple[RunSpec, RunResult]]) -> tuple[RunTable, Loader]:
    records = [record_of(spec, result, key=spec.key, cell=cell_id(spec)) for spec, result in runs]
    loader = Loader({spec.key: result for spec, result in runs})
    return RunTable(np.array(records, dtype=RECORD), load=loader), loader


@pytest.fixture
def runs() -> list[tuple[RunSpec, RunResult]]:
    pairs = list(zip(specs(), RESULTS, strict=True))
    return [pairs[k] for k in (3, 0, 4, 1, 2)]  # a store has them in any order


def test_numbers_of_a_cell_are_those_of_its_results_and_nothing_is_loaded(
    runs: list[tuple[RunSpec, RunResult]],
) -> None:
    table, loader = table_of(runs)
    seeds = [4, 9, 0, 2, 3, 1]
    cell = found_in(table, SPEC, seeds)
    by_hand = found_in({spec.key: result for spec, result in runs}, SPEC, seeds)
    assert isinstance(cell, CellRuns)
    assert not isinstance(by_hand, CellRuns)
    assert codes_of(cell).tolist() == codes_of(by_hand).tolist()
    assert codes_of(cell)[1] == MISSING
    for name in QUANTITIES:
        assert np.array_equal(quantities(cell, name), quantities(by_hand, name), equal_nan=True), name
    assert loader.asked == []
    assert repr(list(cell)) == repr(list(by_hand))  # NaN differs from itself
    assert len(loader.asked) == 1


def test_records_that_are_in_order_are_not_moved(runs: list[tuple[RunSpec, RunResult]]) -> None:
    by_seed = sorted(runs, key=lambda pair: pair[0].seed)
    for given, is_kept in ((by_seed, True), (runs, False), ([*by_seed, by_seed[0]], False), ([], True)):
        records = np.array([record_of(s, r, key=s.key, cell=cell_id(s)) for s, r in given], dtype=RECORD)
        table = RunTable(records, load=lambda _keys: {})
        assert (table.records is records) is is_kept
        assert table.records["seed"].tolist() == list(range(len(by_seed) if given else 0))


def test_all_seeds_in_order_are_no_copy(runs: list[tuple[RunSpec, RunResult]]) -> None:
    table, _ = table_of(runs)
    assert table.cell(SPEC, range(5)).records.base is not None
    assert len(table.cell(dataclasses.replace(SPEC, batch_size=3), range(5))) == 5
    assert not table.cell(dataclasses.replace(SPEC, batch_size=3), range(5)).codes.any()


def test_it_is_a_mapping_of_full_results(runs: list[tuple[RunSpec, RunResult]]) -> None:
    runs = [run for run in runs if not math.isnan(run[1].test_metric or 0.0)]
    table, loader = table_of(runs)
    by_key = {spec.key: result for spec, result in runs}
    assert table == by_key
    assert dict(table.items()) == by_key
    assert len(table) == len(by_key)
    assert table[SPEC.key] == by_key[SPEC.key]
    assert table.get("0" * 64) is None
    assert failed_keys(table) == failed_keys(by_key)
    assert loader.asked[-1] == [SPEC.key]


def test_of_a_run_that_was_stored_twice_the_last_counts() -> None:
    table, _ = table_of([(SPEC, failed()), (make_spec(seed=8), finished(0.25)), (SPEC, finished(0.75))])
    assert table.cell(SPEC, [SPEC.seed]).quantity("test_metric").tolist() == [0.75]
    assert len(table) == 2


def test_added_runs_replace_failed_ones_and_forget_what_was_made() -> None:
    runs = list(zip(specs(), RESULTS, strict=True))
    table, loader = table_of(runs[:3])
    made: list[int] = []
    for _ in range(2):
        table.kept("name", lambda: made.append(1))
    assert made == [1]
    assert failed_keys(table) == {runs[2][0].key}
    table.add([(runs[2][0], finished(0.875)), runs[4]])
    assert table.kept("name", lambda: "anew") == "anew"
    assert failed_keys(table) == set()
    assert table.cell(SPEC, range(5)).codes.tolist() == [1, CODES[Outcome.DIVERGED], 1, MISSING, 1]
    assert [r and r.test_metric for r in table.cell(SPEC, range(5))] == [0.5, None, 0.875, None, None]
    assert len(table) == 4
    assert set(table) == {spec.key for spec, _ in (*runs[:3], runs[4])}
    assert runs[2][0].key not in loader.asked[-1]


@pytest.mark.parametrize("places", [[0, 1, 3, 4], [0, 2]], ids=["without failures", "with one"])
def test_columns_are_the_fields_of_the_results(places: list[int]) -> None:
    runs = list(zip(specs(), RESULTS, strict=True))
    table, loader = table_of([runs[place] for place in places])
    names = [field.name for field in dataclasses.fields(RunResult) if field.name != "curve"]
    columns = result_columns(table.cell(SPEC, range(5)), places, names)
    assert {name: repr(values) for name, values in columns.items()} == {
        name: repr([getattr(RESULTS[place], name) for place in places]) for name in names
    }
    assert bool(loader.asked) == (2 in places)


def test_a_table_of_nothing_is_empty() -> None:
    table, _ = table_of([])
    assert (len(table), dict(table), table.failed_keys()) == (0, {}, set())
    assert table.cell(SPEC, [0, 1]).codes.tolist() == [MISSING, MISSING]
