"""The quick part of docs/statistics.md: few simulations, which a broken estimator would still not survive."""

from __future__ import annotations

import numpy as np
import pytest

import simulations
from families import Family
from simulations import CLAIMS, QUANTITIES, SCENARIOS, SIX_SIZES, Scenario, block_jobs, coverage, done, verdict_rates


@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    """Of 36 heights and 18 slopes, kinks and plateaus; at 95 % fewer would hold in one of a thousand such tests."""
    families = [Family(shape=shape, sizes=SIX_SIZES, slope=slope) for shape, slope in (("4x", 1.0), ("10x", 0.5))]
    found = [coverage(family, num=3, seed=5) for family in families]
    held = {name: float(np.mean([one["held"][name] for one in found])) for name in QUANTITIES}
    assert held["height"] >= 29 / 36
    assert (held["slope"] + held["kink"] + held["plateau"]) / 3 >= 14 / 18
    for name in QUANTITIES:
        assert all(
            np.allclose(one["held"][name], np.mean(np.abs(one["errors"][name]) <= 1, axis=1), atol=0.13)
            for one in found  # errors are rounded: at most one of eight heights is on the edge
        )
    assert all(one["width"]["slope"] < 0.6 for one in found)
    assert all(one["width"]["height"] < 0.04 for one in found)


@pytest.mark.slow
def test_false_claims_are_seldom_said_to_hold_and_true_ones_often() -> None:
    false, _, true = SCENARIOS
    family = Family(sizes=SIX_SIZES, shape="4x")
    counts = verdict_rates(false, family, num=2, seed=9)["claims"]
    alone = sum(counts[claim].get("holds_alone", 0) for claim in false.false_claims)
    assert alone <= 2  # of 16
    assert sum(counts[claim].get("holds", 0) for claim in false.false_claims) <= 1
    found = verdict_rates(true, family, num=1, seed=9)["claims"]
    assert found["proportional"]["holds"] == found["proportional"]["total"] == 2
    assert found["helps above"]["holds"] == 1
    assert not any("fails" in found[claim] for claim in CLAIMS)


def test_every_job_can_be_repeated_from_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [*block_jobs(0), *block_jobs(1)]
    assert len({str(job) for job in wanted}) == len(wanted)
    seeds = [job["seed"] for job in wanted]
    assert len(set(seeds)) == len(seeds)
    asked: list[tuple[str, int, int]] = []

    def noted(*arguments: object, num: int, seed: int) -> dict[str, object]:
        asked.append((str(arguments[0]), num, seed))
        return {}

    monkeypatch.setattr(simulations, "coverage", noted)
    monkeypatch.setattr(simulations, "verdict_rates", noted)
    for job in (wanted[0], wanted[-1]):
        assert done(job).items() >= job.items()
    assert [entry[2] for entry in asked] == [wanted[0]["seed"], wanted[-1]["seed"]]


def test_scenarios_say_which_claims_are_false() -> None:
    assert all(set(scenario.false_claims) <= set(CLAIMS) for scenario in SCENARIOS)
    judged = {claim for scenario in SCENARIOS for claim in scenario.false_claims}
    assert judged == set(CLAIMS)
    changed = Scenario(name="x", words="", changes={"fall": 0.1}, false_claims=()).of(Family())
    assert changed.fall == 0.1
