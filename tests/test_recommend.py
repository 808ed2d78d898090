from __future__ import annotations

import pytest

from helpers_landscape import broken_line, first_sweep, landscape_study
from isotherm.errors import UserError
from isotherm.recommend import recommend
from isotherm.results import Results

LINE = broken_line(1.0, 64, 4.0)


def test_the_largest_batch_that_loses_nothing_is_recommended() -> None:
    study = landscape_study(optimum=LINE, peak=lambda b, _m: 0.7 if b <= 128 else 0.6, momenta=(0.9,))
    (advice,) = recommend(first_sweep(study))
    assert advice.batch_size == 128
    assert advice.effective_learning_rate == 4.0
    assert advice.learning_rate == pytest.approx(0.4)
    assert advice.temperature == 4.0 / 128
    assert advice.interval[0] <= 4.0 <= advice.interval[1]
    assert "batch size 128" in str(advice)


def test_one_answer_per_momentum() -> None:
    study = landscape_study(optimum=LINE, peak=lambda b, m: 0.7 if b <= (512 if m > 0 else 64) else 0.6)
    assert [(a.momentum, a.batch_size) for a in recommend(first_sweep(study))] == [(0.0, 64), (0.9, 512)]


def test_nothing_is_recommended_from_nothing() -> None:
    plan = first_sweep(landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7)).plan
    with pytest.raises(UserError, match="no batch size has a stable optimum yet"):
        recommend(Results(plan=plan, by_key={}))


def test_an_optimum_at_the_edge_is_said_so() -> None:
    study = landscape_study(optimum=lambda _b, _m: 2.0**12, peak=lambda _b, _m: 0.7, momenta=(0.9,))
    (advice,) = recommend(first_sweep(study))
    assert "may lie further out" in advice.evidence
