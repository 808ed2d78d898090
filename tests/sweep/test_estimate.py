"""Grids estimated at a small budget, on landscapes known by formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from helpers_protocol import fill, make_plan, rates_of, tiny_sweep
from isotherm.analysis.saving import saving
from isotherm.core.budget import Budget
from isotherm.core.rates import powers_of_two
from isotherm.core.records import RunResult, RunSpec
from isotherm.errors import UserError
from isotherm.running.runner import run
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.results import Results
from isotherm.sweep.rounds import confirming_runs, missing_runs

SHORT, FULL = 4, 40


def plan_of(**changes: Any) -> SweepPlan:
    fields = {"rates": powers_of_two(-4, 4), "budgets": (Budget.steps(FULL),), "estimate_at": Budget.steps(SHORT)}
    return make_plan(**{**fields, **changes})


def hill(top_short: float, top_full: float) -> Callable[[RunSpec], float]:
    """Return an accuracy with its top at one learning rate in short runs, and at another in full ones."""

    def landscape(spec: RunSpec) -> float:
        top = top_short if spec.num_steps == SHORT else top_full
        return 0.9 - 0.02 * (math.log2(spec.effective_learning_rate) - top) ** 2 + 0.001 * spec.seed

    return landscape


def results_of(plan: SweepPlan, landscape: Callable[[RunSpec], float]) -> Results:
    found: dict[str, RunResult] = {}
    while specs := missing_runs([plan], found):
        fill(found, specs, landscape)
    return Results(plan=plan, by_key=found)


def test_the_whole_grid_at_the_small_budget_then_around_its_optimum() -> None:
    plan = plan_of()
    found: dict[str, RunResult] = {}
    first = missing_runs([plan], found)
    assert {spec.num_steps for spec in first} == {SHORT}
    assert rates_of(first) == list(powers_of_two(-4, 4))
    fill(found, first, hill(1, 1))
    second = missing_runs([plan], found)
    assert {spec.num_steps for spec in second} == {FULL}
    assert rates_of(second) == [1.0, 2.0, 4.0]
    fill(found, second, hill(1, 1))
    assert missing_runs([plan], found) == []


def test_an_optimum_that_lies_elsewhere_at_the_full_budget_is_found() -> None:
    results = results_of(plan_of(), hill(2, -2))
    (grid,) = results.grids()
    best = grid.optimum()
    assert best is not None
    assert not best.at_edge
    assert best.effective_learning_rate == 0.25
    (estimated,) = results.estimating_grids()
    assert estimated.num_steps == SHORT


def test_the_estimate_is_neither_refined_nor_confirmed() -> None:
    plan = plan_of(resolution="adaptive", num_confirm=3, smallest_ratio=2.0**0.5)
    assert confirming_runs([plan], {}) == {}
    results = results_of(plan, hill(0.5, 0.5))
    (estimated,), (grid,) = results.estimating_grids(), results.grids()
    assert [cell.effective_learning_rate for cell in estimated.cells] == list(powers_of_two(-4, 4))
    best = grid.optimum()
    assert best is not None
    assert math.log2(best.effective_learning_rate) == pytest.approx(0.5)
    assert grid.cells[best.index].is_confirmed


def test_every_batch_size_and_momentum_has_its_estimate() -> None:
    plan = plan_of(batch_sizes=(8, 16), momenta=(0.0, 0.9), budgets=(Budget.steps(FULL), Budget.steps(2 * FULL)))
    results = results_of(plan, hill(0, 0))
    assert len(results.estimating_grids()) == 4
    assert len(results.grids()) == 8
    assert {len(grid.cells) for grid in results.grids()} == {3}


def test_both_learning_rates_are_estimated() -> None:
    plan = plan_of(final_learning_rates=powers_of_two(-10, -5), max_extensions=0)

    def landscape(spec: RunSpec) -> float:
        start = math.log2(spec.effective_learning_rate)
        return 0.9 - 0.02 * start**2 - 0.02 * (start - 10 * math.log2(spec.gamma) + 8) ** 2

    (grid,) = results_of(plan, landscape).grids()
    assert len(grid.all_cells) == 9
    assert {cell.final_learning_rate for cell in grid.all_cells} == {2.0**-9, 2.0**-8, 2.0**-7}


def test_budgets_that_double_start_from_the_estimate() -> None:
    until = Budget.until(first=4, at_most=16)
    plan = plan_of(budgets=until.budgets, until=until, estimate_at=Budget.epochs(1))
    results = results_of(plan, lambda spec: hill(0, 0)(spec) + 0.01 * math.log2(spec.num_steps))
    assert [grid.axes.budget.amount for grid in results.grids()] == [4, 8, 16]
    assert {len(grid.cells) for grid in results.grids()} == {3}


def test_while_the_estimate_runs_the_grids_are_incomplete() -> None:
    results = Results(plan=plan_of(), by_key={})
    assert len(results.grids()) == 1
    assert not results.grids()[0].is_complete
    assert results.counts()["missing"] == 2 * 9
    assert saving(results) is None


def test_what_it_saves_is_counted_in_examples() -> None:
    found = saving(results_of(plan_of(), hill(1, 1)))
    assert found is not None
    batch, seeds = 16, 2
    assert found.num_estimating == 9 * seeds * SHORT * batch
    assert found.num_full == 3 * seeds * FULL * batch
    assert found.num_spared == 6 * seeds * FULL * batch
    assert found.fraction == pytest.approx((6 * FULL - 9 * SHORT) / (9 * FULL))
    assert "57% fewer" in str(found)


def test_an_estimate_that_misleads_costs_more() -> None:
    found = saving(results_of(plan_of(rates=powers_of_two(-1, 1), estimate_at=Budget.steps(FULL - 4)), hill(0, 0)))
    assert found is not None
    assert found.fraction < 0
    assert "more than" in str(found)


def test_other_sweeps_save_nothing() -> None:
    assert saving(results_of(plan_of(estimate_at=None), hill(0, 0))) is None


def test_a_plan_comes_back_from_json() -> None:
    assert SweepPlan.from_json(plan_of().to_json()) == plan_of()


def test_runs_of_a_task_and_what_is_refused() -> None:
    sweep = tiny_sweep(budget=Budget.steps(40), estimate_at=Budget.steps(4), num_evaluations=0)
    results = run(sweep)
    assert {spec.num_steps for spec in results.runs().values()} == {4, 40}
    with pytest.raises(UserError, match="estimate_at=40 steps is no shorter than the budget of 40 steps"):
        tiny_sweep(budget=Budget.steps(40), estimate_at=Budget.steps(40))
    with pytest.raises(UserError, match="estimate_at=4 is no budget"):
        tiny_sweep(estimate_at=4)
