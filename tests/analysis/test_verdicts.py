"""Every verdict on made-up results that support the paper's claim, and on others that do not."""

from __future__ import annotations

import dataclasses

from helpers_landscape import broken_line, landscape_study
from isotherm.analysis.analysis import analyse
from isotherm.analysis.verdicts import HARDLY_ANY, Verdict, judge, judge_scaling
from isotherm.core.budget import Budget
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_runs

LINE = broken_line(1.0, 64, 4.0)


def verdict(study: StudyResults, *words: str) -> Verdict:
    """Return the one verdict whose claim holds all these words."""
    (found,) = [v for v in analyse(study).verdicts if all(word in v.claim for word in words)]
    assert found.evidence
    assert (found.remedy != "") is (found.holds is None)  # one that stays open says which runs would decide it
    return found


def test_linear_scaling_holds_for_slope_one_and_not_for_the_square_root() -> None:
    for slope, holds in ((1.0, True), (0.5, False)):
        study = landscape_study(optimum=broken_line(slope, 256, 8.0), peak=lambda _b, _m: 0.7, momenta=(0.9,))
        found = verdict(study, "proportional to the batch size")
        assert found.holds is holds
        assert f"B^{slope:.2f}"[:4] in found.evidence


def test_linear_scaling_does_not_hold_where_the_interval_is_too_wide_to_tell() -> None:
    study = landscape_study(
        optimum=broken_line(1.0, 64, 4.0), peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(8, 16, 32), noise=0.3
    )
    found = verdict(study, "proportional to the batch size")
    assert found.holds is None
    assert found.state == "not determined"
    assert "run more seeds" in found.remedy


def test_the_kink_is_found_or_said_not_to_be_seen() -> None:
    level = verdict(landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,)), "ends at a kink")
    assert level.holds
    assert "kink at B ≈ 64" in level.evidence
    rising = landscape_study(optimum=broken_line(1.0, 2**12, 64.0), peak=lambda _b, _m: 0.7, momenta=(0.9,))
    found = verdict(rising, "ends at a kink")
    assert found.holds is not True
    assert "kink not seen below B = 1024" in found.evidence
    few = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(16, 64, 256))
    assert verdict(few, "ends at a kink").holds is None


def test_optima_that_rise_to_the_end_show_no_kink() -> None:
    rising = landscape_study(
        optimum=lambda b, _m: b / 16, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(8, 16, 32, 64), noise=1e-5
    )
    (law,) = analyse(rising).regimes
    found = verdict(rising, "ends at a kink")
    assert found.holds is (False if law.part_with_kink <= HARDLY_ANY else None)
    straight = dataclasses.replace(law, part_with_kink=0.0)
    (series,) = analyse(rising).sweeps[0].series
    changed = dataclasses.replace(series, law=straight)
    (_, kink) = judge([changed], [], [judge_scaling(changed)])
    assert kink.holds is False


def test_momentum_on_either_side_of_the_kink() -> None:
    def helps_above(batch_size: int, momentum: float) -> float:
        return 0.7 + (0.05 if momentum > 0 and batch_size > 64 else 0.0)

    study = landscape_study(optimum=LINE, peak=helps_above)
    assert verdict(study, "below the kink", "does not help").holds
    assert verdict(study, "above the kink", "momentum helps").holds

    study = landscape_study(optimum=LINE, peak=lambda b, m: 0.7 + (0.05 if m > 0 and b <= 64 else 0.0))
    assert verdict(study, "below the kink").holds is False
    assert verdict(study, "above the kink").holds is False


def test_momentum_whose_gain_is_lost_in_noise_is_left_open() -> None:
    study = landscape_study(optimum=LINE, peak=lambda _b, m: 0.7 + (0.003 if m > 0 else 0.0), noise=0.008, num_seeds=2)
    for found in (verdict(study, "momentum does not help"), verdict(study, "momentum helps")):
        assert found.holds is None, found.evidence
        assert found.remedy == "run more seeds"


def test_momentum_that_harms_below_the_kink_is_said_so() -> None:
    study = landscape_study(optimum=LINE, peak=lambda _b, m: 0.7 - (0.05 if m > 0 else 0.0))
    found = verdict(study, "below the kink")
    assert found.holds
    assert "worse there" in found.evidence
    assert "-5." in found.evidence or "-4." in found.evidence


def falling(batch_size: int, _momentum: float) -> float:
    return 0.7 - (0.1 if batch_size == 1024 else 0.0)


def test_large_batches_fall_at_equal_steps() -> None:
    steps = Budget.steps(1000)
    study = landscape_study(optimum=LINE, peak=falling, budget=steps, momenta=(0.9,))
    assert verdict(study, "generalises worse although it fits no worse").holds
    level = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, budget=steps, momenta=(0.9,))
    assert verdict(level, "generalises worse").holds is None
    best_last = landscape_study(optimum=LINE, peak=lambda b, _m: 0.5 + b / 1e4, budget=steps, momenta=(0.9,))
    found = verdict(best_last, "generalises worse")
    assert found.holds is False
    assert "is the best" in found.evidence
    misfit = landscape_study(
        optimum=LINE, peak=falling, budget=steps, momenta=(0.9,), train_floor=lambda b, _m: 1.0 if b == 1024 else 0.1
    )
    assert verdict(misfit, "generalises worse").holds is False  # it fits worse too: nothing about generalisation


