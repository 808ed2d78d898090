"""Curves of the judged quantity: what is tied with the best, and the peaks of coarse grids."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isotherm.core.statistics import Floats
from isotherm.diagnose.curves import Curve, common_peaks, curve, have_plateau, pooled

RATES = tuple(2.0**k for k in range(-6, 3))


def made(
    scores_RS: Floats, *, rates: tuple[float, ...] = RATES, batch_size: int = 8, num_examples: int = 1000
) -> Curve:
    return curve(batch_size=batch_size, num_examples=num_examples, rates=rates, scores_RS=scores_RS)


def parabola(peak: float, *, num_seeds: int = 4, noise: float = 0.01, seed: int = 0) -> Floats:
    generator = np.random.default_rng(seed)
    means = -0.05 * (np.log2(RATES) - peak) ** 2
    return means[:, None] + noise * generator.normal(size=(len(RATES), num_seeds))


def test_a_peak_is_no_plateau() -> None:
    found = made(parabola(-2.0))
    assert found.best == -2.0
    low, high = found.range
    assert -3.0 <= low <= -2.0 <= high <= -1.0
    assert not have_plateau([found])


def test_an_accuracy_of_one_over_many_learning_rates_is_a_plateau() -> None:
    accuracy = np.array([0.5, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.4])
    found = made(np.tile(accuracy[:, None], (1, 4)))
    assert found.range == (-4.0, 1.0)
    assert found.best == -1.5
    assert have_plateau([found])
    assert not have_plateau([found, made(parabola(-2.0))])


def test_an_example_more_or_less_does_not_end_a_plateau_that_reaches_the_lowest_learning_rate() -> None:
    accuracy = np.ones((5, 3))
    accuracy[3, 1] = accuracy[4, 2] = 0.996
    found = made(accuracy, rates=RATES[:5])
    assert found.range == (-6.0, -2.0)
    assert have_plateau([found])


def test_a_plateau_at_the_greatest_length_alone_may_be_chance() -> None:
    flat = np.tile(np.array([0.5, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.4])[:, None], (1, 4))
    longest = [made(flat, num_examples=4000), made(flat, num_examples=4000, batch_size=32)]
    assert have_plateau(longest)
    assert not have_plateau([made(parabola(-2.0), num_examples=2000), *longest])
    assert have_plateau([made(parabola(-2.0)), made(flat, num_examples=2000), *longest])


def test_two_seeds_that_agree_by_chance_are_not_certain() -> None:
    """Relative to its best value, the noise of a run is 0.2 in the other grids, and 0.02 in this one."""
    noisy = [made(parabola(-2.0, noise=0.2, seed=seed) - 1.0) for seed in range(4)]
    agreeing = made(parabola(-2.0, noise=0.02, num_seeds=2) - 1.0)
    *others, found = pooled([*noisy, agreeing])
    typical = 0.2 / math.sqrt(2)
    assert agreeing.errors[4] < 0.2 * typical
    assert 0.4 * typical < found.errors[4] < 1.5 * typical
    for before, after in zip(noisy, others, strict=True):
        assert after.errors == pytest.approx(before.errors, rel=0.4)
        assert np.array_equal(after.means, before.means)


def test_twice_the_loss_with_twice_the_noise_is_as_noisy() -> None:
    curves = [made(factor * (parabola(-2.0, noise=0.1) - 1.0)) for factor in (1.0, 2.0, 8.0)]
    for before, after in zip(curves, pooled(curves), strict=True):
        assert after.errors == pytest.approx(before.errors)


def test_without_noise_nothing_is_pooled() -> None:
    flat, failed = made(np.ones((9, 2))), made(np.full((9, 2), -np.inf))
    for before, after in zip([flat, failed], pooled([flat, failed]), strict=True):
        assert np.array_equal(before.errors, after.errors)
    assert pooled([]) == []


def test_noisy_runs_at_high_learning_rates_are_not_tied_with_the_best() -> None:
    """However large their error: they are far worse, seen against the fall to the lowest learning rate."""
    scores = parabola(-4.0, num_seeds=2)
    scores[5:] += np.array([3.0, -5.0])
    assert made(scores).range[1] < -1.0


def test_a_learning_rate_at_which_a_run_failed_has_no_value() -> None:
    scores = parabola(-2.0)
    scores[7, 1] = -np.inf
    found = made(scores)
    assert np.isneginf(found.means[7])
    assert np.isfinite(found.means[:7]).all()
    assert not made(np.full((9, 4), -np.inf)).is_usable


def test_what_a_seed_does_at_all_rates_alike_is_no_error() -> None:
    scores = parabola(-2.0, noise=0.0)
    common = scores + np.array([0.0, 5.0, -3.0, 8.0])
    assert made(common).errors == pytest.approx(made(scores).errors)


def test_one_coarse_grid_that_misleads_is_put_right_by_the_others() -> None:
    """At B = 8 chance has made a learning rate far too high the best."""
    rates = tuple(4.0**k for k in range(-5, 1))

    def means(peak: float) -> Floats:
        return np.tile(-0.05 * (np.log2(rates)[:, None] - peak) ** 2, (1, 4))

    misled = means(-6.0)
    misled[5] = 0.1
    curves = [
        made(misled, rates=rates, batch_size=8),
        made(means(-4.0), rates=rates, batch_size=32),
        made(means(-2.0), rates=rates, batch_size=128),
    ]
    assert common_peaks(curves) == [-6.0, -4.0, -2.0]


def test_where_all_fail_a_peak_is_still_a_number() -> None:
    (peak,) = common_peaks([made(np.full((9, 2), -np.inf))])
    assert math.isfinite(peak)
