"""Skewed and stable noise against their laws; seeds are fixed, limits as in `helpers_trajectories`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from helpers_trajectories import LIMIT, generator, last, standard_errors_off
from isotherm.errors import UserError
from isotherm.theory.noise_kinds import (
    accumulated_noise,
    quartile_distance,
    skewed_noise,
    stable_noise,
    stable_stationary_scale,
    tail_ratio,
)
from isotherm.theory.sde import fitted_slope, quadratic_gradients, sgd


def test_skewed_noise_of_finite_variance_becomes_gaussian() -> None:
    counts = [1, 4, 16, 64, 256]
    sums = accumulated_noise(skewed_noise, counts, num_paths=40_000, generator=generator(20))
    for n, row in zip(counts, sums, strict=True):
        assert row.var() / n == pytest.approx(1, abs=LIMIT * math.sqrt((2 + 6 / n) / 40_000))
        assert float(stats.skew(row)) == pytest.approx(2 / math.sqrt(n), rel=0.15, abs=LIMIT * math.sqrt(6 / 40_000))
        assert float(stats.kurtosis(row)) == pytest.approx(6 / n, rel=0.35, abs=LIMIT * math.sqrt(24 / 40_000))
    assert fitted_slope(counts[2:], [quartile_distance(row) for row in sums[2:]]) == pytest.approx(0.5, abs=0.02)
    gaussian = stats.norm.ppf(0.99) / stats.norm.ppf(0.75)
    excess = [tail_ratio(row) - gaussian for row in sums]
    assert excess == sorted(excess, reverse=True)
    assert excess[0] > 2 > 0.3 > excess[-1]


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
def test_stable_noise_stays_what_it_is_and_adds_up_with_another_power(alpha: float) -> None:
    counts = [1, 4, 16, 64]
    sums = accumulated_noise(stable_noise(alpha), counts, num_paths=30_000, generator=generator(21))
    scales = [quartile_distance(row) for row in sums]
    assert fitted_slope(counts, scales) == pytest.approx(1 / alpha, abs=0.02)
    assert abs(fitted_slope(counts, scales) - 0.5) > 0.03
    heavy = stats.levy_stable.ppf(0.99, alpha, 0.0) / stats.levy_stable.ppf(0.75, alpha, 0.0)
    # 300 numbers above the 99 % quantile, which fall off like x^-α: its relative standard error is 1 / (α √300).
    assert [tail_ratio(row) for row in sums] == pytest.approx([heavy] * 4, rel=LIMIT / (alpha * math.sqrt(300)))
    assert min(float(stats.kurtosis(row)) for row in sums) > 100
    # n^(1/α) leaves the distribution as it was, appendix A's √n does not.
    fresh = stable_noise(alpha)(generator(22), (30_000,))
    assert stats.ks_2samp(sums[-1] / 64 ** (1 / alpha), fresh).pvalue > 1e-3
    assert stats.ks_2samp(sums[-1] / 64**0.5, fresh).pvalue < 1e-6


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.3, 1.5, 2.0])
def test_stable_noise_has_its_characteristic_function(alpha: float) -> None:
    drawn = stable_noise(alpha)(generator(23), (40_000,))
    for frequency in (0.3, 1.0, 2.0):
        assert standard_errors_off(np.cos(frequency * drawn), math.exp(-(frequency**alpha))) < LIMIT
        assert standard_errors_off(np.sin(frequency * drawn), 0.0) < LIMIT


def test_noise_of_one_size_at_every_batch_breaks_linear_scaling_by_a_power() -> None:
    """Appendix A lets one ν / √B serve all B: then n steps have n^(1/α - 1/2) times the noise of the one step."""
    alpha, counts = 1.5, [4, 16, 64]
    accumulated = accumulated_noise(stable_noise(alpha), counts, num_paths=30_000, generator=generator(24))
    one = quartile_distance(stable_noise(alpha)(generator(25), (30_000,)))
    ratios = [quartile_distance(row) / (math.sqrt(n) * one) for n, row in zip(counts, accumulated, strict=True)]
    assert fitted_slope(counts, ratios) == pytest.approx(1 / alpha - 1 / 2, abs=0.02)
    assert ratios[-1] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("learning_rate", "batch_size"), [(1 / 8, 1), (1 / 2, 4), (1 / 2, 1), (1.6, 2)])
def test_stationary_scale_under_stable_noise(learning_rate: float, batch_size: int) -> None:
    alpha, drawn = 1.5, generator(28)
    batches = (stable_noise(alpha)(drawn, (15_000, batch_size, 1)) for _ in range(round(6 / min(learning_rate, 0.4))))
    final = last(sgd(quadratic_gradients(1.0), np.zeros((15_000, 1)), learning_rate=learning_rate, batches=batches))
    scale = stable_stationary_scale(alpha=alpha, curvature=1.0, learning_rate=learning_rate, batch_size=batch_size)
    assert stats.ks_2samp(final[:, 0] / scale, stable_noise(alpha)(drawn, (40_000,))).pvalue > 1e-3
    assert stats.ks_2samp(final[:, 0] / (1.1 * scale), stable_noise(alpha)(drawn, (40_000,))).pvalue < 1e-3


def test_stable_stationary_scale_depends_on_temperature_alone_for_small_steps() -> None:
    def scale(temperature: float, batch_size: int, alpha: float = 1.5) -> float:
        return stable_stationary_scale(
            alpha=alpha, curvature=2.0, learning_rate=temperature * batch_size, batch_size=batch_size
        )

    assert scale(1e-6, 1) == pytest.approx(scale(1e-6, 64), rel=1e-4)
    assert scale(4e-6, 1) / scale(1e-6, 1) == pytest.approx(4 ** (1 - 1 / 1.5), rel=1e-4)
    # At α = 2, a Gaussian of variance 2 scale²: the closed form for per-example variance 2.
    exact = 0.3 * 2.0 / (5 * 2.0 * (2 - 0.3 * 2.0))
    assert 2 * scale(0.06, 5, alpha=2.0) ** 2 == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stable_noise(0.0), "alpha=0.0"),
        (lambda: stable_noise(2.1), "alpha=2.1"),
        (
            lambda: stable_stationary_scale(alpha=1.5, curvature=1.0, learning_rate=2.0, batch_size=1),
            "critical learning rate 2 / h = 2",
        ),
        (
            lambda: accumulated_noise(skewed_noise, [4, 2], num_paths=1, generator=generator(0)),
            "counts=\\[4, 2\\] must rise",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
