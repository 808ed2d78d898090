"""The power that is claimed is reached: every formula against simulation, to three points (five standard errors)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from isotherm.analysis import power

NUM_DRAWS = 4000


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("level", [0.05, 0.05 / 42])
def test_the_smallest_difference_is_seen_in_four_of_five_sweeps(num_seeds: int, level: float) -> None:
    generator = np.random.default_rng(num_seeds)
    difference = power.smallest_difference(noise=0.7, num_seeds=num_seeds, level=level)
    first, second = generator.normal(scale=0.7, size=(2, NUM_DRAWS, num_seeds))
    tests = stats.ttest_ind(first + difference, second, axis=1, alternative="greater")
    assert np.mean(tests.pvalue <= level) == pytest.approx(0.8, abs=0.03)


def test_picking_the_best_batch_size_costs_nothing_beyond_the_corrected_level() -> None:
    generator = np.random.default_rng(0)
    num_sizes, num_seeds, level = 8, 5, 0.05 / 7
    difference = power.smallest_difference(noise=1.0, num_seeds=num_seeds, level=level)

    def part_seen(fall: float) -> float:
        runs = generator.normal(size=(NUM_DRAWS, num_sizes, num_seeds))
        runs[:, -1] -= fall
        best = runs[np.arange(NUM_DRAWS), np.argmax(runs.mean(axis=2), axis=1)]
        tests = stats.ttest_ind(best, runs[:, -1], axis=1, alternative="greater", equal_var=True)
        return float(np.mean(tests.pvalue <= level))

    assert part_seen(difference) > 0.77
    assert part_seen(0.0) < 0.05


@pytest.mark.parametrize("difference", [0.3, 1.0, 4.0])
def test_the_seeds_named_are_the_fewest_that_do(difference: float) -> None:
    seeds = power.seeds_for_difference(difference, noise=1.0)
    assert seeds is not None
    assert power.smallest_difference(noise=1.0, num_seeds=seeds) <= difference
    assert power.smallest_difference(noise=1.0, num_seeds=seeds - 1) > difference


def test_one_seed_shows_nothing_and_some_differences_are_out_of_reach() -> None:
    assert power.smallest_difference(noise=1.0, num_seeds=1) == math.inf
    assert power.power_of_difference(9.0, noise=1.0, num_seeds=1) == 0.0
    assert power.seeds_for_difference(1e-4, noise=1.0) is None


@pytest.mark.parametrize("spacing", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_neighbours_help_as_far_as_luck_differs_between_them(spacing: float, correlation: float) -> None:
    generator = np.random.default_rng(1)
    x, values = _curves(generator, spacing=spacing, correlation=correlation, num_seeds=4)
    heights = np.polyfit(x, values, 1)[1]  # the shape is known, place and height are not
    alone = power.effective_noise(1.0, num_seeds=4, log_spacing=spacing, num_rates=9, correlation=correlation)
    assert np.std(heights) == pytest.approx(alone / math.sqrt(4), rel=0.06)
    confirmed = generator.normal(scale=1 / math.sqrt(6), size=NUM_DRAWS)
    weights = 4 / alone**2, 6.0
    both = (weights[0] * heights + weights[1] * confirmed) / sum(weights)
    together = power.effective_noise(
        1.0, num_seeds=4, num_confirm=6, log_spacing=spacing, num_rates=9, correlation=correlation
    )
    assert np.std(both) == pytest.approx(together / math.sqrt(10), rel=0.06)


def test_without_a_known_correlation_or_with_too_few_rates_neighbours_are_not_counted() -> None:
    assert power.effective_noise(2.0, num_seeds=5, log_spacing=0.25, num_rates=9, correlation=None) == 2.0
    assert power.effective_noise(2.0, num_seeds=5, log_spacing=0.25, num_rates=2, correlation=0.0) == 2.0


@pytest.mark.parametrize("spacing", [1.0, 0.5])
def test_the_error_of_an_optimum_and_of_the_slope(spacing: float) -> None:
    generator = np.random.default_rng(2)
    sizes = (8, 16, 32, 64, 128, 256)
    errors = []
    for _ in sizes:
        x, values = _curves(generator, spacing=spacing, correlation=0.5, num_seeds=5)
        errors.append(np.polyfit(x, values, 1)[0] / (2 * 20.0))  # the curvature is shared, hence known
    expected = power.error_of_optimum(
        noise=1.0, curvature=20.0, num_seeds=5, log_spacing=spacing, num_rates=9, correlation=0.5
    )
    assert np.std(errors) == pytest.approx(expected, rel=0.05)
    error = power.slope_error(sizes, error=expected)
    slopes = 1 + np.polyfit(np.log2(sizes), np.array(errors), 1)[0]
    assert np.std(slopes) == pytest.approx(error, rel=0.05)
    deviation = power.smallest_slope_deviation(error, level=0.01)
    half = stats.norm.ppf(0.995) * error
    assert np.mean(slopes + deviation - half > 1) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("error", [0.03, 0.07, 0.09, 0.2])
def test_the_chance_to_show_proportionality(error: float) -> None:
    slopes = np.random.default_rng(3).normal(1.0, error, size=40_000)
    half = stats.norm.ppf(0.95) * error
    shown = np.mean((slopes - half > 0.8) & (slopes + half < 1.25))
    assert power.power_of_proportionality(error, within=(0.8, 1.25)) == pytest.approx(shown, abs=0.01)


def test_a_finer_grid_hides_less_and_no_rounding_exceeds_what_is_said() -> None:
    sizes = (8, 16, 32, 64, 128)
    most = power.slope_from_grid(sizes, log_spacing=1.0)
    rounding = np.random.default_rng(4).uniform(-0.5, 0.5, size=(5, 2000))
    assert np.max(np.abs(np.polyfit(np.log2(sizes), rounding, 1)[0])) <= most
    extreme = 0.5 * np.sign(np.arange(5) - 2.0)
    assert np.polyfit(np.log2(sizes), extreme, 1)[0] == pytest.approx(most)
    assert power.hidden_between(0.25, curvature=1.0) == power.hidden_between(1.0, curvature=1.0) / 16


def _curves(
    generator: np.random.Generator, *, spacing: float, correlation: float, num_seeds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return learning rates within an octave, and means over seeds of noise at them, (num_rates, NUM_DRAWS)."""
    each_side = round(1 / spacing)
    x = np.arange(-each_side, each_side + 1) * spacing
    shared = generator.normal(size=(1, NUM_DRAWS, num_seeds))
    own = generator.normal(size=(len(x), NUM_DRAWS, num_seeds))
    return x, (math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own).mean(axis=2)
