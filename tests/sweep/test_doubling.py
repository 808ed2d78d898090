"""Budgets that double, on curves known by formula."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from helpers_protocol import diverged, fill, finished, make_cell, make_plan, tiny_sweep
from isotherm.core.budget import Budget, Until
from isotherm.core.records import Direction, RunResult, RunSpec
from isotherm.errors import UserError
from isotherm.running.runner import run
from isotherm.sweep.doubling import StopReason, stop_reason
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Estimate
from isotherm.sweep.results import Results
from isotherm.sweep.rounds import levels, missing_runs, next_round

UNTIL = Budget.until(first=1, at_most=16)


def estimate(*values: float) -> Estimate:
    return make_cell(1.0, values, num_kept=len(values)).estimate("test_metric", kept=range(len(values)))


def reason_of(
    until: Until, *means: float, spread: float = 0.0, way: Direction = Direction.MAXIMISE
) -> StopReason | None:
    return stop_reason(until, [estimate(mean - spread, mean + spread) for mean in means], way)


def doubling_plan(until: Until = UNTIL, **changes: Any) -> SweepPlan:
    return make_plan(**{"budgets": until.budgets, "until": until, "max_extensions": 0, "num_train": 64, **changes})


def results_of(plan: SweepPlan, landscape: Callable[[RunSpec], RunResult | float]) -> Results:
    found: dict[str, RunResult] = {}
    while specs := missing_runs([plan], found):
        fill(found, specs, landscape)
    return Results(plan=plan, by_key=found)


def accuracy(spec: RunSpec, *, best_epochs: float) -> float:
    """Return an accuracy that rises to a number of epochs and falls from there; it is best at ε = 1."""
    epochs = spec.num_steps * spec.batch_size / 64
    return 0.9 - 0.02 * abs(math.log2(epochs / best_epochs)) - 0.01 * math.log2(spec.effective_learning_rate) ** 2


def test_the_budgets_of_until() -> None:
    assert [budget.amount for budget in UNTIL.budgets] == [1, 2, 4, 8, 16]
    assert [budget.amount for budget in Budget.until(first=0.5, at_most=3.9).budgets] == [0.5, 1, 2]
    assert len(Budget.until(first=5).budgets) == 11


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"first": 0}, "first budget of Budget.until must be a positive number"),
        ({"at_most": 1.5}, "leaves no doubling of first=1 epochs; use at least 2"),
        ({"patience": 0}, "patience of Budget.until must be a whole number of at least 1"),
        ({"target": math.nan}, "target=nan is not a number"),
        ({"target": "0.9"}, "target='0.9' is not a number"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Budget.until(**{"first": 1, **changes})


def test_it_goes_on_while_it_improves() -> None:
    assert reason_of(UNTIL, 0.5) is None
    assert reason_of(UNTIL, 0.5, 0.6) is None
    assert reason_of(UNTIL, 0.5, 0.6, 0.6) is StopReason.NO_GAIN
    assert reason_of(UNTIL, 0.5, 0.4) is StopReason.NO_GAIN
    assert reason_of(UNTIL, 0.5, 0.6, 0.7, 0.8, 0.9) is StopReason.LARGEST
    assert reason_of(UNTIL, 0.5, 0.4, way=Direction.MINIMISE) is None
    assert stop_reason(UNTIL, [estimate(0.5), None], Direction.MAXIMISE) is StopReason.NO_OPTIMUM


def test_a_gain_within_its_error_is_none() -> None:
    # Two runs 0.02 apart: the error of a mean is 0.01, that of a difference 0.014.
    assert reason_of(UNTIL, 0.5, 0.513, spread=0.01) is StopReason.NO_GAIN
    assert reason_of(UNTIL, 0.5, 0.515, spread=0.01) is None


def test_the_best_so_far_is_to_be_beaten() -> None:
    patient = Budget.until(first=1, at_most=16, patience=2)
    assert reason_of(patient, 0.6, 0.5) is None
    assert reason_of(patient, 0.6, 0.5, 0.55) is StopReason.NO_GAIN
    assert reason_of(patient, 0.6, 0.5, 0.65) is None


def test_a_target_ends_it() -> None:
    aimed = Budget.until(first=1, at_most=16, target=0.6)
    assert reason_of(aimed, 0.5) is None
    assert reason_of(aimed, 0.5, 0.6) is StopReason.TARGET
    assert reason_of(aimed, 0.5, 0.5) is StopReason.NO_GAIN
    assert reason_of(aimed, 0.5, way=Direction.MINIMISE) is StopReason.TARGET


def test_every_batch_size_ends_on_its_own() -> None:
    plan = doubling_plan(batch_sizes=(4, 16))
    results = results_of(plan, lambda spec: accuracy(spec, best_epochs=2 if spec.batch_size == 4 else 8))
    found = {(g.axes.batch_size, g.axes.budget.amount) for g in results.grids()}
    assert found == {(4, 1), (4, 2), (4, 4), (16, 1), (16, 2), (16, 4), (16, 8), (16, 16)}
    assert results.counts()["missing"] == 0
    assert results.counts()["finished"] == len(found) * 5 * 2


def test_a_budget_waits_for_all_grids_of_the_one_before() -> None:
    plan = doubling_plan(batch_sizes=(4, 16), num_confirm=1)
    found: dict[str, RunResult] = {}
    seen = []
    while (round_ := next_round([plan], found)) is not None:
        seen.append((round_.number, {spec.num_steps * spec.batch_size // 64 for spec in round_.specs}))
        fill(found, round_.specs, lambda spec: accuracy(spec, best_epochs=2))
    assert seen == [(0, {1}), (1, {1}), (2, {2}), (3, {2}), (4, {4}), (5, {4})]
    assert [len(group) for group in levels(plan, found)] == [2, 2, 2]


def test_no_larger_budget_where_nothing_is_stable() -> None:
    results = results_of(doubling_plan(), lambda _: diverged())
    assert {g.axes.budget.amount for g in results.grids()} == {1}


def test_a_failed_run_holds_it_up_until_it_is_tried_again() -> None:
    plan = doubling_plan()
    found: dict[str, RunResult] = {}
    specs = missing_runs([plan], found)
    fill(found, specs[1:], lambda _: 0.5)
    assert missing_runs([plan], found, skip={specs[0].key}) == []


def test_other_sweeps_are_as_ever() -> None:
    plan = make_plan(budgets=(Budget.steps(10), Budget.steps(20)))
    assert list(levels(plan, {})) == [plan.grids()]


def test_a_plan_comes_back_from_json() -> None:
    plan = doubling_plan(Budget.until(first=1, target=0.9))
    assert SweepPlan.from_json(plan.to_json()) == plan


def test_a_sweep_of_a_task_doubles_its_budget() -> None:
    results = run(tiny_sweep(budget=Budget.until(first=1, at_most=4, target=0.99), num_evaluations=0))
    budgets = [grid.axes.budget.amount for grid in results.grids()]
    assert budgets == [1, 2, 4][: len(budgets)]
    assert results.counts()["missing"] == 0


def test_minimised_quantities_double_too() -> None:
    def loss(spec: RunSpec) -> RunResult:
        epochs = spec.num_steps * spec.batch_size / 64
        return finished(0.5, test_loss=1.0 + 0.1 * abs(math.log2(epochs / 4)))

    results = results_of(doubling_plan(tune_quantity="loss"), loss)
    assert [g.axes.budget.amount for g in results.grids()] == [1, 2, 4, 8]


@pytest.mark.parametrize(("gain", "patience", "ends"), [(0.0, 1, 0.83), (2.0, 1, 0.17), (2.0, 2, 0.005)])
def test_how_often_it_ends(gain: float, patience: int, ends: float) -> None:
    """What docs/studies.md says, with 5 seeds; the tolerance is three standard errors or more."""
    draw = random.Random(0)
    until = Budget.until(first=1, at_most=1024, patience=patience)
    step = gain * (2 / 5) ** 0.5  # standard errors of the difference of two means of 5 runs
    num = 0
    for _ in range(2000):
        means = [step * k for k in range(patience + 1)]
        estimates = [estimate(*(draw.gauss(mean, 1.0) for _ in range(5))) for mean in means]
        num += stop_reason(until, estimates, Direction.MAXIMISE) is not None
    assert num / 2000 == pytest.approx(ends, abs=0.03 if patience == 1 else 0.006)
