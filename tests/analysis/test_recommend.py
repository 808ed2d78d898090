from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from helpers_landscape import SIZES, broken_line, first_sweep, landscape_study
from helpers_report import diverged, embedded_study, finished, make_plan, make_study, peaked
from isotherm.analysis.analysis import analyse
from isotherm.analysis.recommend import Recommendation, _smaller_batches
from isotherm.analysis.verdicts import Verdict
from isotherm.core.records import Direction, RunResult
from isotherm.core.statistics import Interval
from isotherm.core.torch_code import torch_code
from isotherm.sweep.plan import GridAxes
from isotherm.sweep.results import Results

LINE = broken_line(1.0, 64, 4.0)


def test_the_largest_batch_that_loses_nothing_is_recommended() -> None:
    study = landscape_study(optimum=LINE, peak=lambda b, _m: 0.7 if b <= 128 else 0.6, momenta=(0.9,), noise=0.001)
    (advice,) = analyse(study).recommendations
    assert advice.batch_size == 128
    assert advice.is_determined
    assert advice.effective_learning_rate == 4.0
    assert advice.learning_rate == pytest.approx(0.4)
    assert advice.temperature == 4.0 / 128
    assert advice.interval[0] <= 4.0 <= advice.interval[1]
    assert "batch size 128" in str(advice)
    assert "the largest batch size shown to lose less than 0.5 points there" in advice.evidence
    assert "Larger ones lose: B = 256 (10.0 [" in advice.evidence


def test_it_ends_in_the_lines_that_train_what_the_sweep_trained() -> None:
    study = landscape_study(optimum=LINE, peak=lambda b, _m: 0.7 if b <= 128 else 0.6, momenta=(0.9,), noise=0.001)
    (advice,) = analyse(study).recommendations
    (plan,) = study.plan.sweeps
    (axes,) = [axes for axes in plan.grids() if axes.batch_size == 128]
    assert advice.code == torch_code(plan.run_spec(axes, effective_learning_rate=4.0, seed=0))
    assert "lr=0.4, momentum=0.9" in "".join(advice.code)
    assert str(advice).splitlines()[1:] == list(advice.code)
    assert str(advice).splitlines()[0] == advice.words == f"{advice.answer} {advice.evidence}"


def test_one_answer_per_momentum() -> None:
    study = landscape_study(optimum=LINE, peak=lambda b, m: 0.7 if b <= (512 if m > 0 else 64) else 0.6, noise=0.001)
    assert [(a.momentum, a.batch_size) for a in analyse(study).recommendations] == [(0.0, 64), (0.9, 512)]


def test_noisier_runs_do_not_pass_more_easily() -> None:
    def advice(noise: float, fall: float) -> Recommendation:
        study = landscape_study(
            optimum=LINE, peak=lambda b, _m: 0.7 if b <= 64 else 0.7 - fall, momenta=(0.9,), noise=noise
        )
        return analyse(study).recommendations[0]

    quiet, noisy = advice(0.0003, 0.003), advice(0.02, 0.003)
    assert quiet.batch_size == 1024  # loses 0.3 points, known to be less than half a point
    assert quiet.undetermined == ()
    assert noisy.batch_size == noisy.best
    assert noisy.undetermined == tuple(b for b in SIZES if b > noisy.best)
    assert "Whether larger ones lose less than 0.5 points is not determined" in noisy.evidence
    assert advice(0.0003, 0.007).batch_size <= 64  # one standard deviation over seeds plays no part


