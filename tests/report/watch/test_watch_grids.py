"""Grids are computed again only where their runs have changed, and are then those of the protocol."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from helpers_watch import make_store, put, small_plan
from isotherm.core.budget import Budget
from isotherm.core.run_keys import cell_id
from isotherm.report.watch.content import left_content
from isotherm.report.watch.grids import GridBook
from isotherm.report.watch.source import StoreSource
from isotherm.running.store import Store
from isotherm.sweep.growth import grown_grid
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.rounds import next_round


def updated(book: GridBook, source: StoreSource) -> None:
    reading = source.read()
    assert reading is not None
    book.update(reading.results)


def test_only_the_grids_with_new_runs_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=3)
    source, book = StoreSource(path), GridBook()
    updated(book, source)
    before = book.grids(0)
    new = next(spec for spec in left if spec.batch_size == 32)
    put(path, [new])
    updated(book, source)
    same = [one is other for one, other in zip(before, book.grids(0), strict=True)]
    assert same == [True, False, True]
    source.close()


PLANS = [
    small_plan(),
    small_plan(resolution="adaptive", num_confirm=2, max_extensions=1),
    dataclasses.replace(small_plan(batch_sizes=(8, 32)), budgets=(Budget.steps(400),), estimate_at=Budget.steps(100)),
]


@pytest.mark.parametrize("plan", PLANS, ids=["paper", "adaptive", "estimated"])
def test_after_every_round_the_grids_are_those_of_the_protocol(tmp_path: Path, plan: SweepPlan) -> None:
    path = tmp_path / "a.sqlite"
    make_store(path, plan, num=0)
    source, book = StoreSource(path), GridBook()
    while True:
        reading = source.read()
        assert reading is not None
        book.update(reading.results)
        assert left_content(reading.results)["runs_left"] == reading.results.counts()["missing"]
        results = reading.results.by_key
        for grid in book.grids(0):
            assert grid.tuned.grid == grown_grid(reading.results.plan.sweeps[0], grid.axes, results)
        round_ = next_round(reading.results.plan.sweeps, reading.results.by_key)
        if round_ is None:
            break
        put(path, list(round_.specs))
    source.close()


def test_cells_are_found_by_what_identifies_their_runs(tmp_path: Path) -> None:
    path, plan = tmp_path / "a.sqlite", small_plan()
    left = make_store(path, plan, num=3)
    source, book = StoreSource(path), GridBook()
    updated(book, source)
    first, second, _ = book.grids(0)
    name = cell_id(left[0]).hex()
    assert first.column_of(name) == 1
    assert second.column_of(name) is None
    source.close()


def test_a_store_gives_results_by_key(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    left = make_store(path, num=5)
    with Store.read(path) as store:
        assert store.results_of(["no such key", left[0].key]) == {}
