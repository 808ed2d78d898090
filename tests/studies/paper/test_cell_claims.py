"""Claims about single learning rates, and about two learning rates tuned apart, on made-up results."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from helpers_landscape import landscape_study
from helpers_protocol import finished
from helpers_verdicts import alone
from isotherm.analysis.analysis import analyse
from isotherm.core.budget import Budget
from isotherm.core.records import CurvePoint, Direction
from isotherm.studies.paper.claims import cells as claims
from isotherm.studies.paper.settings import ALONG, EQUAL_EPOCHS, EQUAL_STEPS
from isotherm.sweep.results import StudyResults


def renamed(study: StudyResults, name: str) -> StudyResults:
    plan = study.plan
    sweeps = tuple(dataclasses.replace(p, name=name) for p in plan.sweeps)
    return dataclasses.replace(study, plan=dataclasses.replace(plan, sweeps=sweeps))


@pytest.fixture(scope="module")
def analysis() -> Any:
    """SGD's optimum stays at 1, momentum's rises: at B = 8 they agree, at 512 momentum is ahead."""
    study = landscape_study(
        optimum=lambda b, m: 0.5 if b == 8 else 4.0 if m else 1.0,
        peak=lambda b, m: 0.7 + 0.05 * (b > 8 and m > 0),
        sizes=(8, 512),
        noise=0.0005,
    )
    return analyse(renamed(study, EQUAL_EPOCHS))


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        (claims.same_at_small_rates(0), True),
        (claims.same_at_small_rates(-1), False),
        (claims.worse_at_large_rates(-1), True),
        (claims.optimum_gain(0, helps=False), True),
        (claims.optimum_gain(0, helps=True), False),
        (claims.optimum_gain(-1, helps=True), True),
        (claims.optimum_gain(-1, helps=False), False),
    ],
)
def test_sgd_beside_momentum(analysis: Any, test: claims.Test, holds: bool) -> None:
    assert alone(test("a claim", analysis)).holds is holds


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        (claims.same_at_small_rates(0, quantity="train_objective"), True),
        (claims.same_at_small_rates(-1, quantity="train_objective"), False),
        (claims.worse_at_large_rates(-1, quantity="train_objective"), True),
        (claims.optimum_gain(0, helps=False, quantity="train_objective"), True),
        (claims.optimum_gain(-1, helps=True, quantity="train_objective"), True),
        (claims.optimum_gain(-1, helps=False, quantity="train_objective"), False),
    ],
)
def test_the_training_losses_of_sgd_beside_momentum(test: claims.Test, holds: bool) -> None:
    """Momentum halves the training loss at B = 512."""
    study = renamed(
        landscape_study(
            optimum=lambda b, m: 0.5 if b == 8 else 4.0 if m else 1.0, peak=lambda _b, _m: 0.7, sizes=(8, 512)
        ),
        EQUAL_EPOCHS,
    )
    cells = [
        (grid.axes, result)
        for sweep in study.sweeps
        for grid in sweep.grids()
        for cell in grid.cells
        for result in cell.results
    ]
    halved = {id(result) for axes, result in cells if axes.batch_size == 512 and axes.momentum}
    by_key = {
        key: dataclasses.replace(result, train_loss=(0.5 if id(result) in halved else 1.0) + 0.001 * (index % 5))
        for index, (key, result) in enumerate(study.by_key.items())
    }
    assert alone(test("a claim", analyse(dataclasses.replace(study, by_key=by_key)))).holds is holds


@pytest.mark.parametrize(("slope", "holds"), [(1.0, True), (-1.0, False)])
def test_overfitting_at_all_budgets_over_a_number_of_epochs(slope: float, holds: bool) -> None:
    study = renamed(
        landscape_study(
            optimum=lambda _b, _m: 1.0, peak=lambda _b, _m: 0.7, sizes=(8,), momenta=(0.9,), budget=Budget.epochs(400)
        ),
        ALONG,
    )
    plan = study.plan.sweeps[0]
    by_key = {
        key: finished(
            result.test_metric,
            train_loss=0.1,
            curve=tuple(
                # A metric that is better the larger it is: what rises is its error.
                CurvePoint(step=k, test_loss=0.0, test_metric=-slope * k + 0.01 * (index % 7))
                for k in range(1, 9)
            ),
        )
        for index, (key, result) in enumerate(study.by_key.items())
    }
    found = analyse(dataclasses.replace(study, by_key=by_key))
    assert plan.metric_direction is Direction.MAXIMISE
    assert alone(claims.overfits_at_budgets_over(ALONG, 200, 1.0)("a claim", found)).holds is holds
    longer = alone(claims.overfits_at_budgets_over(ALONG, 500, 1.0)("a claim", found))
    assert longer.holds is None
    assert "no budget above 500 epochs" in longer.evidence


@pytest.mark.parametrize("rises", [True, False])
def test_the_metric_along_training(rises: bool) -> None:
    study = renamed(
        landscape_study(optimum=lambda _b, _m: 1.0, peak=lambda _b, _m: 0.7, sizes=(8,), momenta=(0.9,)), ALONG
    )
    slope = 1.0 if rises else -1.0
    by_key = {
        key: finished(
            result.test_metric,
            train_loss=0.1,
            curve=tuple(
                CurvePoint(step=k, test_loss=0.0, test_metric=slope * k + 0.01 * index % 7) for k in range(1, 9)
            ),
        )
        for index, (key, result) in enumerate(study.by_key.items())
    }
    found = analyse(dataclasses.replace(study, by_key=by_key))
    assert alone(claims.rises_before_first_drop(ALONG, -1, rises=True)("a claim", found)).holds is rises
    assert alone(claims.rises_before_first_drop(ALONG, 0, rises=False)("a claim", found)).holds is not rises


def test_runs_without_evaluations_leave_it_open() -> None:
    study = renamed(
        landscape_study(optimum=lambda _b, _m: 1.0, peak=lambda _b, _m: 0.7, sizes=(8,), momenta=(0.9,)), ALONG
    )
    assert alone(claims.rises_before_first_drop(ALONG, 0, rises=True)("a claim", analyse(study))).holds is None


@pytest.mark.parametrize(("rises", "holds"), [(True, True), (False, False)])
def test_a_change_with_the_batch_size_at_one_learning_rate(rises: bool, holds: bool) -> None:
    study = landscape_study(
        optimum=lambda _b, _m: 1.0, peak=lambda b, _m: 0.7 + 0.02 * (b > 8), sizes=(8, 64), momenta=(0.9,)
    )
    found = analyse(renamed(study, EQUAL_STEPS))
    assert alone(claims.changes_with_batch_size(1.0, "test_metric", rises=rises)("a claim", found)).holds is holds
    other = alone(claims.changes_with_batch_size(0.3, "test_metric", rises=rises)("a claim", found))
    assert other.holds is None
    assert "scale gpu or paper" in other.remedy
