"""Merged steps against closed forms; seeds are fixed, limits as in `helpers_trajectories`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from helpers_trajectories import LIMIT, generator
from isotherm.errors import UserError
from isotherm.theory.linear_scaling import LinearScaling, linear_scaling, measure_linear_scaling, merged_states
from isotherm.theory.noise_kinds import Draw, quartile_distance, skewed_noise, stable_noise
from isotherm.theory.sde import fitted_slope


def test_linear_scaling_is_that_of_the_recursion() -> None:
    pair = linear_scaling(7, curvature=0.8, noise_variance=3.0, learning_rate=0.1, batch_size=2)
    mean, variance = 1.0, 0.0
    for _ in range(7):
        mean, variance = (1 - 0.08) * mean, (1 - 0.08) ** 2 * variance + 0.1**2 * 3.0 / 2
    assert pair.mean_small == pytest.approx(mean, rel=1e-12)
    assert pair.variance_small == pytest.approx(variance, rel=1e-12)
    assert pair.mean_large == pytest.approx(1 - 0.7 * 0.8)
    assert pair.variance_large == pytest.approx(0.7**2 * 3.0 / 14)
    assert pair.reach == pytest.approx(0.56)


def test_one_step_replaces_itself_without_error() -> None:
    pair = linear_scaling(1, curvature=0.8, noise_variance=3.0, learning_rate=0.1, batch_size=2)
    assert (pair.mean_error, pair.variance_error) == pytest.approx((0.0, 0.0), abs=1e-15)
    assert (pair.leading_mean_error, pair.leading_variance_error) == (0.0, 0.0)


@pytest.mark.parametrize("num_merged", [2, 10, 1000])
def test_errors_approach_their_leading_order(num_merged: int) -> None:
    reach = 1e-4
    pair = linear_scaling(
        num_merged, curvature=2.0, noise_variance=1.0, learning_rate=reach / 2 / num_merged, batch_size=1
    )
    assert pair.mean_error == pytest.approx(pair.leading_mean_error, rel=2e-4)
    assert pair.variance_error == pytest.approx(pair.leading_variance_error, rel=2e-4)


def test_errors_grow_with_powers_2_and_1_of_the_reach_and_most_at_the_largest_curvature() -> None:
    def at(curvature: float, learning_rate: float) -> LinearScaling:
        return linear_scaling(10, curvature=curvature, noise_variance=1.0, learning_rate=learning_rate, batch_size=4)

    pairs = [at(1.0, reach / 10) for reach in (0.01, 0.02, 0.04, 0.08)]
    reach = [pair.reach for pair in pairs]
    assert fitted_slope(reach, [-pair.mean_error for pair in pairs]) == pytest.approx(2, abs=0.05)
    assert fitted_slope(reach, [pair.variance_error for pair in pairs]) == pytest.approx(1, abs=0.05)
    errors = [at(curvature, 0.02) for curvature in (0.1, 0.5, 1.0, 4.0)]
    assert sorted(errors, key=lambda pair: abs(pair.mean_error)) == errors
    assert sorted(errors, key=lambda pair: abs(pair.variance_error)) == errors


@pytest.mark.parametrize("batch_size", [1, 3])
def test_simulated_linear_scaling_is_the_closed_form(batch_size: int) -> None:
    pairs = []
    for num_merged in (4, 8, 16, 48, 96):
        exact = linear_scaling(
            num_merged, curvature=2.0, noise_variance=1.0, learning_rate=1 / 128, batch_size=batch_size
        )
        found = measure_linear_scaling(
            skewed_noise,
            num_merged,
            curvature=2.0,
            learning_rate=1 / 128,
            batch_size=batch_size,
            num_paths=10_000,
            generator=generator(num_merged),
        )
        # Mean: standard error √(variance / M). Variance: relative √((2 + kurtosis) / M), with kurtosis 6 / (nB).
        assert abs(found.mean_small - exact.mean_small) < LIMIT * math.sqrt(exact.variance_small / 10_000)
        assert abs(found.mean_large - exact.mean_large) < LIMIT * math.sqrt(exact.variance_large / 10_000)
        spread = math.sqrt((2 + 6 / (num_merged * batch_size)) / 10_000)
        assert abs(found.variance_small / exact.variance_small - 1) < LIMIT * spread
        assert abs(found.variance_large / exact.variance_large - 1) < LIMIT * spread
        # The same examples on both sides: their difference is known far better, by √(1 - ρ²) < reach / √12.
        assert abs(found.variance_error / exact.variance_error - 1) < 0.06
        assert abs(found.mean_error / exact.mean_error - 1) < 0.06
        pairs.append(found)
    few = pairs[:3]
    part = [1 - 1 / pair.num_merged for pair in few]
    reach = [pair.reach for pair in few]
    assert fitted_slope(reach, [-p.mean_error / f for p, f in zip(few, part, strict=True)]) == pytest.approx(
        2, abs=0.15
    )
    assert fitted_slope(reach, [p.variance_error / f for p, f in zip(few, part, strict=True)]) == pytest.approx(
        1, abs=0.1
    )


@pytest.mark.parametrize("draw", [skewed_noise, stable_noise(1.5), stable_noise(0.8)], ids=["skewed", "1.5", "0.8"])
def test_linear_scaling_needs_no_law_of_the_noise_while_curvature_is_small(draw: Draw) -> None:
    """n small batches and one large batch add up the same examples, Gaussian or not."""
    start = np.ones((100, 1))
    small, large = merged_states(
        draw, 32, curvature=1e-9, learning_rate=0.01, batch_size=2, start_M1=start, generator=generator(26)
    )
    np.testing.assert_allclose(small - start, large - start, rtol=1e-6, atol=1e-9)
    assert np.std(small) > 0


def test_curvature_costs_heavy_tails_no_more_than_gaussian_noise() -> None:
    """Scale of one large step over n small ones: (n / Σ (1 - εh)^{αj})^{1/α}, near 1 + nεh / 2 for every α."""
    for alpha in (1.5, 2.0):
        small, large = merged_states(
            stable_noise(alpha),
            32,
            curvature=1.0,
            learning_rate=1 / 128,
            batch_size=1,
            start_M1=np.zeros((20_000, 1)),
            generator=generator(27),
        )
        exact = (32 / np.sum((1 - 1 / 128) ** (alpha * np.arange(32)))) ** (1 / alpha)
        assert quartile_distance(large) / quartile_distance(small) == pytest.approx(exact, abs=0.02)
        assert exact == pytest.approx(1 + 31 / 256, abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: linear_scaling(0, curvature=1.0, noise_variance=1.0, learning_rate=0.1, batch_size=1),
            "num_merged=0",
        ),
        (
            lambda: linear_scaling(2, curvature=4.0, noise_variance=1.0, learning_rate=0.25, batch_size=1),
            "learning rate below 0.25",
        ),
        (
            lambda: linear_scaling(2, curvature=-1.0, noise_variance=1.0, learning_rate=0.25, batch_size=1),
            "curvature must be a positive number, not -1.0",
        ),
        (
            lambda: measure_linear_scaling(
                skewed_noise,
                2,
                curvature=1.0,
                learning_rate=0.1,
                batch_size=1,
                num_paths=1,
                generator=generator(0),
            ),
            "num_paths=1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
