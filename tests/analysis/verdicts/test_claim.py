from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from helpers_protocol import make_plan
from helpers_verdicts import RUN
from isotherm.analysis.verdicts.claim import Claim, Excess, Verdict, decided, holm, tail_probability
from isotherm.analysis.verdicts.obstacles import Obstacle
from isotherm.analysis.verdicts.remedies import finish


def normal(mean: float, *, error: float = 1.0, num: int = 4000) -> np.ndarray:
    return mean + error * np.random.default_rng(0).normal(size=num)


def claim(mean: float, *, margin: float = 1.0, text: str = "it is above 0") -> Claim:
    draws = normal(mean)
    return Claim(
        text=text,
        evidence="a number",
        plan=make_plan(seeds=(0, 1, 2, 3), resolution="adaptive"),
        holds=(Excess(draws=draws, limit=0.0),),
        fails=((Excess(draws=-draws, limit=-margin),),),
    )


def blocked() -> Claim:
    return Claim.blocked("who knows", make_plan(), Obstacle(words="runs are missing", remedy=finish()))


def test_three_states_by_two_probabilities() -> None:
    for mean, holds in ((4.0, True), (-3.0, False), (0.5, None)):
        (found,) = decided([claim(mean)], run=RUN)
        assert found.holds is holds
        assert found.num_verdicts_corrected == 1
        assert (found.remedy != "") is (holds is None)
        assert (found.command != "") is (holds is None)
    assert found.p_corrected == min(found.p_holds or 1.0, found.p_fails or 1.0)


def test_holm_is_stricter_the_more_claims_are_judged_and_says_so() -> None:
    strong, weak = claim(4.0), claim(2.0, margin=-100.0)  # p = 0.023 alone
    assert decided([weak], run=RUN)[0].holds
    found = decided([weak, *[claim(0.5, margin=-100.0)] * 3], run=RUN)[0]
    assert found.holds is None
    assert found.num_verdicts_corrected == 4
    assert "Holm over 4 verdicts" in str(found)
    assert found.p_holds is not None
    assert found.p_corrected == pytest.approx(4 * found.p_holds)
    # Holm, not Bonferroni: what is clear does not count against the rest.
    assert decided([weak, strong], run=RUN)[0].holds


def test_claims_that_cannot_be_tested_do_not_count_and_name_their_remedy() -> None:
    open_, judged = decided([blocked(), claim(4.0)], run=RUN)
    assert open_.holds is None
    assert (open_.p_holds, open_.p_fails, open_.p_corrected, open_.p_words) == (None, None, None, "")
    assert open_.evidence == "cannot be judged: runs are missing"
    assert open_.remedy_words == "finish its runs: isotherm run made.toml"
    assert judged.num_verdicts_corrected == 1


def test_holm_by_hand() -> None:
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_a_probability_pays_for_every_try() -> None:
    one, seven = (Excess(draws=normal(2.0), limit=0.0, num_tried=num).p for num in (1, 7))
    assert one == pytest.approx(0.023, rel=0.2)
    assert seven == pytest.approx(7 * one)
    assert Excess(draws=normal(0.0), limit=0.0, num_tried=7).p == 1.0


def test_beyond_what_draws_show_the_tail_is_heavier_than_normal_and_never_ends() -> None:
    found = [tail_probability(normal(mean), 0.0) for mean in (2.2, 2.5, 3.0, 4.0, 6.0, 50.0)]
    assert found == sorted(found, reverse=True)
    for mean, p in zip((2.5, 3.0, 4.0, 6.0, 50.0), found[1:], strict=True):
        assert stats.norm.sf(1.05 * mean) < p < 0.01
    assert found[-1] > 0
    assert tail_probability(np.ones(100), 0.0) > 0
    assert tail_probability(np.ones(100), 1.0) == 1.0


def test_a_claim_holds_by_all_its_parts_and_fails_by_any() -> None:
    clear, unclear = Excess(draws=normal(9.0), limit=0.0), Excess(draws=normal(0.0), limit=0.0)
    both = Claim(text="", evidence="", plan=make_plan(), holds=(clear, unclear), fails=((unclear,), (clear,)))
    assert both.p_holds == unclear.p
    assert both.p_fails == clear.p
    together = Claim(text="", evidence="", plan=make_plan(), holds=(unclear,), fails=((unclear, clear),))
    assert together.p_fails == unclear.p


def test_the_seeds_that_a_remedy_names_would_decide_it() -> None:
    """With an effect of 1.5 standard errors, (1.64 + 0.84)² / 1.5² = 2.75 times as many seeds have 80 % power."""
    (found,) = decided([claim(1.5, margin=-100.0)], run=RUN)
    assert found.command in ("isotherm run made.toml --seeds 11", "isotherm run made.toml --seeds 12")
    factor = Excess(draws=normal(1.5), limit=0.0).seeds_factor(0.05)
    assert factor == pytest.approx(2.75, rel=0.1)
    generator = np.random.default_rng(1)
    seen = generator.normal(1.5 * math.sqrt(factor), 1.0, size=4000) > 1.645
    assert np.mean(seen) == pytest.approx(0.8, abs=0.05)


def test_words() -> None:
    fails = Verdict(claim="c", holds=False, evidence="e", p_fails=0.0001, p_corrected=0.0002, num_verdicts_corrected=2)
    assert str(fails) == "does not hold: c (e; p < 0.001; Holm over 2 verdicts)"
    assert [Verdict(claim="", holds=h, evidence="").mark for h in (True, False, None)] == ["✓", "✗", "?"]