def test_the_batch_size_is_chosen_on_the_tuned_quantity_and_not_on_the_test_set() -> None:
    def give(axes: GridAxes, rate: float, place: int) -> RunResult:
        found = peaked(axes, rate, place)
        assert found is not None
        assert found.test_metric is not None
        better = {"validation": axes.batch_size == 8, "test": axes.batch_size == 128}
        return dataclasses.replace(
            found,
            validation_metric=found.test_metric - 0.05 + 0.2 * better["validation"],
            test_metric=found.test_metric - 0.05 + 0.2 * better["test"],
        )

    (by_validation,) = analyse(make_study(make_plan(tune_on="validation"), give=give)).recommendations
    (by_test,) = analyse(make_study(make_plan(tune_on="test"), give=give)).recommendations
    assert (by_validation.batch_size, by_test.batch_size) == (8, 128)
    assert by_validation.evidence.startswith("Chosen on the validation set")
    assert by_validation.test_metric == pytest.approx(0.642)  # the test metric at the choice, not its best
    assert "They also made the choice, which may flatter the number" in by_validation.evidence
    assert "They also made the choice on the test set itself" in by_test.evidence


def confirmed(*values: float, **changes: Any) -> Recommendation:
    """Return the advice of seeds that choose with 71.5 %, and these confirming ones; one more diverges."""
    plan = make_plan(num_confirm=4, **changes)
    found = dict(make_study(plan).by_key)
    for axes in plan.grids():
        for seed, result in zip(plan.confirming_seeds, [*map(finished, values), diverged()], strict=True):
            found[plan.run_spec(axes, effective_learning_rate=1.0, seed=seed).key] = result
    (advice,) = analyse(Results(plan=plan, by_key=found)).recommendations
    assert advice.is_confirmed
    return advice


def test_numbers_come_from_the_confirming_seeds() -> None:
    advice = confirmed(0.60, 0.61, 0.62)
    assert (advice.test_metric, advice.num_runs) == (pytest.approx(0.61), 3)
    assert "Test accuracy 61.0 % [58.5, 63.5] over 3 confirming seeds; 1 more diverged; the seeds" in advice.evidence
    assert "the seeds that chose the learning rate say 71.5 %, which the choice may flatter." in advice.evidence


def test_a_choice_whose_seeds_do_worse_than_those_that_confirm_has_flattered_nothing() -> None:
    better = confirmed(0.73, 0.74, 0.75)
    assert "the seeds that chose the learning rate say 71.5 %." in better.evidence
    assert "flatter" not in better.evidence


def test_a_loss_is_compared_on_its_own_scale() -> None:
    def give(axes: GridAxes, rate: float, place: int) -> RunResult:
        height = 2.0 * (1.0 if axes.batch_size == 8 else 1.003)
        return finished(height + 0.1 * math.log2(rate) ** 2 + 1e-4 * place)

    plan = make_plan(metric="loss", metric_direction=Direction.MINIMISE)
    (advice,) = analyse(make_study(plan, give=give)).recommendations
    assert (advice.best, advice.batch_size) == (8, 128)  # worse by a third of the margin
    assert advice.margin == pytest.approx(0.01 * 2.01, rel=0.01)


def test_nothing_is_recommended_from_nothing() -> None:
    plan = first_sweep(landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7)).plan
    assert analyse(Results(plan=plan, by_key={})).recommendations == ()


def test_an_optimum_at_the_end_of_its_grid_gives_no_confident_answer() -> None:
    study = landscape_study(optimum=lambda _b, _m: 2.0**12, peak=lambda _b, _m: 0.7, momenta=(0.9,))
    (advice,) = analyse(study).recommendations
    assert not advice.is_determined
    assert "may lie beyond" in advice.evidence
    assert ": not determined; best so far batch size" in str(advice)
    assert advice.code[0] == "# not determined; the best so far:"


def test_a_batch_size_whose_optimum_lies_at_the_end_of_its_grid_is_not_said_to_cost_nothing() -> None:
    study = landscape_study(
        optimum=lambda b, _m: 1.0 if b < 1024 else 2.0**9,
        peak=lambda b, _m: 0.7 if b <= 64 else 0.65 if b < 1024 else 0.69,
        momenta=(0.9,),
        noise=0.0003,
    )
    (advice,) = analyse(study).recommendations
    assert (advice.batch_size, advice.is_determined) == (64, True)
    assert advice.undetermined == (1024,)  # worse so far, but its optimum may lie beyond
    assert "1024 (its best learning rate lies at the end of its grid)" in advice.evidence


