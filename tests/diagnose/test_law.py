"""The law of the optima: batch size and length from simulated grids, and whether its intervals cover the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import cases
from isotherm.core.budget import Budget
from isotherm.core.statistics import Floats
from isotherm.diagnose.answer import rise_words
from isotherm.diagnose.curves import Curve, curve
from isotherm.diagnose.intended import Intended
from isotherm.diagnose.law import Law, fit_law, fitted_peak

SIZES = (8, 32, 128)
FULL = 32_000.0  # examples of the intended training
PARTS = (1 / 8, 1 / 4, 1 / 2)
Peak = Callable[[float, float], float]


def power(level: float, *, slope: float = 1.0, exponent: float = 0.0) -> Peak:
    """Return log2 of the best learning rate, `level` at B = 32 and the intended length."""
    return lambda size, length: level + slope * math.log2(size / 32) + exponent * math.log2(length / FULL)


def fall(away: Floats, steep: float = 1.0) -> Floats:
    """Return how a metric falls from its peak, more steeply above it by a factor."""
    return np.where(away > 0, steep, 1.0) * away**2 / (1 + 0.1 * away**2)


def grids(
    peak: Peak,
    *,
    noise: float = 0.004,
    steep: float = 1.0,
    seed: int = 0,
    sizes: Sequence[int] = SIZES,
    parts: Sequence[float] = PARTS,
) -> list[Curve]:
    """Return grids of five learning rates a factor of two apart, not quite centred, with four seeds."""
    generator = np.random.default_rng(seed)
    found = []
    for size in sizes:
        for part in parts:
            centre = peak(size, part * FULL) + generator.uniform(-0.7, 0.7)
            x = centre + np.arange(-2.0, 3.0)
            means = 0.8 - 0.015 * fall(x - peak(size, part * FULL), steep)
            scores = means[:, None] + noise * generator.normal(size=(5, 4)) + 0.02 * generator.normal(size=4)
            found.append(curve(batch_size=size, num_examples=part * FULL, rates=tuple(2.0**x), scores_RS=scores))
    return found


def law_of(curves: Sequence[Curve], **options: float) -> Law:
    found = fit_law(curves, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_the_answer_rises_as_b_or_with_the_slope_that_excludes_it() -> None:
    task = cases.blobs_task()
    epochs = Intended(task=task, budget=Budget.epochs(FULL / task.num_train))
    unit = epochs.isotherm(law_of(grids(power(-4.0, exponent=-0.5))), [])
    assert (unit.used_slope, unit.used_interval) == (1.0, unit.slope)  # 1 exactly, whatever slope was measured
    assert unit.slope is not None
    assert unit.slope.estimate != 1.0
    half = epochs.isotherm(law_of(grids(power(1.0, slope=0.5, exponent=-0.5), noise=0.002)), [])
    assert half.slope is not None
    assert half.used_slope == pytest.approx(half.slope.estimate)
    assert rise_words(half).endswith("not as B")


def test_at_equal_updates_the_answer_rises_with_the_length_too() -> None:
    law = law_of(grids(power(-4.0, exponent=-0.5), noise=0.002))
    found = Intended(task=cases.blobs_task(), budget=Budget.steps(1000)).isotherm(law, [])
    assert law.exponent is not None
    assert found.used_interval is not None
    assert found.used_slope == pytest.approx(1.0 + law.exponent.estimate, abs=1e-6)
    assert found.used_interval.contains(found.used_slope)
    assert found.rate(64.0) == pytest.approx(law.at(64, 64 * 1000).estimate, rel=1e-6)


@pytest.mark.parametrize("exponent", [0.0, -0.5, -1.0])
def test_the_best_learning_rate_of_the_intended_length_is_extrapolated(exponent: float) -> None:
    peak = power(-4.0, exponent=exponent)
    found = law_of(grids(peak))
    assert found.has_unit_slope
    assert found.exponent is not None
    assert found.exponent.contains(exponent)
    for size in SIZES:
        rate = found.at(size, FULL)
        assert abs(math.log2(rate.estimate) - peak(size, FULL)) < 0.7
        assert rate.low <= 2.0 ** peak(size, FULL) <= rate.high


def test_a_measured_slope_of_a_half_is_used() -> None:
    peak = power(1.0, slope=0.5, exponent=-0.5)
    found = law_of(grids(peak, noise=0.002))
    assert not found.has_unit_slope
    assert found.slope is not None
    assert found.slope.high < 1.0
    assert found.slope.contains(0.5)
    for size in (8, 128):
        assert abs(math.log2(found.at(size, FULL).estimate) - peak(size, FULL)) < 0.7


def test_a_slope_that_changes_with_the_length_is_that_of_the_longest_runs() -> None:
    """As with clipping: runs that hardly move want ε ∝ B, longer ones ∝ √B."""

    def peak(size: float, length: float) -> float:
        slope = 1.0 - 0.25 * (math.log2(length / FULL) + 3)
        return 2.0 + max(0.5, slope) * math.log2(size / 32) - 0.5 * math.log2(length / FULL)

    found = law_of(grids(peak, noise=0.002))
    assert found.slope is not None
    assert found.slope.contains(0.5)
    assert not found.has_unit_slope


def test_an_interval_widens_with_the_distance_of_the_extrapolation() -> None:
    found = law_of(grids(power(-4.0, exponent=-0.5)))
    widths = [math.log2(rate.high / rate.low) for rate in (found.at(32, k * FULL) for k in (0.5, 1, 4, 64))]
    assert widths == sorted(widths)
    assert widths[3] > 2 * widths[1]


def test_one_length_says_nothing_about_longer_ones_and_its_interval_knows() -> None:
    found = law_of(grids(power(-4.0), parts=(1 / 4,)))
    assert found.exponent is None
    several = law_of(grids(power(-4.0)))
    near, far = found.at(32, FULL), several.at(32, FULL)
    assert near.high / near.low > 1.3 * far.high / far.low


def test_one_batch_size_has_no_slope() -> None:
    found = law_of(grids(power(-4.0), sizes=(32,)))
    assert found.slope is None
    assert found.has_unit_slope
    assert found.at(64, FULL).estimate == pytest.approx(2 * found.at(32, FULL).estimate)


@pytest.mark.parametrize(("steep", "exponent"), [(0.3, -1.0), (1.0, 0.0), (4.0, -0.5)])
def test_intervals_cover_the_truth_in_nine_of_ten_simulated_tasks(steep: float, exponent: float) -> None:
    peak = power(-4.0, exponent=exponent)
    covered = []
    for seed in range(12):
        rate = law_of(grids(peak, noise=0.008, steep=steep, seed=seed), seed=seed).at(32, FULL)
        covered.append(rate.low <= 2.0**-4 <= rate.high)
    assert np.mean(covered) >= 0.9


def test_peaks_near_the_ceiling_do_not_count() -> None:
    """At B = 128 the best learning rate is what curvature allows, not what the law says."""
    top = 2.0**-2.5

    def peak(size: float, length: float) -> float:
        return min(-4.0 + math.log2(size / 32), math.log2(top) + 0.3)

    found = law_of(grids(peak), ceiling=top)
    assert found.batch_sizes == (8, 32)
    assert found.has_unit_slope
    assert fit_law(grids(peak), ceiling=2.0**-6.5) is None


def test_on_a_plateau_the_middle_is_the_estimate_and_all_of_it_the_interval() -> None:
    rates = tuple(2.0**k for k in range(-8, 2))
    curves = [
        curve(
            batch_size=size,
            num_examples=part * FULL,
            rates=rates,
            scores_RS=np.tile(np.where(np.abs(np.log2(rates) + 4 - math.log2(size / 32)) <= 3, 1.0, 0.5)[:, None], 4),
        )
        for size in (16, 32)
        for part in PARTS
    ]
    found = law_of(curves)
    assert found.drop is None
    rate = found.at(32, FULL)
    assert math.log2(rate.estimate) == pytest.approx(-4.0, abs=0.6)
    assert rate.low < 2.0**-6.5
    assert rate.high > 2.0**-1.5


def test_the_drop_beside_the_peak_is_that_of_the_curves() -> None:
    found = law_of(grids(power(-4.0), noise=0.001))
    assert found.drop is not None
    assert found.drop.at(0.0) == pytest.approx(0.0, abs=1e-12)
    for octaves in (-1.5, -1.0, 1.0, 1.5):
        assert found.drop.at(octaves) == pytest.approx(0.015 * float(fall(np.array(octaves))), rel=0.3)


def test_the_next_grid_is_centred_where_the_law_puts_it() -> None:
    peak = power(-4.0, exponent=-1.0)
    shorter = grids(peak, parts=PARTS[:2])
    expected = fitted_peak(shorter, batch_size=32, num_examples=FULL / 2)
    assert abs(math.log2(expected) - peak(32, FULL / 2)) < 0.5


def test_equal_seeds_give_equal_laws() -> None:
    first, again = (law_of(grids(power(-4.0)), seed=3) for _ in range(2))
    assert np.array_equal(first.draws, again.draws)
