"""From measurements to an answer, with hand-made numbers: T = 1/32, limits 4 and 16, so B* = 64 and 256."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from helpers_diagnosis import around
from isotherm.core.statistics import Interval
from isotherm.diagnose.answer import (
    WORTH,
    Training,
    choices,
    current_setting,
    expectations,
    rate_below,
    recommended_sizes,
)
from isotherm.diagnose.boundary import Line
from isotherm.diagnose.diagnosis import Choice, Current, Isotherm
from isotherm.diagnose.peak_fit import Shape

TEMPERATURE = 1 / 32
LIMITS = {0.0: 4.0, 0.9: 16.0}
ISOTHERM = Isotherm(
    temperature=around(TEMPERATURE),
    slope=around(1.0),
    batch_sizes=(8, 32),
    exponent=Interval(estimate=-1.0, low=math.log2(0.4), high=math.log2(0.63)),
)
NO_ISOTHERM = Isotherm(temperature=None, slope=None, batch_sizes=())
TRAINING = Training(num_train=4000, intended_steps=lambda size: 40_000 // size, enough_steps=100)


def LINE(size: float) -> Interval:
    return around(TEMPERATURE * size)


# -- choices -------------------------------------------------------------------------------------------------------


def make_choices(**changes: object) -> tuple[Choice, ...]:
    arguments = {
        "line": LINE,
        "limits": {momentum: around(limit) for momentum, limit in LIMITS.items()},
        "speeds": {16: 1000.0, 64: 2000.0},
        "training": TRAINING,
    }
    return choices([16, 64, 512], **{**arguments, **changes})  # type: ignore[arg-type]


def test_choices_follow_the_isotherm_up_to_the_ceiling() -> None:
    small, middle, large = make_choices()
    assert [c.batch_size for c in (small, middle, large)] == [16, 64, 512]
    # Noise asks for a quarter of what curvature allows, which is 2, for as much, and for eight times as much.
    expected = [2 / 17**0.5, 2 / 2**0.5, 16 / 65**0.5]
    assert [c.rates[0.0].estimate for c in (small, middle, large)] == pytest.approx(expected, rel=1e-3)
    assert [c.rates[0.9].estimate for c in (small, middle, large)] == [0.5, 2.0, 8.0]
    assert (small.rates[0.9].low, small.rates[0.9].high) == pytest.approx((0.4, 0.625))
    assert (small.rates[0.0].low, small.rates[0.0].high) == pytest.approx((0.8 / 5**0.5, 5 / 65**0.5))
    assert (large.rates[0.0].low, large.rates[0.0].high) == pytest.approx((12.8 / 257**0.5, 20 / 17**0.5))
    assert [c.regime for c in (small, middle, large)] == ["noise dominated", "near the boundary", "curvature dominated"]
    assert [c.num_steps for c in (small, middle, large)] == [2500, 625, 78]
    assert [c.has_enough_steps for c in (small, middle, large)] == [True, True, False]
    assert large.learning_rate(0.9) == pytest.approx(0.8)


def test_a_rate_is_never_above_what_noise_or_curvature_asks_for() -> None:
    best, top = around(3.0), around(4.0)
    hard, soft = (rate_below(best, top, momentum=momentum) for momentum in (0.9, 0.0))
    assert hard.estimate == 3.0
    assert soft.estimate == pytest.approx(2.4, rel=1e-3)
    for name in ("estimate", "low", "high"):
        assert getattr(soft, name) < getattr(hard, name) <= min(getattr(best, name), getattr(top, name))
    endless = replace(top, high=math.inf)
    assert rate_below(endless, endless, momentum=0.0).high == math.inf
    assert rate_below(best, endless, momentum=0.0).high == best.high


def test_beyond_the_boundary_more_epochs_are_needed() -> None:
    assert [c.extra_epochs[0.0] for c in make_choices()] == pytest.approx([1.0, 1.0, 8.0])
    assert [c.extra_epochs[0.9] for c in make_choices()] == pytest.approx([1.0, 1.0, 2.0])


def test_the_time_of_an_epoch_follows_from_the_speed() -> None:
    found = make_choices()
    assert [(c.speed, c.epoch_seconds) for c in found] == [(1000.0, 4.0), (2000.0, 2.0), (None, None)]


def test_without_temperature_or_limit_there_are_no_choices() -> None:
    assert make_choices(line=None) == ()
    assert make_choices(limits={0.0: None, 0.9: around(16.0)}) == ()
    assert make_choices(limits={0.9: around(16.0)}) == ()


def test_a_momentum_without_a_limit_is_left_out() -> None:
    assert all(c.rates.keys() == {0.0} for c in make_choices(limits={0.0: around(4.0), 0.9: None}))


# -- the recommended size --------------------------------------------------------------------------------------------


def timed(speeds: dict[int, float | None], **changes: object) -> list[Choice]:
    return [
        Choice(
            **{
                "batch_size": size,
                "regime": "unknown",
                "rates": {0.0: around(1.0)},
                "num_steps": 1000,
                "has_enough_steps": True,
                "speed": speed,
                "epoch_seconds": None,
                "extra_epochs": {0.0: 1.0},
                **changes,
            }  # type: ignore[arg-type]
        )
        for size, speed in speeds.items()
    ]


def size_for(found: list[Choice], border: float = 1e9, momentum: float = 0.0) -> int | None:
    return recommended_sizes(found, {momentum: around(border)}).get(momentum)


def test_the_largest_batch_below_the_boundary_is_recommended_while_it_gains_speed() -> None:
    found = timed({8: 100.0, 16: 200.0, 32: 400.0, 64: 800.0})
    assert size_for(found) == 64
    assert size_for(found, 32.0) == 32
    assert size_for(found, 31.0) == 16
    assert size_for(found, 1.0) == 8


def test_each_optimiser_has_its_own_batch_size() -> None:
    found = timed({8: 100.0, 16: 200.0, 32: 400.0, 64: 800.0})
    assert recommended_sizes(found, {0.0: around(16.0), 0.9: around(64.0)}) == {0.0: 16, 0.9: 64}
    assert recommended_sizes(found, {0.0: around(16.0), 0.9: None}) == {0.0: 16}


def test_a_batch_that_leaves_too_few_updates_is_not_recommended() -> None:
    few = [*timed({8: 100.0, 16: 200.0}), *timed({32: 400.0}, has_enough_steps=False)]
    assert size_for(few) == 16
    assert size_for([*timed({8: 100.0}), *timed({16: 200.0}, num_steps=200)], momentum=0.9) == 16
    short = [*timed({8: 100.0}), *timed({16: 200.0}, num_steps=199)]
    assert size_for(short) == 16
    assert size_for(short, momentum=0.9) == 8  # momentum remembers ten updates, and wants twenty times as many


def test_twice_the_batch_has_to_save_a_fifth_of_the_time() -> None:
    assert WORTH == 1.25
    assert size_for(timed({8: 100.0, 16: 125.0})) == 16
    assert size_for(timed({8: 100.0, 16: 124.0})) == 8
    assert size_for(timed({8: 100.0, 16: 124.0, 32: 125.0**2 / 100 - 1})) == 8
    assert size_for(timed({8: 100.0, 16: 124.0, 32: 125.0**2 / 100 + 1})) == 32


def test_a_batch_of_unknown_speed_is_recommended_only_where_none_is_known() -> None:
    assert size_for(timed({8: 100.0, 16: 200.0, 32: None})) == 16
    assert size_for(timed({8: None, 16: None})) == 16


def test_without_choices_nothing_is_recommended() -> None:
    assert recommended_sizes([], {0.0: around(64.0)}) == {}


# -- the present setting ---------------------------------------------------------------------------------------------


def setting(
    learning_rate: float,
    *,
    batch_size: int = 16,
    line: Line | None = LINE,
    limit: float | None = 16.0,
    drop: Shape | None = None,
) -> Current:
    return current_setting(
        batch_size=batch_size,
        learning_rate=learning_rate,
        momentum=0.9,
        line=line,
        limit=None if limit is None else around(limit),
        drop=drop,
        training=TRAINING,
        speed=2000.0,
    )


def words(learning_rate: float, **changes: Any) -> str:
    found = setting(learning_rate, **changes)
    assert found.effective_learning_rate == pytest.approx(10 * learning_rate)
    assert found.temperature == pytest.approx(10 * learning_rate / changes.get("batch_size", 16))
    return found.words


def test_what_a_setting_costs() -> None:
    """At B = 16 the best effective rate is 0.5, at B = 512 the ceiling 8, where the isotherm would have 16."""
    low = setting(0.025, drop=Shape(scale=0.01, skew=0.0))
    assert low.factor == pytest.approx(0.5)
    assert low.lost == pytest.approx(Shape(scale=0.01, skew=0.0).at(-1.0))
    assert (low.num_steps, low.epoch_seconds, low.extra_epochs, low.is_stable) == (2500, 2.0, 1.0, True)
    large = setting(0.8, batch_size=512)
    assert (large.factor, large.extra_epochs, large.lost) == (pytest.approx(1.0), pytest.approx(2.0), None)
    assert setting(2.0).is_stable is False
    assert setting(2.0, limit=None).is_stable is None


def test_too_few_updates_for_a_batch_are_told() -> None:
    assert words(0.8, batch_size=512).endswith(
        "With 78 updates the training is too short for this batch; short runs needed at least 100."
    )


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
    assert words(0.1, batch_size=1024).startswith(
        "8 times too low for this batch size; use about 0.8 (effective 8), or keep it with a batch of about 32."
    )


def test_a_batch_below_one_is_not_offered() -> None:
    assert words(0.0001) == "5e+02 times too low for this batch size; use about 0.05 (effective 0.5)."


def test_an_unstable_learning_rate_is_told() -> None:
    assert words(2.1).startswith("Above the largest stable learning rate: runs are likely to fail; use about 0.05")
    assert words(1.6, batch_size=1024).startswith("At the largest stable learning rate: some runs may fail")
    assert words(1.3, batch_size=1024).startswith("At the largest stable learning rate: some runs may fail")
    assert words(1.27, batch_size=1024).startswith("Within a factor of two of what the short runs suggest: fine")


def test_a_setting_cannot_be_judged_without_data() -> None:
    unknown = "The short runs do not determine the best learning rate."
    assert words(0.1, line=None) == unknown
    assert words(0.1, limit=None) == unknown


@pytest.mark.parametrize(
    ("batch_size", "expected"), [(64, "noise dominated"), (256, "near the boundary"), (2048, "curvature dominated")]
)
def test_the_regime_of_a_setting_is_that_of_its_momentum(batch_size: int, expected: str) -> None:
    assert setting(0.1, batch_size=batch_size).regime == expected


def test_the_regime_of_a_setting_is_unknown_without_a_limit() -> None:
    assert setting(0.1, batch_size=8, limit=None).regime == "unknown"


# -- expectations ----------------------------------------------------------------------------------------------------


# 30 epochs of 40,000 examples: with 200 updates wanted there is room up to B = 6,000.
LONG = Training(num_train=40_000, intended_steps=lambda size: 1_200_000 // size, enough_steps=100)


def expected(
    isotherm: Isotherm = ISOTHERM, line: Line | None = LINE, training: Training = LONG, **limits: Interval | None
) -> tuple[str, ...]:
    known = {0.0: limits.get("plain", around(4.0)), 0.9: limits.get("heavy", around(16.0))}
    return expectations(isotherm, line, known, training=training, budget="30 epochs")


def test_expectations_hold_the_numbers() -> None:
    first, plain, heavy, last = expected()
    assert "ε_eff/B at 0.0312 [0.025, 0.0391]" in first
    assert plain.startswith("Plain SGD: up to B ≈ 64 [")
    assert "stays at about 2," in plain
    assert heavy.startswith("Momentum 0.9: up to B ≈ 256 [")
    assert last == "This holds for 30 epochs. Twice as long a training wants 0.5 [0.4, 0.63] times the learning rate."


def test_a_slope_that_is_not_one_is_told() -> None:
    half = replace(ISOTHERM, used_slope=0.5, used_interval=Interval(estimate=0.5, low=0.3, high=0.7))
    assert expected(half)[0] == (
        "Twice the batch, 1.4 times the learning rate: it rises as B^0.50 [0.30, 0.70] here, not as B."
    )
    near = replace(ISOTHERM, used_slope=1.03, used_interval=Interval(estimate=1.03, low=0.72, high=1.33))
    assert expected(near)[0].endswith("it rises as B^1.03 [0.72, 1.33] here, which is compatible with B.")


def test_one_length_does_not_tell_how_the_learning_rate_moves() -> None:
    assert expected(replace(ISOTHERM, exponent=None))[-1].startswith(
        "This holds for 30 epochs; how the best learning rate"
    )


def test_an_infinite_limit_is_told_in_words() -> None:
    plain = expected(plain=Interval(estimate=4.0, low=2.0, high=math.inf))[1]
    assert "∞]" in plain
    assert "inf" not in plain


def test_a_batch_that_leaves_too_few_updates_is_not_said_to_cost_nothing() -> None:
    """30 epochs of 400 examples: 100 updates at B = 120, and the 200 that momentum wants at B = 60."""
    short = Training(num_train=400, intended_steps=lambda size: 12_000 // size, enough_steps=100)
    assert (short.most_batch_size(0.0), short.most_batch_size(0.9)) == (120, 60)
    _, plain, heavy, _ = expected(training=short)
    assert plain.startswith("Plain SGD: up to B ≈ 64 [")
    assert heavy.startswith(
        "Momentum 0.9: up to B = 60 this costs nothing per epoch; beyond it 30 epochs leave fewer than the 200 "
        "updates that are wanted, and what that costs was not measured. A longer training allows larger batches, up to "
        "B ≈ 256 ["
    )
    flat = expected(line=lambda _: around(0.5), training=short)[1]  # the learning rate never reaches the limit
    assert flat.endswith("was not measured. A longer training allows larger batches.")
    assert "inf" not in flat


def test_a_training_too_short_for_every_batch_is_said_to_be() -> None:
    brief = Training(num_train=400, intended_steps=lambda _: 150, enough_steps=100)
    assert (brief.most_batch_size(0.0), brief.most_batch_size(0.9)) == (400, 0)
    assert expected(training=brief)[2] == (
        "Momentum 0.9: 30 epochs leave too few updates at every batch size; at least 200 are wanted."
    )


def test_there_are_no_expectations_without_a_temperature() -> None:
    assert expected(NO_ISOTHERM) == ()
    assert len(expected(plain=None, heavy=None)) == 2
