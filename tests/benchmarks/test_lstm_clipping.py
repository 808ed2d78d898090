"""Which runs ask whether clipping makes the LSTM's √B law."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import lstm_clipping
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.rounds import missing_runs
from isotherm.tasks.builtin import built_in
from pages import clipping


@pytest.fixture(scope="module")
def plans() -> tuple[SweepPlan, ...]:
    tokens = [torch.arange(num) ** 2 % 11 for num in (256 * 40, 40, 38)]
    train, validation, test = ((t[:-1], t[1:]) for t in tokens)
    task = built_in("lstm_ptb", train=train, validation=validation, test=test, vocabulary=11, width=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lstm_clipping.it, "get_task", lambda name, *, data: task)
        return lstm_clipping.study_of([16, 64, 256], clipping.KINDS, data=None).plan().sweeps


def test_thresholds(plans: tuple[SweepPlan, ...]) -> None:
    found = {plan.name: plan.clip_norm for plan in plans}
    assert found["fixed, B = 16"] == found["fixed, B = 256"] == found["scaled, B = 64"] == 5.0
    assert (found["scaled, B = 16"], found["scaled, B = 256"], found["none, B = 16"]) == (10.0, 2.5, 1e9)


def test_all_kinds_at_a_batch_size_are_one_fleet(plans: tuple[SweepPlan, ...]) -> None:
    specs = missing_runs([plan for plan in plans if plan.batch_sizes == (64,)], {})
    assert len(specs) == 30  # two of the three kinds have the same threshold there
    assert {spec.clip_norm is None for spec in specs} == {False}


def test_grids_hold_the_optima_of_either_law(plans: tuple[SweepPlan, ...]) -> None:
    for plan in plans:
        if not plan.name.startswith("none"):
            (rates,), (size,) = plan.learning_rates, plan.batch_sizes
            assert all(min(rates) < 2.8 * (size / 64) ** power < max(rates) for power in (0.5, 1.0))
            assert all(math.isclose(high / low, 2) for low, high in itertools.pairwise(rates))


def test_runs_take_a_tenth_of_the_papers_epochs(plans: tuple[SweepPlan, ...]) -> None:
    assert {budget.amount for plan in plans for budget in plan.budgets} == {4}


def test_only_runs_without_clipping_are_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(rate: float, clip_norm: float | None, metric: float | None) -> clipping.Row:
        spec = {"batch_size": 64, "effective_learning_rate": rate, "clip_norm": clip_norm}
        return {"spec": spec, "result": {"test_metric": metric}}

    rows = [row(0.2, None, 1e40), row(0.2, None, 300.0), row(0.1, 5.0, 200.0), row(0.4, 1e9, None)]
    monkeypatch.setattr(clipping, "rows", lambda: rows)
    found = [(size, rate, clipping._counted(results)) for size, rate, results in clipping._unclipped()]
    assert found == [(64, 0.2, ("2", "1", "300")), (64, 0.4, ("1", "0", "–"))]