def test_test_optimum_against_train_optimum() -> None:
    steps = Budget.steps(1000)

    def with_train(factor: float) -> StudyResults:
        return landscape_study(
            optimum=LINE,
            train_optimum=lambda b, m: factor * LINE(b, m),
            peak=lambda _b, _m: 0.7,
            budget=steps,
            momenta=(0.9,),
        )

    assert verdict(with_train(0.5), "lies above the one that fits best").holds
    assert verdict(with_train(1.0), "lies above the one that fits best").holds is None
    below = verdict(with_train(2.0), "lies above the one that fits best")
    assert below.holds is False
    assert "below at 8 of 8" in below.evidence


def test_claims_that_the_results_cannot_speak_to_are_not_judged() -> None:
    study = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(8, 16))
    assert analyse(study).verdicts == ()
    epochs_only = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,))
    assert not any("equal steps" in v.claim or "momentum helps" in v.claim for v in analyse(epochs_only).verdicts)


def test_without_a_kink_momentum_has_no_sides() -> None:
    study = landscape_study(optimum=lambda _b, _m: 1.0, peak=lambda _b, m: 0.7 + (0.05 if m > 0 else 0.0))
    found = verdict(study, "below the kink", "helps above it")
    assert found.holds is None
    assert "no kink" in found.evidence


def test_sweeps_that_differ_in_more_than_momentum_are_not_compared() -> None:
    study = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7)
    (plan,) = study.plan.sweeps
    plain = dataclasses.replace(plan, momenta=(0.0,))
    other = dataclasses.replace(plan, momenta=(0.9,), model_id="another")
    results = {
        spec.key: study.by_key[twin.key]
        for changed in (plain, other)
        for spec, twin in zip(
            all_runs([changed], {}).values(),
            all_runs([dataclasses.replace(changed, model_id=plan.model_id)], {}).values(),
            strict=True,
        )
    }
    apart = StudyResults(plan=dataclasses.replace(study.plan, sweeps=(plain, other)), by_key=results)
    claims = [v.claim for v in analyse(apart).verdicts]
    assert len(claims) == 4
    assert not any("below the kink" in claim for claim in claims)


def test_a_single_seed_is_no_evidence() -> None:
    study = landscape_study(optimum=LINE, peak=falling, momenta=(0.9,), budget=Budget.steps(1000), num_seeds=2)
    plan = dataclasses.replace(study.plan.sweeps[0], seeds=(0,), num_kept=1)
    alone = StudyResults(plan=dataclasses.replace(study.plan, sweeps=(plan,)), by_key=study.by_key)
    assert analyse(alone).verdicts == ()


def test_an_optimum_at_the_end_of_a_grid_settles_nothing() -> None:
    study = landscape_study(
        optimum=LINE,
        train_optimum=lambda _b, _m: 2.0**-9,
        peak=lambda _b, _m: 0.7,
        budget=Budget.steps(1000),
        momenta=(0.9,),
    )
    found = verdict(study, "lies above the one that fits best")
    assert found.holds is None
    assert "the end of its grid" in found.evidence
    assert "widen" in found.remedy


def test_a_slope_of_one_through_optima_that_are_not_proportional_does_not_hold() -> None:
    optima = {2: 1 / 32, 4: 1 / 32, 8: 1 / 32, 16: 1 / 4}
    study = landscape_study(
        optimum=lambda b, _m: optima[b], peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=tuple(optima), noise=1e-4
    )
    found = verdict(study, "proportional to the batch size")
    assert "B^0.90" in found.evidence
    assert "1 lies outside" not in found.evidence
    assert found.holds is False
    assert "no one temperature fits" in found.evidence
    assert "2: 0.016, 4: 0.0078, 8: 0.0039, 16: 0.016" in found.evidence


def test_optima_half_a_step_off_the_line_are_still_proportional() -> None:
    study = landscape_study(
        optimum=lambda b, _m: b / 64 * (1.3 if b in (16, 64) else 0.8), peak=lambda _b, _m: 0.7, momenta=(0.9,)
    )
    found = verdict(study, "proportional to the batch size")
    assert found.holds, found.evidence


def test_scaling_and_kink_cannot_be_judged_by_optima_at_the_end_of_their_grids() -> None:
    capped = landscape_study(  # rises on and on, but the grids end at 2^8
        optimum=lambda b, _m: float(b), peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(32, 64, 128, 256, 512, 1024)
    )
    for words in ("proportional to the batch size", "ends at a kink"):
        found = verdict(capped, words)
        assert found.holds is None
        assert "widen" in found.remedy
        assert "cannot be judged: the optimum lies at the end of its grid at B = 256, 512, 1024" in found.evidence
    inside = landscape_study(
        optimum=broken_line(1.0, 256, 128.0), peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(32, 64, 128, 256, 512)
    )
    assert verdict(inside, "proportional to the batch size").holds
