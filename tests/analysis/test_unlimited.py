from __future__ import annotations

import math

import pytest

from helpers_protocol import diverged, fill, make_plan
from isotherm.analysis.unlimited import budget_series, common_target, steps_to_target
from isotherm.core.budget import Budget
from isotherm.core.records import RunResult, RunSpec
from isotherm.errors import UserError
from isotherm.sweep.doubling import StopReason
from isotherm.sweep.results import Results
from isotherm.sweep.rounds import missing_runs

BUDGETS = tuple(Budget.steps(n) for n in (10, 20, 40, 80))


def accuracy(spec: RunSpec) -> RunResult | float:
    """Return 0.1 per doubling of the updates from 10, and as many again per doubling of the batch from 8."""
    if spec.batch_size == 64:
        return diverged()
    return 0.1 * math.log2(spec.num_steps / 10) + 0.1 * math.log2(spec.batch_size / 8) + 0.001 * spec.seed


def results_of(**changes: object) -> Results:
    plan = make_plan(**{"budgets": BUDGETS, "batch_sizes": (8, 16), "max_extensions": 0, **changes})
    found: dict[str, RunResult] = {}
    while specs := missing_runs([plan], found):
        fill(found, specs, accuracy)
    return Results(plan=plan, by_key=found)


def test_updates_to_a_target_lie_between_two_budgets() -> None:
    small, large = steps_to_target(results_of(), 0.1505)
    assert (small.missed, small.met) == (20, 40)
    assert small.num_steps == pytest.approx(20 * 2**0.5)
    assert large.num_steps == pytest.approx(small.num_steps / 2)
    assert str(small) == "B = 8, m = 0: about 28 updates, between 20 and 40"


def test_a_target_that_is_met_at_once_or_never_has_one_bound() -> None:
    small, large = steps_to_target(results_of(), 0.05)
    assert (large.missed, large.met, large.num_steps) == (None, 10, None)
    assert str(large) == "B = 16, m = 0: at most 10 updates"
    small, _ = steps_to_target(results_of(), 0.35)
    assert (small.missed, small.met, small.num_steps) == (80, None, None)
    assert str(small) == "B = 8, m = 0: not met with 80 updates"


def test_no_stable_learning_rate_tells_nothing() -> None:
    (one,) = steps_to_target(results_of(batch_sizes=(64,)), 0.1)
    assert (one.missed, one.met) == (None, None)
    assert str(one) == "B = 64, m = 0: not known"


def test_the_common_target_is_what_every_batch_size_reaches() -> None:
    assert common_target(budget_series(results_of())) == pytest.approx(0.3005)
    assert common_target(budget_series(results_of(batch_sizes=(8, 64)))) is None
    assert common_target([]) is None


def test_series_say_why_they_end() -> None:
    until = Budget.until(first=2, at_most=8, target=0.1)
    series = budget_series(results_of(budgets=until.budgets, until=until, num_train=40))
    assert [one.reason for one in series] == [StopReason.TARGET] * 2
    assert [one.num_steps for one in series] == [(10, 20), (5, 10)]
    assert str(series[0]) == "B = 8, m = 0: best at 4 epochs, 0.1005; ends at 4 epochs: the target is met"
    until = Budget.until(first=2, at_most=8)
    series = budget_series(results_of(budgets=until.budgets, until=until, num_train=40))
    assert [one.reason for one in series] == [StopReason.LARGEST] * 2


def test_series_of_missing_runs_have_no_reason() -> None:
    until = Budget.until(first=2, at_most=8)
    plan = make_plan(budgets=until.budgets, until=until)
    (one,) = budget_series(Results(plan=plan, by_key={}))
    assert (one.reason, one.best) == (None, None)
    assert str(one) == "B = 16, m = 0: runs are missing"


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UserError, match="the sweep has one budget"):
        steps_to_target(results_of(budgets=BUDGETS[:1]), 0.5)
    with pytest.raises(UserError, match="target=nan is not a number"):
        steps_to_target(results_of(), math.nan)
