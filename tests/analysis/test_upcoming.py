"""What runs next and why: the same runs as the protocol's next round, grid by grid."""

from __future__ import annotations

import dataclasses
import math

import pytest

from helpers_report import diverged, failed, finished, make_plan
from isotherm.analysis.upcoming import Upcoming, upcoming
from isotherm.core.budget import Budget
from isotherm.core.records import RunResult, RunSpec
from isotherm.sweep.growth import Stage
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.rounds import next_round

PLAN = make_plan(batch_sizes=(8, 32), seeds=(0, 1), num_kept=2, max_extensions=1, resolution="adaptive", num_confirm=2)


def metric(spec: RunSpec, *, best: float) -> RunResult:
    return finished(0.7 - 0.05 * math.log2(spec.effective_learning_rate / best) ** 2, train_loss=0.5)


def run_round(plan: SweepPlan, results: dict[str, RunResult], *, best: float) -> Stage | None:
    """Run what is next; return the first of its stages."""
    round_ = next_round([plan], results)
    if round_ is None:
        return None
    results |= {spec.key: metric(spec, best=best) for spec in round_.specs}
    return round_.stages[0]


def first_of(found: list[Upcoming]) -> list[Upcoming]:
    return [one for one in found if one.round == found[0].round]


@pytest.mark.parametrize("best", [1.0, 1.3, 4.0, 0.2])
def test_it_is_the_next_round_at_every_stage_of_a_sweep(best: float) -> None:
    results: dict[str, RunResult] = {}
    stages = set()
    for _ in range(50):
        found, round_ = upcoming([PLAN], results), next_round([PLAN], results)
        if round_ is None:
            assert found == []
            break
        now = first_of(found)
        assert sum(one.num_runs for one in now) == len(round_.specs)
        assert now[0].round == round_.number
        assert {one.stage for one in now} == set(round_.stages)
        assert sum(one.work for one in now) == sum(s.batch_size * s.num_steps for s in round_.specs)
        stages |= set(round_.stages)
        run_round(PLAN, results, best=best)
    assert Stage.CONFIRMATION in stages


def test_every_stage_says_why() -> None:
    results: dict[str, RunResult] = {}
    reasons: dict[Stage, str] = {}
    while found := upcoming([PLAN], results):
        reasons[found[0].stage] = found[0].reason
        run_round(PLAN, results, best=5.0)
    assert "names" in reasons[Stage.BASE]
    assert "touches an end of the learning rates tried (upper edge)" in reasons[Stage.EXTENSION]
    assert "error of the mean" in reasons[Stage.REFINEMENT]
    assert "chosen learning rate ε_eff = " in reasons[Stage.CONFIRMATION]


def test_where_nothing_is_stable_lower_rates_are_tried() -> None:
    plan = dataclasses.replace(PLAN, batch_sizes=(8,), learning_rates=((1.0, 2.0),))
    round_ = next_round([plan], {})
    assert round_ is not None
    (found,) = upcoming([plan], {spec.key: diverged() for spec in round_.specs})
    assert found.reason == "no learning rate tried so far is stable"
    assert max(found.learning_rates) < 1.0


def test_failed_runs_are_tried_again() -> None:
    round_ = next_round([PLAN], {})
    assert round_ is not None
    results = {spec.key: metric(spec, best=1.0) for spec in round_.specs}
    results[round_.specs[0].key] = failed()
    found = upcoming([PLAN], results)
    assert (found[0].num_runs, found[0].num_tried) == (1, 1)


def test_a_later_level_waits_for_its_estimate() -> None:
    plan = dataclasses.replace(PLAN, estimate_at=Budget.steps(200))
    found = upcoming([plan], {})
    assert {one.axes.budget for one in found} == {Budget.steps(200)}
