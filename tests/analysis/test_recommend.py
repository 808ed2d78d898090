from __future__ import annotations

import dataclasses

import pytest

from helpers_landscape import broken_line, first_sweep, landscape_study
from helpers_report import embedded_study, make_plan, make_study, peaked
from isotherm.analysis.analysis import analyse
from isotherm.analysis.recommend import _smaller_batches
from isotherm.analysis.verdicts import Verdict
from isotherm.core.statistics import Interval
from isotherm.sweep.results import Results

LINE = broken_line(1.0, 64, 4.0)


def test_the_largest_batch_that_loses_nothing_is_recommended() -> None:
    study = landscape_study(optimum=LINE, peak=lambda b, _m: 0.7 if b <= 128 else 0.6, momenta=(0.9,))
    (advice,) = analyse(study).recommendations
    assert advice.batch_size == 128
    assert advice.effective_learning_rate == 4.0
    assert advice.learning_rate == pytest.approx(0.4)
    assert advice.temperature == 4.0 / 128
    assert advice.interval[0] <= 4.0 <= advice.interval[1]
    assert "batch size 128" in str(advice)


def test_one_answer_per_momentum() -> None:
    study = landscape_study(optimum=LINE, peak=lambda b, m: 0.7 if b <= (512 if m > 0 else 64) else 0.6)
    assert [(a.momentum, a.batch_size) for a in analyse(study).recommendations] == [(0.0, 64), (0.9, 512)]


def test_nothing_is_recommended_from_nothing() -> None:
    plan = first_sweep(landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7)).plan
    assert analyse(Results(plan=plan, by_key={})).recommendations == ()


def test_an_optimum_at_the_edge_is_said_so() -> None:
    study = landscape_study(optimum=lambda _b, _m: 2.0**12, peak=lambda _b, _m: 0.7, momenta=(0.9,))
    (advice,) = analyse(study).recommendations
    assert "may lie beyond" in advice.evidence


def test_an_incomplete_grid_is_said_so() -> None:
    study = make_study(make_plan(), give=lambda axes, rate, place: None if rate == 4.0 else peaked(axes, rate, place))
    (advice,) = analyse(study).recommendations
    assert "Runs are missing: the optimum may still move." in advice.evidence


def test_accuracy_is_told_in_percent_and_other_metrics_as_they_are() -> None:
    (advice,) = analyse(make_study(make_plan())).recommendations
    assert "Mean test accuracy 69.2 %; the best is 69.2 ± 5.3 % at B = 8 (n = 5)." in advice.evidence
    assert str(advice).startswith("constant_steps, 2,000 steps, momentum 0.9: batch size 128, learning rate 0.1 (")
    (advice,) = analyse(make_study(make_plan(metric="mean_squared_error"))).recommendations
    assert "Mean test mean squared error 0.692; the best is 0.692 ± 0.053 at B = 8" in advice.evidence
    (advice,) = analyse(make_study(make_plan(seeds=(0,), num_kept=1))).recommendations
    assert "From a single seed: test accuracy 70.0 % at B = 8; run more seeds." in advice.evidence


@pytest.mark.parametrize("last", [32, 512])  # below and above the kink
def test_the_temperature_is_kept_only_where_the_law_found_says_so(last: int) -> None:
    def evidence(slope: float) -> str:
        study = landscape_study(
            optimum=broken_line(slope, 64, 4.0), peak=lambda b, _m: 0.7 if b == last else 0.6, momenta=(0.9,)
        )
        (advice,) = analyse(study).recommendations
        assert advice.batch_size == last
        assert ("above the kink" in advice.evidence) is (last == 512)
        return advice.evidence

    assert "keep the temperature, ε_eff ∝ B (found: B^1.0" in evidence(1.0)
    other = evidence(2.0)
    assert "keep the temperature" not in other
    assert "scale the learning rate as ε_eff ∝ B^2.0" in other
    assert "temperature is not constant" in other


def test_a_square_root_law_does_not_keep_the_temperature() -> None:
    (law,) = analyse(landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,))).regimes
    fit = dataclasses.replace(law, slope=Interval(estimate=0.5, low=0.4, high=0.7))
    text = _smaller_batches(fit, None, 32)
    assert "ε_eff ∝ B^0.50 [0.40, 0.70]" in text
    assert "keep the temperature" not in text


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        (True, "keep the temperature"),
        (False, "the optimal temperature is not constant there"),
        (None, "whether that is proportional is not determined"),
    ],
)
def test_advice_and_verdict_agree(holds: bool | None, words: str) -> None:
    (law,) = analyse(landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,))).regimes
    assert law.slope.contains(1.0)
    assert words in _smaller_batches(law, Verdict(claim="proportional", holds=holds, evidence=""), 32)


def test_advice_follows_the_verdict_on_the_same_page() -> None:
    analysis = analyse(embedded_study())
    (scaling,) = [v for v in analysis.verdicts if "constant_epochs, SGD" in v.claim and "proportional to" in v.claim]
    (advice,) = [a for a in analysis.recommendations if (a.sweep, a.momentum) == ("constant_epochs", 0.0)]
    assert scaling.holds is False
    assert "keep the temperature" not in advice.evidence
