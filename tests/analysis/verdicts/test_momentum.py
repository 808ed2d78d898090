from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers_verdicts import alone, broken, made_pair, made_series, with_optimum_at_end
from isotherm.analysis.series import Pair
from isotherm.analysis.verdicts.claim import Verdict
from isotherm.analysis.verdicts.momentum import momentum_claims


def pair(gain: Callable[[int], float], **changes: object) -> Pair:
    plain = made_series(optimum=broken(1.0, 6.0), **changes)  # type: ignore[arg-type]
    heavy = made_series(optimum=broken(1.0, 8.0), height=lambda b: 0.7 + gain(b), momentum=0.9, **changes)  # type: ignore[arg-type]
    return made_pair(plain, heavy)


def verdicts(gain: Callable[[int], float], **changes: object) -> tuple[Verdict, Verdict]:
    below, above = (alone(claim) for claim in momentum_claims(pair(gain, **changes)))
    assert "below the kink" in below.claim
    assert "above the kink" in above.claim
    return below, above


def test_momentum_that_helps_above_alone_is_as_the_paper_says() -> None:
    below, above = verdicts(lambda b: 0.03 if b > 64 else 0.0)
    assert below.holds is True
    assert above.holds is True
    assert "over B = 8, 16, 32" in below.evidence
    assert "margin 0.5 points" in below.evidence
    assert "+3.0" in above.evidence


def test_momentum_that_helps_below_or_not_at_all_is_not() -> None:
    below, above = verdicts(lambda b: 0.03 if b <= 64 else 0.0)
    assert below.holds is False
    assert above.holds is False


def test_a_significant_loss_is_not_equal() -> None:
    below, above = verdicts(lambda _b: -0.03)
    assert below.holds is False
    assert "momentum is worse there" in below.evidence
    assert above.holds is False


def test_noise_does_not_make_equal() -> None:
    for error in (1.0, 3.0):
        below, _ = verdicts(lambda _b: 0.0, error=error)
        assert below.holds is not True, error


@pytest.mark.parametrize("direction", [1, -1])
def test_the_direction_of_the_metric_counts(direction: int) -> None:
    import dataclasses

    from isotherm.core.records import Direction

    found = pair(lambda b: direction * (0.03 if b > 64 else 0.0))
    way = Direction.MAXIMISE if direction == 1 else Direction.MINIMISE
    turned = made_pair(
        *(
            dataclasses.replace(s, plan=dataclasses.replace(s.plan, metric_direction=way))
            for s in (found.plain, found.heavy)
        )
    )
    assert alone(momentum_claims(turned)[1]).holds is True


def test_without_a_kink_momentum_has_no_sides() -> None:
    plain, heavy = (made_series(optimum=broken(1.0, 20.0), momentum=m) for m in (0.0, 0.9))
    for claim in momentum_claims(made_pair(plain, heavy)):
        found = alone(claim)
        assert found.holds is None
        assert "plain SGD shows no kink here" in found.evidence
        assert "batch_sizes = [" in found.remedy


def test_optima_at_the_end_of_either_leave_both_open() -> None:
    both = pair(lambda _b: 0.03)
    at_end = made_pair(both.plain, with_optimum_at_end(both.heavy, 512))
    for claim in momentum_claims(at_end):
        found = alone(claim)
        assert found.holds is None
        assert "the end of its grid at B = 512" in found.evidence


def test_momentum_is_compared_at_the_learning_rates_that_were_chosen() -> None:
    """The test curves are equally high; with momentum validation chooses learning rates an octave and a half off."""
    plain = made_series(optimum=broken(1.0, 6.0), tuned=broken(1.0, 6.0))
    line = broken(1.0, 8.0)
    heavy = made_series(optimum=line, tuned=lambda b: line(b) - 1.5, momentum=0.9)
    below, above = (alone(claim) for claim in momentum_claims(made_pair(plain, heavy)))
    assert below.holds is False
    assert "chosen on the validation set, -2.2" in below.evidence
    assert above.holds is False
