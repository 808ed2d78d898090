"""Verdicts of whole studies, from runs to words."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from families import Family, simulate
from helpers_landscape import broken_line, landscape_study
from isotherm.analysis.analysis import analyse
from isotherm.analysis.verdicts import Verdict
from isotherm.core.budget import Budget
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_runs

LINE = broken_line(1.0, 64, 4.0)
SIX = (16, 32, 64, 128, 256, 512)
STEPS = Budget.steps(1000)


def by_words(verdicts: tuple[Verdict, ...], *words: str) -> Verdict:
    """Return the one verdict whose claim holds all these words."""
    (found,) = [v for v in verdicts if all(word in v.claim for word in words)]
    return found


@pytest.fixture(scope="module")
def paper() -> tuple[Verdict, ...]:
    """The verdicts on a study in which everything is as the paper says, but for the fall of large batches."""
    family = Family(sizes=SIX, momenta=(0.0, 0.9), gain_above=0.03, train_shift=0.8, ratio=2**0.5, noise=0.003)
    return analyse(simulate(family, np.random.default_rng(0)).study, run=("isotherm", "run", "paper.toml")).verdicts


def test_a_study_like_the_paper_gives_its_verdicts(paper: tuple[Verdict, ...]) -> None:
    for words in (
        ("SGD", "proportional to"),
        ("momentum 0.9", "proportional to"),
        ("SGD", "ends at a kink"),
        ("above the kink", "momentum helps"),
        ("below the kink", "does not help"),
        ("SGD", "lies above the one that fits best"),
    ):
        (found,) = (
            [v for v in paper if all(word in v.claim for word in words) and "simulated, momentum" not in v.claim]
            if "momentum 0.9" not in words
            else [by_words(paper, *words)]
        )
        assert found.holds is True, found
    assert by_words(paper, "SGD", "generalises worse").holds is not True  # there is no fall


def test_every_verdict_says_how_it_was_corrected_or_what_would_decide_it(paper: tuple[Verdict, ...]) -> None:
    assert len(paper) == 10
    assert {v.num_verdicts_corrected for v in paper} == {10}
    for verdict in paper:
        assert verdict.evidence
        assert "Holm over 10 verdicts" in str(verdict)
        assert (verdict.holds is None) is bool(verdict.remedy)
        assert verdict.holds is not None or verdict.command.startswith("isotherm run paper.toml")


def test_too_few_batch_sizes_or_seeds_leave_every_claim_open() -> None:
    two = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(8, 16), budget=STEPS)
    one = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=SIX, budget=STEPS, num_seeds=2)
    plan = dataclasses.replace(one.plan.sweeps[0], seeds=(0,), num_kept=1)
    alone = StudyResults(plan=dataclasses.replace(one.plan, sweeps=(plan,)), by_key=one.by_key)
    for study, words, option in (
        (two, "2 batch sizes are not enough", ""),
        (alone, "one seed is not enough", "--seeds 5"),
    ):
        verdicts = analyse(study).verdicts
        assert len(verdicts) == 4
        for verdict in verdicts:
            assert verdict.holds is None
            assert words in verdict.evidence
            assert option in verdict.command
            assert verdict.num_verdicts_corrected == 0


def test_a_single_batch_size_asks_nothing() -> None:
    study = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(8,), budget=STEPS)
    assert analyse(study).verdicts == ()


def test_optima_at_the_ends_of_their_grids_settle_nothing() -> None:
    capped = landscape_study(  # rises on and on, but the grids end at 2^8
        optimum=lambda b, _m: float(b), peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=SIX, budget=STEPS
    )
    for verdict in analyse(capped).verdicts:
        assert verdict.holds is None
        assert "the end of its grid at B = 256, 512" in verdict.evidence
        assert "--max-extensions 3" in verdict.command


def test_a_study_with_missing_runs_settles_nothing() -> None:
    study = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=SIX[:4], budget=STEPS)
    key = next(k for k, spec in all_runs(study.plan.sweeps, study.by_key).items() if spec.batch_size == 64)
    partial = StudyResults(plan=study.plan, by_key={k: r for k, r in study.by_key.items() if k != key})
    for verdict in analyse(partial).verdicts:
        assert verdict.holds is None
        assert "runs are missing at B = 64" in verdict.evidence
        assert verdict.command == "isotherm run made"


def test_sweeps_that_differ_in_more_than_momentum_are_not_compared() -> None:
    study = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, sizes=SIX[:4], num_seeds=2)
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


def test_advice_gets_the_verdict_on_its_own_series() -> None:
    from isotherm.analysis.verdicts import judge

    study = landscape_study(optimum=LINE, peak=lambda _b, _m: 0.7, momenta=(0.9,), sizes=(8, 16), num_seeds=2)
    (sweep,) = analyse(study).sweeps
    judged = judge(sweep.series, [], run=("isotherm", "run", "made"))
    assert judged.scaling == (by_words(judged.verdicts, "proportional to"),)
