"""What a sweep gave, from results by hand; `test_runner` makes them by training."""

from __future__ import annotations

import math

import pytest

from helpers_protocol import diverged, failed, fill, make_plan
from isotherm.core.budget import Budget
from isotherm.core.records import RunResult, RunSpec
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.protocol import Edge
from isotherm.sweep.results import Results, StudyResults
from isotherm.sweep.rounds import missing_runs


def near_one(spec: RunSpec) -> float:
    """Return a score that is best at a learning rate of 1."""
    return -abs(math.log2(spec.effective_learning_rate))


def near_sixteen(spec: RunSpec) -> float:
    return -abs(math.log2(spec.effective_learning_rate / 16))


def complete(plan: SweepPlan, landscape: object = near_one) -> dict[str, RunResult]:
    results: dict[str, RunResult] = {}
    while specs := missing_runs([plan], results):
        fill(results, specs, landscape)  # type: ignore[arg-type]
    return results


def test_grids_are_those_of_the_plan() -> None:
    plan = make_plan(batch_sizes=(16, 32), momenta=(0.0, 0.9), budgets=(Budget.steps(5), Budget.steps(9)))
    results = Results(plan=plan, by_key=complete(plan))
    assert [grid.axes for grid in results.grids()] == plan.grids()
    assert {grid.edge() for grid in results.grids()} == {Edge.INTERIOR}
    assert len(results.optima()) == 8


@pytest.mark.parametrize("momentum", [None, 0.0, 0.9])
@pytest.mark.parametrize("budget", [None, Budget.steps(5), Budget.steps(9)], ids=str)
def test_grids_of_one_momentum_and_budget(momentum: float | None, budget: Budget | None) -> None:
    plan = make_plan(batch_sizes=(16, 32), momenta=(0.0, 0.9), budgets=(Budget.steps(5), Budget.steps(9)))
    grids = Results(plan=plan, by_key={}).grids(momentum=momentum, budget=budget)
    assert len(grids) == 2 * (2 if momentum is None else 1) * (2 if budget is None else 1)
    assert all(momentum is None or grid.axes.momentum == momentum for grid in grids)
    assert all(budget is None or grid.axes.budget == budget for grid in grids)


def test_grids_of_a_momentum_nobody_asked_for_are_none() -> None:
    assert Results(plan=make_plan(), by_key={}).grids(momentum=0.5) == []


def test_grids_include_their_extensions() -> None:
    plan = make_plan()
    results = Results(plan=plan, by_key=complete(plan, near_sixteen))
    (grid,) = results.grids()
    assert [cell.effective_learning_rate for cell in grid.cells] == [2.0**k for k in range(-2, 7)]
    assert len(results.runs()) == 9 * 2


def test_optima_leave_out_grids_without_one() -> None:
    plan = make_plan(batch_sizes=(16, 32))
    by_key = complete(plan, lambda spec: diverged() if spec.batch_size == 32 else near_one(spec))
    assert [grid.axes.batch_size for grid in Results(plan=plan, by_key=by_key).optima()] == [16]


def test_counts_add_up_to_the_runs_asked_for() -> None:
    plan = make_plan()
    results = complete(plan)
    specs = list(Results(plan=plan, by_key=results).runs().values())
    results[specs[0].key] = diverged()
    results[specs[1].key] = failed()
    del results[specs[2].key], results[specs[3].key]
    given = Results(plan=plan, by_key=results)
    assert given.counts() == {"finished": 6, "diverged": 1, "failed": 1, "missing": 2}
    assert sum(given.counts().values()) == len(given.runs()) == 10


def test_counts_of_a_sweep_not_yet_begun() -> None:
    assert Results(plan=make_plan(), by_key={}).counts() == {"finished": 0, "diverged": 0, "failed": 0, "missing": 10}


def test_counts_include_extensions_still_to_be_run() -> None:
    plan = make_plan()
    results: dict[str, RunResult] = {}
    fill(results, missing_runs([plan], {}), near_sixteen)
    assert Results(plan=plan, by_key=results).counts() == {"finished": 10, "diverged": 0, "failed": 0, "missing": 4}


def test_runs_of_other_studies_are_not_counted() -> None:
    plan = make_plan()
    by_key = complete(plan) | complete(make_plan(model_id="other"))
    assert len(by_key) == 20
    assert Results(plan=plan, by_key=by_key).counts()["finished"] == 10


def test_study_counts_a_shared_run_once() -> None:
    narrow, wide = make_plan(rates=(0.5, 1.0, 2.0), name="narrow"), make_plan(name="wide")
    by_key = complete(wide)
    study = StudyResults(plan=StudyPlan(name="both", question="", sweeps=(narrow, wide)), by_key=by_key)
    assert study.counts() == {"finished": 10, "diverged": 0, "failed": 0, "missing": 0}
    assert [results.plan.name for results in study.sweeps] == ["narrow", "wide"]
    assert [results.counts()["finished"] for results in study.sweeps] == [6, 10]
