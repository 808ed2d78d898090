"""Learning rates at the start and at the end swept apart, on landscapes known by formula."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from helpers_protocol import diverged, fill, finished, log_rates, make_plan, tiny_sweep
from isotherm.core.rates import powers_of_two
from isotherm.core.records import RunResult, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError
from isotherm.running.runner import run
from isotherm.sweep.growth import Stage, grown_grid, growth
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.plane import plane_optimum, plane_train_optimum, transposed
from isotherm.sweep.protocol import Edge, Grid
from isotherm.sweep.rounds import all_runs, missing_runs, next_round

Landscape = Callable[[RunSpec], RunResult | float]


def plane_plan(**changes: Any) -> SweepPlan:
    fields = {"rates": powers_of_two(-2, 2), "final_learning_rates": powers_of_two(-8, -4), "num_evaluations": 0}
    return make_plan(**{**fields, **changes})


def hill(start: float, end: float, *, across: float = 0.01, along: float = 0.01) -> Landscape:
    """Return an accuracy with its top at this pair of exponents; seeds differ by 0.001."""

    def landscape(spec: RunSpec) -> float:
        x, y = log_rates(spec)
        return 0.9 - across * (x - start) ** 2 - along * (y - end) ** 2 + 0.001 * spec.seed

    return landscape


def grown(plan: SweepPlan, landscape: Landscape) -> Grid:
    results: dict[str, RunResult] = {}
    while specs := missing_runs([plan], results):
        fill(results, specs, landscape)
    (axes,) = plan.grids()
    return grown_grid(plan, axes, results)


def test_every_pair_that_does_not_rise_is_run() -> None:
    plan = plane_plan(rates=(0.25, 1.0), final_learning_rates=(0.125, 0.25, 0.5), max_extensions=0)
    specs = missing_runs([plan], {})
    pairs = sorted({log_rates(spec) for spec in specs})
    assert pairs == [(-2, -3), (-2, -2), (0, -3), (0, -2), (0, -1)]
    assert len(specs) == 2 * len(pairs)


def test_a_pair_of_the_default_schedule_is_the_same_run() -> None:
    (axes,) = make_plan().grids()
    tied = make_plan().run_spec(axes, effective_learning_rate=0.3, seed=0)
    apart = plane_plan().run_spec(axes, effective_learning_rate=0.3, seed=0, final_learning_rate=0.3 / 1024)
    assert apart.key == tied.key
    assert make_plan(schedule=Schedule.ending_at(0.1)).run_spec(axes, effective_learning_rate=0.8, seed=0).key == (
        plane_plan().run_spec(axes, effective_learning_rate=0.8, seed=0, final_learning_rate=0.1).key
    )


def test_the_optimum_is_the_best_of_all_pairs_with_an_interval_along_each_axis() -> None:
    grid = grown(plane_plan(), hill(0, -6, across=0.01, along=0.0001))
    best = plane_optimum(grid)
    assert best is not None
    assert (best.effective_learning_rate, best.final_learning_rate) == (1.0, 2.0**-6)
    assert best.interval == (1.0, 1.0)
    assert best.final_interval == (2.0**-8, 2.0**-4) or best.final_interval[0] < 2.0**-6 < best.final_interval[1]
    assert best.estimate.mean == pytest.approx(0.9005)
    assert grid.optimum() == best.initial
    assert transposed(transposed(grid)) == dataclasses.replace(grid, cells=transposed(transposed(grid)).cells)


def test_the_final_learning_rate_is_the_best_for_each_learning_rate() -> None:
    def ridge(spec: RunSpec) -> float:  # the product of both counts
        x, y = log_rates(spec)
        return 0.9 - 0.01 * (x + y + 6) ** 2 - 0.001 * x**2

    grid = grown(plane_plan(max_extensions=0), ridge)
    found = {math.log2(c.effective_learning_rate): math.log2(c.final_learning_rate or 0) for c in grid.cells}
    assert found == {-2: -4, -1: -5, 0: -6, 1: -7, 2: -8}


def test_the_training_optimum_is_another_pair() -> None:
    def both(spec: RunSpec) -> RunResult:
        x, y = log_rates(spec)
        return finished(
            0.9 - 0.01 * x**2 - 0.01 * (y + 7) ** 2, train_loss=0.1 + 0.01 * (x + 1) ** 2 + 0.01 * (y + 5) ** 2
        )

    grid = grown(plane_plan(), both)
    best, train = plane_optimum(grid), plane_train_optimum(grid)
    assert best is not None
    assert train is not None
    assert (best.effective_learning_rate, best.final_learning_rate) == (1.0, 2.0**-7)
    assert (train.effective_learning_rate, train.final_learning_rate) == (0.5, 2.0**-5)
    assert grid.train_optimum() == train.initial
    assert train.estimate.mean == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("top", "edge"), [((4, -6), "rates"), ((-5, -6), "rates"), ((0, -11), "finals"), ((0, -2), "finals")]
)
def test_an_axis_is_extended_where_the_optimum_touches_its_end(top: tuple[int, int], edge: str) -> None:
    plan = plane_plan(max_extensions=3)
    grid = grown(plan, hill(*top))
    best = plane_optimum(grid)
    assert best is not None
    assert (math.log2(best.effective_learning_rate), math.log2(best.final_learning_rate)) == top
    assert best.edge is best.final_edge is Edge.INTERIOR
    assert (len(grid.rows) > 5) == (edge == "rates")
    # Whole rows and columns were added.
    rows = [{cell.final_learning_rate for cell in row} for row in grid.rows]
    assert all(finals <= rows[-1] for finals in rows)


def test_extension_ends_where_it_is_told_to() -> None:
    grid = grown(plane_plan(max_extensions=1), hill(0, -30))
    best = plane_optimum(grid)
    assert best is not None
    assert best.edge is Edge.INTERIOR
    assert best.final_edge is Edge.LOWER
    assert best.final_learning_rate == 2.0**-10


def test_refinement_looks_between_the_pairs_around_the_optimum() -> None:
    plan = plane_plan(resolution="adaptive", max_extensions=0, smallest_ratio=2.0**0.5)
    grid = grown(plan, hill(0.5, -6.5))
    best = plane_optimum(grid)
    assert best is not None
    assert math.log2(best.effective_learning_rate) == pytest.approx(0.5)
    assert math.log2(best.final_learning_rate) == pytest.approx(-6.5)
    assert len(grid.all_cells) <= 25 + 8  # around the optimum, no finer grid everywhere


def test_confirming_seeds_run_at_the_chosen_pair() -> None:
    plan = plane_plan(num_confirm=2)
    results: dict[str, RunResult] = {}
    fill(results, missing_runs([plan], results), hill(0, -6))
    found = next_round([plan], results)
    assert found is not None
    assert found.stages == (Stage.CONFIRMATION,)
    assert {log_rates(spec) for spec in found.specs} == {(0.0, -6.0)}
    fill(results, found.specs, lambda _: 0.8)
    (axes,) = plan.grids()
    grid = grown_grid(plan, axes, results)
    reported = grid.at_optimum("test_metric")
    assert reported is not None
    assert reported.mean == pytest.approx(0.8)
    assert grid.num_runs == 2 * 25 + 2 == len(all_runs([plan], results))


def test_a_row_that_diverges_and_one_that_is_missing() -> None:
    def cliff(spec: RunSpec) -> RunResult | float:
        return diverged() if log_rates(spec)[0] > 1 else hill(0, -6)(spec)

    plan = plane_plan(max_extensions=0)
    grid = grown(plan, cliff)
    assert grid.cells[-1].is_unstable
    assert grid.num_diverged == 10
    results: dict[str, RunResult] = {}
    specs = missing_runs([plan], results)
    fill(results, specs[1:], hill(0, -6))
    (axes,) = plan.grids()
    assert not next(growth(plan, axes, results)).grid.is_complete
    assert grown_grid(plan, axes, results).edge() is Edge.INCOMPLETE


def test_a_plan_comes_back_from_json() -> None:
    plan = plane_plan()
    assert SweepPlan.from_json(plan.to_json()) == plan
    older = make_plan().to_json()
    del older["final_learning_rates"]
    assert SweepPlan.from_json(older) == make_plan()


def test_runs_end_at_their_final_learning_rate() -> None:
    sweep = tiny_sweep(effective_learning_rates=[0.5, 1.0], final_learning_rates=[0.25, 0.125], num_seeds=1)
    results = run(sweep)
    assert results.counts()["finished"] == 4
    ends = sorted(log_rates(spec) for spec in results.runs().values())
    assert ends == [(-1, -3), (-1, -2), (0, -3), (0, -2)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"final_learning_rates": []}, "final_learning_rates is empty"),
        ({"final_learning_rates": [0.0]}, "final learning rate must be a positive number"),
        ({"final_learning_rates": [8.0]}, r"final learning rate 8 is above.*a schedule falls"),
        ({"final_learning_rates": [0.1], "schedule": Schedule(gamma=3.0)}, "both say where training ends"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny_sweep(**changes)
