"""From measurements to an answer, with hand-made numbers: T = 1/32, limits 4 and 16, so B* = 64 and 256."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from helpers_diagnosis import around
from isotherm.core.statistics import Interval
from isotherm.diagnose.answer import (
    AGREEMENT,
    USED_PART,
    WORTH,
    boundaries,
    ceiling,
    choices,
    current_setting,
    expectations,
    recommended_size,
    regime,
)
from isotherm.diagnose.diagnosis import Boundary, Choice, Isotherm, Probe, Stability

TEMPERATURE = 1 / 32
LIMITS = {0.0: 4.0, 0.9: 16.0}
ISOTHERM = Isotherm(temperature=around(TEMPERATURE), slope=around(1.0), batch_sizes=(8, 32))
NO_ISOTHERM = Isotherm(temperature=None, slope=None, batch_sizes=())


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
    assert ceiling(Interval(estimate=4.0, low=2.0, high=8.0)) == Interval(estimate=2.0, low=1.0, high=4.0)


def test_the_boundary_has_three_estimates() -> None:
    found, _ = boundaries(STABILITY, ISOTHERM, [probe(sharpness=99.0, step=0), probe()])
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
    exact = Isotherm(
        temperature=Interval(estimate=TEMPERATURE, low=TEMPERATURE, high=TEMPERATURE), slope=None, batch_sizes=(8,)
    )
    one = Probe(
        step=0, sharpness=Interval(estimate=0.5, low=0.25, high=4.0), noise_scale=None, num_examples=64, mode="train"
    )
    size = by_source(boundaries(STABILITY, exact, [one])[0])["curvature", 0.0]
    assert size is not None
    assert (size.low, size.estimate, size.high) == pytest.approx((8.0, 64.0, 128.0))


def test_what_is_unknown_leaves_a_boundary_unknown() -> None:
    everything = [("sweep", 0.0), ("sweep", 0.9), ("curvature", 0.0), ("curvature", 0.9), ("noise scale", 0.0)]

    def known(*arguments: object) -> list[tuple[str, float]]:
        sizes = by_source(boundaries(*arguments)[0])  # type: ignore[arg-type]
        assert list(sizes) == everything
        return [key for key, size in sizes.items() if size is not None]

    plain_only = (STABILITY[0], stable(0.9, limit=None))
    assert known(STABILITY, NO_ISOTHERM, [probe()]) == [("noise scale", 0.0)]
    assert known(plain_only, ISOTHERM, [probe()]) == [everything[0], *everything[2:]]
    assert known(STABILITY, ISOTHERM, [probe(sharpness=None)]) == [*everything[:2], everything[4]]
    assert known(STABILITY, ISOTHERM, [probe(noise=None)]) == everything[:4]
    assert known(STABILITY, ISOTHERM, []) == everything[:2]


def test_how_a_boundary_was_found_is_told() -> None:
    late, start, none = (boundaries(STABILITY, ISOTHERM, probes)[0] for probes in ([probe()], [probe(step=0)], []))
    assert "after 100 updates" in late[2].how
    assert "2(1+m)/((1-m)λ_max), m = 0.9" in late[3].how
    assert "at the start" in start[4].how
    assert all("  " not in boundary.how for boundary in none)
    assert not any(" ;" in boundary.how for boundary in none)


# -- agreement -------------------------------------------------------------------------------------------------------


def agreement(
    stability: Sequence[Stability] = STABILITY, isotherm: Isotherm = ISOTHERM, **of_probe: float | None
) -> str:
    return boundaries(stability, isotherm, [probe(**of_probe)])[1]  # type: ignore[arg-type]


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
    assert boundaries(STABILITY, ISOTHERM, [])[1] == words


def test_without_short_runs_there_is_nothing_to_compare_with() -> None:
    words = "The short runs do not determine the boundary, so there is nothing to compare the other estimates with."
    assert agreement(isotherm=NO_ISOTHERM) == words
    assert agreement(stability=(stable(0.0, limit=None), STABILITY[1])) == words


# -- regime and choices ----------------------------------------------------------------------------------------------


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


def make_choices(**changes: object) -> tuple[Choice, ...]:
    arguments = {
        "isotherm": ISOTHERM,
        "limits": {momentum: around(limit) for momentum, limit in LIMITS.items()},
        "speeds": {16: 1000.0, 64: 2000.0},
        "num_train": 4000,
    }
    return choices([16, 64, 512], **{**arguments, **changes})  # type: ignore[arg-type]


def test_choices_follow_the_isotherm_up_to_the_ceiling() -> None:
    small, middle, large = make_choices()
    assert [c.batch_size for c in (small, middle, large)] == [16, 64, 512]
    assert [c.rates[0.0].estimate for c in (small, middle, large)] == [0.5, 2.0, 2.0]
    assert [c.rates[0.9].estimate for c in (small, middle, large)] == [0.5, 2.0, 8.0]
    assert (small.rates[0.0].low, small.rates[0.0].high) == pytest.approx((0.4, 0.625))
    assert (large.rates[0.0].low, large.rates[0.0].high) == pytest.approx((1.6, 2.5))
    assert [c.regime for c in (small, middle, large)] == ["noise dominated", "near the boundary", "curvature dominated"]
    assert large.learning_rate(0.9) == pytest.approx(0.8)


def test_beyond_the_boundary_more_epochs_are_needed() -> None:
    assert [c.extra_epochs for c in make_choices()] == pytest.approx([1.0, 1.0, 8.0])


def test_the_time_of_an_epoch_follows_from_the_speed() -> None:
    found = make_choices()
    assert [(c.speed, c.epoch_seconds) for c in found] == [(1000.0, 4.0), (2000.0, 2.0), (None, None)]


def test_without_temperature_or_limit_there_are_no_choices() -> None:
    assert make_choices(isotherm=NO_ISOTHERM) == ()
    assert make_choices(limits={0.0: None, 0.9: around(16.0)}) == ()
    assert make_choices(limits={0.9: around(16.0)}) == ()


def test_a_momentum_without_a_limit_is_left_out() -> None:
    assert all(c.rates.keys() == {0.0} for c in make_choices(limits={0.0: around(4.0), 0.9: None}))


# -- the recommended size --------------------------------------------------------------------------------------------


def timed(speeds: dict[int, float | None]) -> list[Choice]:
    return [
        Choice(
            batch_size=size,
            regime="unknown",
            rates={0.0: around(1.0)},
            speed=speed,
            epoch_seconds=None,
            extra_epochs=1.0,
        )
        for size, speed in speeds.items()
    ]


def test_the_largest_batch_below_the_boundary_is_recommended_while_it_gains_speed() -> None:
    found = timed({8: 100.0, 16: 200.0, 32: 400.0, 64: 800.0})
    assert recommended_size(found, border=None) == 64
    assert recommended_size(found, border=around(32.0)) == 32
    assert recommended_size(found, border=around(31.0)) == 16
    assert recommended_size(found, border=around(1.0)) == 8


def test_twice_the_batch_has_to_save_a_fifth_of_the_time() -> None:
    assert WORTH == 1.25
    assert recommended_size(timed({8: 100.0, 16: 125.0}), border=None) == 16
    assert recommended_size(timed({8: 100.0, 16: 124.0}), border=None) == 8
    assert recommended_size(timed({8: 100.0, 16: 124.0, 32: 125.0**2 / 100 - 1}), border=None) == 8
    assert recommended_size(timed({8: 100.0, 16: 124.0, 32: 125.0**2 / 100 + 1}), border=None) == 32


def test_a_batch_of_unknown_speed_is_recommended_only_where_none_is_known() -> None:
    assert recommended_size(timed({8: 100.0, 16: 200.0, 32: None}), border=None) == 16
    assert recommended_size(timed({8: None, 16: None}), border=None) == 16


def test_without_choices_nothing_is_recommended() -> None:
    assert recommended_size([], border=around(64.0)) is None


# -- the present setting ---------------------------------------------------------------------------------------------


def words(
    learning_rate: float, *, batch_size: int = 16, isotherm: Isotherm = ISOTHERM, limit: float | None = 16.0
) -> str:
    found = current_setting(
        batch_size=batch_size,
        learning_rate=learning_rate,
        momentum=0.9,
        isotherm=isotherm,
        limit=None if limit is None else around(limit),
    )
    assert found.effective_learning_rate == pytest.approx(10 * learning_rate)
    assert found.temperature == pytest.approx(10 * learning_rate / batch_size)
    return found.words


def test_a_setting_near_the_isotherm_is_fine() -> None:
    fine = "Within a factor of two of what the short runs suggest: fine as it is."
    assert words(0.05) == fine
    assert words(0.026) == fine
    assert words(0.099) == fine


def test_too_high_and_too_low_are_told_with_what_to_use() -> None:
    assert words(0.11) == "2.2 times too high for this batch size; use about 0.05 (effective 0.5)."
    assert words(0.2) == "4 times too high for this batch size; use about 0.05 (effective 0.5)."
    assert words(0.0125) == (
        "4 times too low for this batch size; use about 0.05 (effective 0.5), or keep it with a batch of about 4."
    )


def test_beyond_the_boundary_the_fitting_batch_is_that_of_the_isotherm() -> None:
    """At B = 1024 the ceiling is 8; an effective rate of 1 is 8 times too low, and belongs to B = 32."""
    assert words(0.1, batch_size=1024) == (
        "8 times too low for this batch size; use about 0.8 (effective 8), or keep it with a batch of about 32."
    )


def test_a_batch_below_one_is_not_offered() -> None:
    assert words(0.0001) == "5e+02 times too low for this batch size; use about 0.05 (effective 0.5)."


def test_an_unstable_learning_rate_is_told() -> None:
    assert words(2.1).startswith("Above the largest stable learning rate: runs are likely to fail; use about 0.05")
    assert words(1.6, batch_size=1024).startswith("At the largest stable learning rate: some runs may fail")
    assert words(1.3, batch_size=1024).startswith("At the largest stable learning rate: some runs may fail")
    assert words(1.27, batch_size=1024) == "Within a factor of two of what the short runs suggest: fine as it is."


def test_a_setting_cannot_be_judged_without_data() -> None:
    unknown = "The short runs do not determine the best learning rate."
    assert words(0.1, isotherm=NO_ISOTHERM) == unknown
    assert words(0.1, limit=None) == unknown


@pytest.mark.parametrize(
    ("batch_size", "expected"), [(64, "noise dominated"), (256, "near the boundary"), (1024, "curvature dominated")]
)
def test_the_regime_of_a_setting_is_that_of_its_momentum(batch_size: int, expected: str) -> None:
    found = current_setting(
        batch_size=batch_size, learning_rate=0.1, momentum=0.9, isotherm=ISOTHERM, limit=around(16.0)
    )
    assert found.regime == expected


def test_the_regime_of_a_setting_is_unknown_without_a_limit() -> None:
    found = current_setting(batch_size=8, learning_rate=0.1, momentum=0.9, isotherm=ISOTHERM, limit=None)
    assert found.regime == "unknown"


# -- expectations ----------------------------------------------------------------------------------------------------


def test_expectations_hold_the_numbers() -> None:
    first, plain, heavy, last = expectations(ISOTHERM, {m: around(limit) for m, limit in LIMITS.items()})
    assert "ε_eff/B at 0.0312 [0.025, 0.0391]" in first
    assert plain.startswith("Plain SGD: up to B ≈ 64 [47, 88]")
    assert "stays at about 2," in plain
    assert heavy.startswith("Momentum 0.9: up to B ≈ 256 [")
    assert last.startswith("Twice the epochs: keep the learning rate.")


def test_an_infinite_limit_is_told_in_words() -> None:
    limit = Interval(estimate=4.0, low=2.0, high=math.inf)
    (_, plain, _) = expectations(ISOTHERM, {0.0: limit})
    assert "[31, ∞]" in plain
    assert "inf" not in plain


def test_there_are_no_expectations_without_a_temperature() -> None:
    assert expectations(NO_ISOTHERM, {0.0: around(4.0)}) == ()
    assert len(expectations(ISOTHERM, {0.0: None, 0.9: None})) == 2
