"""The noise scale against exact answers: enumerated draws and simulated experiments."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from isotherm.errors import UserError
from isotherm.theory import noise_scale
from isotherm.theory.demos.noise_scale import demonstrate
from isotherm.theory.noise_scale import NoiseScale, estimate_noise_scale, optimal_learning_rate, two_batch_estimates

INF, NAN = math.inf, math.nan


# -- the estimator --------------------------------------------------------------------------------------------------


def test_sampling_without_replacement_needs_its_correction() -> None:
    """The plain formulas are wrong by N/(N-1) and more on draws without replacement: the correction is not idle."""
    values = np.array([-1.0, 0.0, 1.0, 4.0, 6.0])  # gradients with one parameter
    draws = np.array(list(itertools.permutations(values, 4))).reshape(-1, 2, 2)
    small, large = np.square(draws.mean(axis=2)).mean(axis=1), np.square(draws.mean(axis=(1, 2)))
    sizes = {"small_batch_size": 2, "large_batch_size": 4}
    trace, norm = (v.mean() for v in two_batch_estimates(small, large, **sizes, population=5))
    assert (trace, norm) == pytest.approx((values.var(), values.mean() ** 2))
    trace, norm = (v.mean() for v in two_batch_estimates(small, large, **sizes))
    assert trace == pytest.approx(values.var() * 5 / 4)
    assert norm < values.mean() ** 2 * 0.9


def test_numerator_and_denominator_are_averaged_apart() -> None:
    """Ratios of single draws would average to something else, here even to the wrong sign of a bias."""
    trace, norm = np.array([4.0, 8.0] * 8), np.array([1.0, 4.0] * 8)
    small, large = norm + trace / 2, norm + trace / 8
    found = estimate_noise_scale(small, large, small_batch_size=2, large_batch_size=8)
    assert found.noise_trace.estimate == pytest.approx(6.0)
    assert found.gradient_norm_squared.estimate == pytest.approx(2.5)
    assert found.gradient_noise_scale.estimate == pytest.approx(6.0 / 2.5)  # not (4 + 2) / 2


def simulated(
    generator: np.random.Generator, *, scale: float, num_draws: int, num_parameters: int, is_skewed: bool
) -> NoiseScale:
    """Return what 16 small batches of 16 a draw give for gradients of known noise: tr Σ = 1, ‖G‖² = 1 / scale."""
    spectrum = 1 / np.arange(1, num_parameters + 1)
    shape = (num_draws, 16, num_parameters)
    # sums of 16 exponential variables are skewed still
    noise = (generator.gamma(16.0, size=shape) - 16) / 4 if is_skewed else generator.standard_normal(shape)
    g = math.sqrt(1 / scale / num_parameters) + noise / 4 * np.sqrt(spectrum / spectrum.sum())
    small, large = np.square(g).sum(axis=2).mean(axis=1), np.square(g.mean(axis=1)).sum(axis=1)
    return estimate_noise_scale(small, large, small_batch_size=16, large_batch_size=256)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "is_skewed"),
    [(4.0, False), (64.0, False), (1024.0, False), (16_384.0, False), (64.0, True), (16_384.0, True)],
)
def test_the_interval_covers_in_simulated_experiments(scale: float, is_skewed: bool) -> None:
    """Below both batches of 16 and 256, between them, above, and far above: nominal 95 % cover at least 90 %.

    At a true coverage of 94 % fewer than 90 % of 300 experiments cover with probability 0.3 %.
    """
    generator = np.random.default_rng(7)
    found = [
        simulated(generator, scale=scale, num_draws=32, num_parameters=10, is_skewed=is_skewed) for _ in range(300)
    ]
    covered = np.mean([f.gradient_noise_scale.contains(scale) for f in found])
    assert covered >= 0.90
    assert covered < 1.0  # an interval that is never wrong says nothing
    assert np.mean([f.noise_trace.estimate for f in found]) == pytest.approx(1.0, rel=0.02)
    error = np.std([f.gradient_norm_squared.estimate for f in found]) / math.sqrt(len(found))
    assert np.mean([f.gradient_norm_squared.estimate for f in found]) == pytest.approx(1 / scale, abs=4 * error)
    part_with_limit = np.mean([f.has_upper_limit for f in found])
    assert (part_with_limit > 0.95) if scale < 1000 else (part_with_limit < 0.95)


def test_without_a_gradient_the_noise_scale_has_no_upper_limit() -> None:
    """‖G‖² = 0: at most 10 of 100 experiments (expected: 2.5) claim a limit, and the others say that there is none."""
    generator = np.random.default_rng(1)
    found = [simulated(generator, scale=INF, num_draws=32, num_parameters=10, is_skewed=False) for _ in range(100)]
    assert sum(f.has_upper_limit for f in found) <= 10
    one = next(f for f in found if not f.has_upper_limit)
    assert one.gradient_noise_scale.high == INF
    assert one.gradient_noise_scale.low > 256  # what can be said
    assert "no upper limit" in str(one)
    assert "not distinguishable from zero" in str(one)
    negative = next(f for f in found if f.gradient_norm_squared.estimate < 0)
    assert negative.gradient_noise_scale.estimate == INF
    assert all(f.gradient_noise_scale.low <= f.gradient_noise_scale.estimate for f in found)


def test_a_clear_noise_scale_says_its_limits() -> None:
    generator = np.random.default_rng(1)
    found = simulated(generator, scale=10.0, num_draws=64, num_parameters=10, is_skewed=False)
    scale = found.gradient_noise_scale
    assert 0 < scale.low < scale.estimate < scale.high < INF
    assert str(found).startswith(f"B_simple = {scale.estimate:.3g} [{scale.low:.3g}, {scale.high:.3g}] at 95 %")


def test_more_draws_narrow_the_interval_by_their_root() -> None:
    generator = np.random.default_rng(1)
    widths = []
    for num_draws in (32, 512):
        scale = simulated(
            generator, scale=50.0, num_draws=num_draws, num_parameters=50, is_skewed=False
        ).gradient_noise_scale
        widths.append(scale.high - scale.low)
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.4)


def test_a_higher_level_widens_the_interval() -> None:
    generator = np.random.default_rng(0)
    small, large = generator.random(32) + 2, generator.random(32) + 1
    low, high = (
        estimate_noise_scale(small, large, small_batch_size=2, large_batch_size=8, level=level).gradient_noise_scale
        for level in (0.5, 0.99)
    )
    assert high.low < low.low < low.estimate == high.estimate < low.high < high.high


def test_the_interval_is_a_bootstrap_t_of_the_angle() -> None:
    """The same resamples one by one: standardised by their own errors, and turned back into ratios."""
    generator = np.random.default_rng(0)
    trace, norm = generator.exponential(8.0, size=20), generator.exponential(1.0, size=20)
    trace += 8 * norm  # correlated and skewed
    found = estimate_noise_scale(
        norm + trace / 2, norm + trace / 8, small_batch_size=2, large_batch_size=8, level=0.9, seed=3
    )

    def angle_and_error(t: np.ndarray, n: np.ndarray) -> tuple[float, float]:
        along = t.mean() * (n - n.mean()) - n.mean() * (t - t.mean())
        error = np.std(along / (t.mean() ** 2 + n.mean() ** 2), ddof=1) / math.sqrt(len(t))
        return math.atan2(n.mean(), t.mean()), float(error)

    angle, error = angle_and_error(trace / 8, norm)
    standardised = []
    for counts in noise_scale._resampled_counts(20, seed=3).astype(int):
        assert counts.sum() == 20
        other, its_error = angle_and_error(np.repeat(trace / 8, counts), np.repeat(norm, counts))
        standardised.append((other - angle) / its_error)
    lowest, highest = np.quantile(standardised, [0.05, 0.95], method="inverted_cdf")
    expected = (trace.mean() / norm.mean(), *(8 / math.tan(angle - limit * error) for limit in (lowest, highest)))
    assert dataclasses.astuple(found.gradient_noise_scale) == pytest.approx(expected, rel=1e-9)


def test_no_noise_at_all_is_a_noise_scale_of_zero() -> None:
    for values in (np.full(10, 2.0), 2.0 + 1e-15 * np.arange(10)):  # the second: rounding
        found = estimate_noise_scale(values, np.full(10, 2.0), small_batch_size=4, large_batch_size=16)
        assert found.gradient_noise_scale.high < 1e-10
        assert found.gradient_noise_scale.low == pytest.approx(0.0, abs=1e-10)
        assert found.gradient_norm_squared.estimate == pytest.approx(2.0)


def test_units_of_the_loss_do_not_matter() -> None:
    generator = np.random.default_rng(5)
    small, large = generator.random(32) + 3, generator.random(32) + 1
    once, scaled = (
        estimate_noise_scale(c * small, c * large, small_batch_size=2, large_batch_size=8) for c in (1.0, 1e-12)
    )
    assert dataclasses.astuple(scaled.gradient_noise_scale) == pytest.approx(
        dataclasses.astuple(once.gradient_noise_scale)
    )


@pytest.mark.parametrize(
    ("small", "large", "changes", "words"),
    [
        ([0.0] * 8, [0.0] * 8, {}, "every gradient is exactly zero"),
        ([1.0] * 7, [1.0] * 7, {}, "at least 8 draws"),
        ([[1.0] * 8], [[1.0] * 8], {}, "one value for every draw"),
        ([1.0] * 8, [1.0] * 9, {}, "8 small and 9 large"),
        ([1.0] * 7 + [NAN], [1.0] * 8, {}, "squared norm 7 of 'small' is nan"),
        ([1.0] * 8, [1.0, INF] + [1.0] * 6, {}, "squared norm 1 of 'large' is inf"),
        ([1.0] * 8, [-1.0] + [1.0] * 7, {}, "squared norm 0 of 'large' is -1.0"),
        ([1.0] * 8, [1.0] * 8, {"small_batch_size": 8}, "batches of 8 and 8 examples"),
        ([1.0] * 8, [1.0] * 8, {"population": 7}, "8 examples out of 7"),
        ([1.0] * 8, [1.0] * 8, {"level": 95}, "level=95"),
    ],
)
def test_norms_that_say_nothing_are_refused(small: Any, large: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        estimate_noise_scale(small, large, **{"small_batch_size": 2, "large_batch_size": 8, **changes})


def test_the_best_learning_rate_is_linear_below_the_noise_scale_and_level_above() -> None:
    def best(batch_size: float) -> float:
        return optimal_learning_rate(batch_size, largest_learning_rate=2.0, gradient_noise_scale=1000.0)

    assert best(1000) == 1.0
    assert best(2) / best(1) == pytest.approx(2.0, rel=2e-3)
    assert best(1e6) == pytest.approx(2.0, rel=2e-3)
    assert optimal_learning_rate(10, largest_learning_rate=2.0, gradient_noise_scale=INF) == 0.0


# -- the demonstration ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demonstration_shows_what_it_says() -> None:
    shown = demonstrate()
    parts, scales, rates = shown.panels
    known, measured = scales.curves[:2]
    assert list(known.y) == sorted(known.y)  # the noise scale rises
    assert known.y[-1] > 20 * known.y[0]
    falling = parts.curves[2]
    assert list(falling.y) == sorted(falling.y, reverse=True)
    assert measured.low is not None
    assert measured.high is not None
    at = dict(zip(known.x, known.y, strict=True))
    inside = sum(low <= at[x] <= high for x, low, high in zip(measured.x, measured.low, measured.high, strict=True))
    assert inside >= len(known.x) - 2
    predicted, _, observed = rates.curves
    assert observed.y == pytest.approx(predicted.y, rel=0.06)
    assert predicted.y[1] / predicted.y[0] == pytest.approx(2.0, rel=0.05)
    assert f"{known.y[0]:.3g} to {known.y[-1]:,.4g}" in shown.paragraph
    assert len(shown.tables[0].rows) == len(known.x)
    numbers = [v for panel in shown.panels for c in panel.curves for v in (*c.x, *c.y, *(c.low or ()), *(c.high or ()))]
    assert np.isfinite(numbers).all()
    assert min(numbers) >= 0
    assert shown.as_json()["settings"]["measurement"]["sampling"] == "with_replacement"
