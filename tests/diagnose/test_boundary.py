"""The boundary B*, with hand-made numbers: T = 1/32, limits 4 and 16, so B* = 64 and 256."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from helpers_diagnosis import around
from isotherm.core.statistics import Interval
from isotherm.diagnose.boundary import AGREEMENT, USED_PART, Line, boundaries, ceiling, crossing, regime
from isotherm.diagnose.diagnosis import Boundary, Probe, Stability

TEMPERATURE = 1 / 32
LIMITS = {0.0: 4.0, 0.9: 16.0}


def LINE(size: float) -> Interval:
    return around(TEMPERATURE * size)


def stable(momentum: float, *, limit: Interval | None) -> Stability:
    return Stability(
        momentum=momentum,
        batch_size=128,
        num_steps=50,
        rates=(1.0, 4.0),
        num_runs=(2, 2),
        num_failed=(0, 2),
        initial_loss=2.3,
        best_loss=1.0,
        limit=limit,
    )


STABILITY = tuple(stable(momentum, limit=around(limit)) for momentum, limit in LIMITS.items())


def probe(*, sharpness: float | None = 0.5, noise: float | None = 64.0, step: int = 100) -> Probe:
    return Probe(
        step=step,
        sharpness=None if sharpness is None else around(sharpness, 2.0),
        noise_scale=None if noise is None else Interval(estimate=noise, low=noise / 2, high=math.inf),
        num_examples=512,
        mode="train",
    )


def by_source(found: Sequence[Boundary]) -> dict[tuple[str, float], Interval | None]:
    return {(boundary.source, boundary.momentum): boundary.batch_size for boundary in found}


# -- boundaries ------------------------------------------------------------------------------------------------------


def test_half_of_the_largest_stable_learning_rate_is_used() -> None:
    assert USED_PART == 0.5
    assert ceiling(Interval(estimate=4.0, low=2.0, high=8.0)) == Interval(estimate=2.0, low=0.5, high=8.0)


def test_the_boundary_has_three_estimates() -> None:
    found, _ = boundaries(STABILITY, LINE, [probe(sharpness=99.0, step=0), probe()])
    sizes = by_source(found)
    assert [(b.source, b.momentum) for b in found] == [
        ("sweep", 0.0),
        ("sweep", 0.9),
        ("curvature", 0.0),
        ("curvature", 0.9),
        ("noise scale", 0.0),
    ]
    estimates = {key: size.estimate for key, size in sizes.items() if size is not None}
    assert estimates["sweep", 0.0] == pytest.approx(64.0)
    assert estimates["sweep", 0.9] == pytest.approx(256.0)
    # Half of 2/λ = 4, and of 2(1 + m)/((1 - m) λ) = 76, of the last probe.
    assert estimates["curvature", 0.0] == pytest.approx(64.0)
    assert estimates["curvature", 0.9] == pytest.approx(19 * 64.0)
    assert sizes["noise scale", 0.0] == Interval(estimate=64.0, low=32.0, high=math.inf)


def test_a_sharper_loss_puts_the_boundary_lower() -> None:
    def exact(size: float) -> Interval:
        return Interval(estimate=TEMPERATURE * size, low=TEMPERATURE * size, high=TEMPERATURE * size)

    one = Probe(
        step=0, sharpness=Interval(estimate=0.5, low=0.25, high=4.0), noise_scale=None, num_examples=64, mode="train"
    )
    size = by_source(boundaries(STABILITY, exact, [one])[0])["curvature", 0.0]
    assert size is not None
    assert (size.low, size.estimate, size.high) == pytest.approx((4.0, 64.0, 256.0))


def test_what_is_unknown_leaves_a_boundary_unknown() -> None:
    everything = [("sweep", 0.0), ("sweep", 0.9), ("curvature", 0.0), ("curvature", 0.9), ("noise scale", 0.0)]

    def known(*arguments: object) -> list[tuple[str, float]]:
        sizes = by_source(boundaries(*arguments)[0])  # type: ignore[arg-type]
        assert list(sizes) == everything
        return [key for key, size in sizes.items() if size is not None]

    plain_only = (STABILITY[0], stable(0.9, limit=None))
    assert known(STABILITY, None, [probe()]) == [("noise scale", 0.0)]
    assert known(plain_only, LINE, [probe()]) == [everything[0], *everything[2:]]
    assert known(STABILITY, LINE, [probe(sharpness=None)]) == [*everything[:2], everything[4]]
    assert known(STABILITY, LINE, [probe(noise=None)]) == everything[:4]
    assert known(STABILITY, LINE, []) == everything[:2]


def test_how_a_boundary_was_found_is_told() -> None:
    late, start, none = (boundaries(STABILITY, LINE, probes)[0] for probes in ([probe()], [probe(step=0)], []))
    assert "after 100 updates" in late[2].how
    assert "2(1+m)/((1-m)λ_max), m = 0.9" in late[3].how
    assert "at the start" in start[4].how
    assert all("  " not in boundary.how for boundary in none)
    assert not any(" ;" in boundary.how for boundary in none)


# -- agreement -------------------------------------------------------------------------------------------------------


def agreement(stability: Sequence[Stability] = STABILITY, line: Line | None = LINE, **of_probe: float | None) -> str:
    return boundaries(stability, line, [probe(**of_probe)])[1]  # type: ignore[arg-type]


def test_estimates_within_a_factor_of_two_agree() -> None:
    assert AGREEMENT == 2.0
    assert agreement(sharpness=0.5 / 1.9, noise=64.0 * 1.9) == (
        "Curvature puts it at a similar batch size (factor 1.9). "
        "The gradient noise scale puts it at a similar batch size (factor 1.9)."
    )
    assert "larger" not in agreement(sharpness=0.5 * 1.9, noise=64.0 / 1.9)
    assert "smaller" not in agreement(sharpness=0.5 * 1.9, noise=64.0 / 1.9)


def test_curvature_that_disagrees_is_explained() -> None:
    smaller, larger = agreement(sharpness=5.0), agreement(sharpness=0.05)
    assert smaller.startswith("Curvature puts it at a smaller batch (factor 0.1): the loss is more curved there")
    assert larger.startswith("Curvature puts it at a larger batch (factor 10): runs fail below 2/λ_max")


def test_noise_that_disagrees_is_explained() -> None:
    assert "noise scale puts it at a smaller batch (factor 0.1): it is measured early" in agreement(noise=6.4)
    assert "noise scale puts it at a larger batch (factor 10): noise would allow" in agreement(noise=640.0)


def test_an_unknown_noise_scale_is_not_compared() -> None:
    assert "noise scale" not in agreement(noise=None)
    assert "noise scale" not in agreement(noise=math.inf)


def test_one_estimate_alone_is_not_checked() -> None:
    words = "Only the short runs give an estimate of the boundary; nothing else checks it."
    assert agreement(sharpness=None, noise=None) == words
    assert boundaries(STABILITY, LINE, [])[1] == words


def test_without_short_runs_there_is_nothing_to_compare_with() -> None:
    words = "The short runs do not determine the boundary, so there is nothing to compare the other estimates with."
    assert agreement(line=None) == words
    assert agreement(stability=(stable(0.0, limit=None), STABILITY[1])) == words


# -- crossing and regime ---------------------------------------------------------------------------------------------


def test_a_line_of_slope_one_half_crosses_the_ceiling_later() -> None:
    """ε = √B / 8 reaches 2 at B = 256; a factor of two either way in ε is one of four in B."""

    def root(size: float) -> Interval:
        rate = math.sqrt(size) / 8
        return Interval(estimate=rate, low=rate, high=rate)

    found = crossing(root, Interval(estimate=2.0, low=1.0, high=4.0))
    assert (found.low, found.estimate, found.high) == pytest.approx((64.0, 256.0, 1024.0))


def test_a_line_that_does_not_rise_never_reaches_the_ceiling() -> None:
    assert crossing(lambda _: around(1.0), around(2.0)).estimate == math.inf


def test_a_regime_is_told_only_outside_the_interval() -> None:
    boundary = Interval(estimate=64.0, low=32.0, high=128.0)
    assert [regime(size, boundary) for size in (31, 32, 128, 129)] == [
        "noise dominated",
        "near the boundary",
        "near the boundary",
        "curvature dominated",
    ]
    assert regime(10**9, Interval(estimate=64.0, low=32.0, high=math.inf)) == "near the boundary"
    assert regime(8, None) == "unknown"