def test_a_smaller_batch_size_that_may_be_better_is_said_so() -> None:
    study = landscape_study(
        optimum=lambda b, _m: 1.0 if b > 8 else 2.0**-9,
        peak=lambda b, _m: 0.7 if b == 64 else 0.65,
        momenta=(0.9,),
        noise=0.0003,
    )
    (advice,) = analyse(study).recommendations
    assert advice.batch_size == 64
    assert "Smaller ones may be better than found: B = 8 (its best learning rate lies at the end" in advice.evidence


def test_an_incomplete_grid_is_said_so() -> None:
    study = make_study(make_plan(), give=lambda axes, rate, place: None if rate == 4.0 else peaked(axes, rate, place))
    (advice,) = analyse(study).recommendations
    assert not advice.is_determined
    assert "Runs are missing: the optimum may still move." in advice.evidence


def test_accuracy_is_told_in_percent_and_other_metrics_as_they_are() -> None:
    (advice,) = analyse(make_study(make_plan())).recommendations
    assert "Test accuracy 69.2 % [62.7, 75.7] over all 5 seeds." in advice.evidence
    assert str(advice).startswith("constant_steps, 2,000 steps, momentum 0.9: batch size ")
    assert ", learning rate 0.1 (ε_eff = 1, interval [" in str(advice)
    (advice,) = analyse(make_study(make_plan(metric="mean_squared_error"))).recommendations
    assert "Test mean squared error 0.692 [0.6267, 0.7573] over all 5 seeds." in advice.evidence
    (advice,) = analyse(make_study(make_plan(seeds=(0,), num_kept=1))).recommendations
    assert "Test accuracy 70.0 %, from a single seed: run more seeds." in advice.evidence


def test_intervals_of_accuracies_stay_inside_their_range() -> None:
    def give(axes: GridAxes, rate: float, place: int) -> RunResult:
        return finished((0.99 if place else 0.9) - 0.1 * abs(math.log2(rate)))

    bounded = make_plan(metric_bounds=(0.0, 1.0))
    (advice,) = analyse(make_study(bounded, give=give)).recommendations
    low, high = advice.test_interval
    assert 0.9 < low < advice.test_metric < high == 1.0
    assert ", 100.0] over all 5 seeds" in advice.evidence
    single_seed = dataclasses.replace(bounded, seeds=(0,), num_kept=1)
    (single,) = analyse(make_study(single_seed, give=give)).recommendations
    assert single.test_interval == (0.0, 1.0)


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


def test_without_a_kink_the_law_found_holds_for_smaller_batches() -> None:
    sizes = SIZES[:4]
    rising = landscape_study(optimum=broken_line(1.0, 1024, 16.0), peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=sizes)
    (advice,) = analyse(rising).recommendations
    assert "No kink is shown; for smaller batches, keep the temperature, ε_eff ∝ B (found: B^" in advice.evidence
    flat = landscape_study(optimum=lambda _b, _m: 1.0, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=sizes)
    (advice,) = analyse(flat).recommendations
    assert "These batch sizes do not determine how the learning rate scales" in advice.evidence


def test_a_square_root_law_does_not_keep_the_temperature() -> None:
    (law,) = analyse(landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,))).regimes
    fit = dataclasses.replace(law, slope=Interval(estimate=0.5, low=0.4, high=0.7))
    text = _smaller_batches(fit, None, 32)
    assert "ε_eff ∝ B^0.50 [0.40, 0.70]" in text
    assert "keep the temperature" not in text
    # Equivalent to proportional within the margin, and yet the measured slope excludes 1.
    near = dataclasses.replace(law, slope=Interval(estimate=0.9, low=0.85, high=0.95))
    text = _smaller_batches(near, Verdict(claim="proportional", holds=True, evidence=""), 32)
    assert "scale the learning rate as ε_eff ∝ B^0.90 [0.85, 0.95]; that counts as proportional" in text
    assert "not constant" not in text


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
    assert ("keep the temperature" in advice.evidence) == (scaling.holds is True)
