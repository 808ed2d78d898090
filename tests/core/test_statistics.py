from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from isotherm.core.records import Direction
from isotherm.core.statistics import (
    BrokenLine,
    Interval,
    best_k_of_n,
    fit_broken_line,
    fit_broken_lines,
    log_sum_exp,
    mean_difference,
    percentile_limits,
    standard_deviation,
    t_interval,
    welch_interval,
)

UP, DOWN = Direction.MAXIMISE, Direction.MINIMISE
NAN, INF = math.nan, math.inf

# -- best k of n -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "num_kept", "direction", "places"),
    [
        ([0.1, 0.3, 0.2], 2, UP, [1, 2]),
        ([0.1, 0.3, 0.2], 2, DOWN, [0, 2]),
        ([0.5, 0.5, 0.5], 2, UP, [0, 1]),  # ties go to the earlier place
        ([0.5, 0.9, 0.5, 0.9], 3, UP, [1, 3, 0]),
        ([0.5, 0.1, 0.5, 0.1], 3, DOWN, [1, 3, 0]),
        ([NAN, 0.5, NAN, 0.1], 2, UP, [1, 3]),
        ([NAN, 0.5, NAN, 0.1], 2, DOWN, [3, 1]),
        ([NAN, 0.5, NAN], 2, UP, [1, 0]),  # a NaN where there is nothing better
        ([NAN, -INF], 1, UP, [1]),  # NaN is worse than anything
        ([NAN, INF], 1, DOWN, [1]),
        ([INF, 1.0], 1, DOWN, [1]),
        ([2.0], 1, UP, [0]),
    ],
)
def test_best_k_of_n_by_hand(values: list[float], num_kept: int, direction: Direction, places: list[int]) -> None:
    assert best_k_of_n(values, num_kept=num_kept, direction=direction) == places


def _badness(values: list[float], direction: Direction) -> tuple[int, list[float]]:
    """Return what makes a choice of runs worse: its NaNs, then its values from the best to the worst."""
    numbers = sorted(-direction.sign * v for v in values if not math.isnan(v))
    return len(values) - len(numbers), numbers


few_values = st.sampled_from([NAN, -INF, INF, 0.0, 0.5])  # many ties


@settings(max_examples=300, deadline=None)
@example(values=[NAN, INF], num_kept=1, way=DOWN)
@example(values=[NAN, 0.5, -INF], num_kept=2, way=UP)
@given(
    values=st.lists(few_values | st.floats(), min_size=1, max_size=6),
    num_kept=st.integers(1, 6),
    way=st.sampled_from([UP, DOWN]),
)
def test_best_k_of_n_is_the_best_choice_there_is(values: list[float], num_kept: int, way: Direction) -> None:
    num_kept = min(num_kept, len(values))
    places = best_k_of_n(values, num_kept=num_kept, direction=way)
    assert len(set(places)) == num_kept
    choices = itertools.combinations(range(len(values)), num_kept)
    best = min(_badness([values[p] for p in some], way) for some in choices)
    assert _badness([values[p] for p in places], way) == best


# -- spread and intervals --------------------------------------------------------------------------


def test_standard_deviation_divides_by_n_minus_one() -> None:
    assert standard_deviation([1.0, 2.0, 3.0, 6.0]) == pytest.approx(math.sqrt(14 / 3), rel=1e-15)
    assert standard_deviation([5.0, 5.0]) == 0.0
    assert standard_deviation([5.0]) == 0.0


def test_interval_contains_its_limits() -> None:
    interval = Interval(estimate=1.0, low=0.0, high=2.0)
    assert [interval.contains(v) for v in (-0.1, 0.0, 1.0, 2.0, 2.1, NAN)] == [False, True, True, True, False, False]


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_t_interval_against_scipy(level: float) -> None:
    values = [0.3, 0.9, 0.4, 0.45]
    interval = t_interval(values, level=level)
    low, high = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert interval.estimate == pytest.approx(0.5125, rel=1e-15)
    assert (interval.low, interval.high) == (pytest.approx(low, rel=1e-12), pytest.approx(high, rel=1e-12))


def test_t_interval_of_one_value_is_unbounded() -> None:
    assert t_interval([0.5]) == Interval(estimate=0.5, low=-INF, high=INF)


def test_t_interval_covers_the_mean_as_often_as_it_says() -> None:
    """Of 4000 samples of 5, 95 % ± 1.4 % cover: four standard errors, a false alarm for 6 seeds in 100 000.

    The normal interval, 1.96 standard errors, would cover 88 %.
    """
    samples = np.random.default_rng(1).normal(loc=3.0, scale=0.2, size=(4000, 5))
    covered = np.mean([t_interval(sample).contains(3.0) for sample in samples])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0.3, 0.9, 0.4, 0.45], [0.1, 0.2, 0.15]),
        ([1.0, 2.0], [10.0, 10.5, 11.0, 9.0, 8.5]),
    ],
)
def test_welch_interval_against_scipy(first: list[float], second: list[float], level: float) -> None:
    interval = welch_interval(first, second, level=level)
    limits = stats.ttest_ind(first, second, equal_var=False).confidence_interval(level)
    assert interval.estimate == pytest.approx(np.mean(first) - np.mean(second), rel=1e-14)
    assert interval.low == pytest.approx(limits.low, rel=1e-10)
    assert interval.high == pytest.approx(limits.high, rel=1e-10)


def test_welch_interval_without_spread_on_one_side_is_the_other_side_s() -> None:
    interval, one_sided = welch_interval([1.0, 1.0, 1.0], [0.5, 0.7]), t_interval([0.5, 0.7])
    assert interval.low == pytest.approx(1.0 - one_sided.high, rel=1e-12)
    assert interval.high == pytest.approx(1.0 - one_sided.low, rel=1e-12)


def test_welch_interval_where_nothing_is_known_or_nothing_varies() -> None:
    assert welch_interval([1.0], [0.25, 0.5]) == Interval(estimate=0.625, low=-INF, high=INF)
    assert welch_interval([1.0, 2.0], [0.5]) == Interval(estimate=1.0, low=-INF, high=INF)
    assert welch_interval([1.0, 1.0], [0.5, 0.5]) == Interval(estimate=0.5, low=0.5, high=0.5)


def test_mean_difference_of_one_pair_is_welch_s() -> None:
    first, second = [0.3, 0.9, 0.4, 0.45], [0.1, 0.2, 0.15]
    assert mean_difference([(first, second)], level=0.9) == welch_interval(first, second, level=0.9)


def test_mean_difference_averages_over_pairs() -> None:
    # The same pair twice, independently drawn: the same mean, half the variance, twice the degrees of freedom.
    first, second = [1.0, 2.0, 4.0], [0.0, 1.0, 0.5]
    once, twice = welch_interval(first, second), mean_difference([(first, second), (first, second)])
    parts = [np.var(side, ddof=1) / 3 for side in (first, second)]
    freedom = sum(parts) ** 2 / sum(p**2 / 2 for p in parts)
    shrink = stats.t.ppf(0.975, 2 * freedom) / stats.t.ppf(0.975, freedom) / math.sqrt(2)
    assert twice.estimate == pytest.approx(once.estimate, rel=1e-14)
    assert twice.high - twice.estimate == pytest.approx(shrink * (once.high - once.estimate), rel=1e-10)


def test_mean_difference_covers_the_truth_as_often_as_it_says() -> None:
    """Of 2000 draws of three unlike pairs, 95 % ± 2.5 % cover: five standard errors, a false alarm in a million.

    Pairs differ among themselves by design; only the seeds are random, as the interval says.
    """
    generator, truths, scales = np.random.default_rng(7), (1.0, -0.5, 3.0), (0.1, 0.5, 1.0)
    covered = 0
    for _ in range(2000):
        pairs = [
            (generator.normal(truth, scale, size=5).tolist(), generator.normal(0.0, 0.3, size=5).tolist())
            for truth, scale in zip(truths, scales, strict=True)
        ]
        covered += mean_difference(pairs).contains(sum(truths) / 3)
    assert abs(covered / 2000 - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 2000)


def test_mean_difference_with_a_single_value_is_unbounded() -> None:
    assert mean_difference([([1.0, 2.0], [0.5, 0.5]), ([2.0], [1.0, 1.0])]) == Interval(
        estimate=1.0, low=-INF, high=INF
    )


# -- the broken line -------------------------------------------------------------------------------


def _broken(x: np.ndarray, *, slope: float, kink: float, plateau: float) -> np.ndarray:
    return plateau + slope * np.minimum(0.0, x - kink)


@settings(max_examples=50, deadline=None)
@given(
    slope=st.floats(0.25, 2.0),
    sixteenths=st.integers(16 * 5, 16 * 10 - 8),
    plateau=st.floats(-3.0, 5.0),
)
def test_broken_line_is_recovered(slope: float, sixteenths: int, plateau: float) -> None:
    x = np.arange(3.0, 12.0)  # batch sizes 8 .. 2048, at least two points on the plateau
    kink = sixteenths / 16
    line = fit_broken_line(x.tolist(), _broken(x, slope=slope, kink=kink, plateau=plateau).tolist())
    assert line.kink == pytest.approx(kink, abs=1e-9)
    assert line.slope == pytest.approx(slope, abs=1e-6)
    assert line.plateau == pytest.approx(plateau, abs=1e-6)


def test_kink_off_the_grid_of_sixteenths_is_recovered_to_half_a_step() -> None:
    x = np.arange(3.0, 13.0)
    line = fit_broken_line(x, _broken(x, slope=1.0, kink=7.3, plateau=1.0))
    assert line.kink == pytest.approx(7.3, abs=1 / 32)
    assert line.slope == pytest.approx(1.0, abs=0.02)
    assert line.plateau == pytest.approx(1.0, abs=0.02)


def test_square_root_slope_is_recovered() -> None:
    line = fit_broken_line([4, 6, 8, 10, 12, 14], [-2, -1, 0, 1, 1, 1])
    assert (line.slope, line.kink, line.plateau) == (pytest.approx(0.5), 10.0, pytest.approx(1.0))


@pytest.mark.parametrize("slope", [1.0, 0.5])
def test_straight_line_has_no_kink(slope: float) -> None:
    x = [3.0, 4.0, 5.0, 6.0, 7.0]
    line = fit_broken_line(x, [slope * v - 2 for v in x])
    assert line.kink is None
    assert line.slope == pytest.approx(slope)
    assert line.plateau == pytest.approx(slope * 7.0 - 2)  # the value at the last point


@pytest.mark.parametrize("batch_sizes", [(10, 20, 100), (8, 24, 100, 1000), (16, 48, 500)])
def test_straight_line_has_no_kink_whatever_the_batch_sizes(batch_sizes: tuple[int, ...]) -> None:
    x = [math.log2(b) for b in batch_sizes]
    line = fit_broken_line(x, [v - 5 for v in x])
    assert line.kink is None
    assert line.slope == pytest.approx(1.0)


def test_level_line_has_no_slope_and_no_kink() -> None:
    line = fit_broken_line([3, 4, 5, 6], [1.0, 1.0, 1.0, 1.0])
    assert line.kink is None
    assert line.slope == pytest.approx(0.0, abs=1e-12)
    assert line.plateau == pytest.approx(1.0)


def test_broken_line_in_noise() -> None:
    """Noise of a quarter of a grid step moves slope and kink by a few tenths; fixed seeds, 40 of them."""
    x = np.arange(3.0, 13.0)
    truth = _broken(x, slope=1.0, kink=8.0, plateau=0.0)
    lines = [
        fit_broken_line(x, truth + np.random.default_rng(seed).normal(scale=0.25, size=len(x))) for seed in range(40)
    ]
    assert all(line.kink is not None for line in lines)
    # The standard error of a mean of 40 is below 0.03 for each; the bounds leave five of them.
    assert np.mean([line.slope for line in lines]) == pytest.approx(1.0, abs=0.1)
    assert np.mean([line.kink for line in lines if line.kink is not None]) == pytest.approx(8.0, abs=0.2)
    assert np.mean([line.plateau for line in lines]) == pytest.approx(0.0, abs=0.1)


def test_many_lines_at_once_are_fitted_like_one_by_one() -> None:
    x = np.arange(3.0, 10.0)
    noise = np.random.default_rng(3).normal(scale=0.5, size=(30, len(x)))
    lines = np.concatenate([x - 5 + noise[:10], _broken(x, slope=1.0, kink=6.0, plateau=0.0) + noise[10:]])
    slopes, kinks, plateaus = fit_broken_lines(x.tolist(), lines)
    for place, y in enumerate(lines):
        line = fit_broken_line(x.tolist(), y.tolist())
        assert (slopes[place], plateaus[place]) == pytest.approx((line.slope, line.plateau), rel=1e-12)
        assert line.kink == kinks[place] or (line.kink is None and math.isnan(kinks[place]))
    assert 0 < np.isnan(kinks).sum() < 30


def test_broken_line_is_the_least_squares_one() -> None:
    x = np.arange(3.0, 10.0)
    y = _broken(x, slope=1.0, kink=6.0, plateau=0.0) + np.random.default_rng(4).normal(scale=0.5, size=len(x))
    line = fit_broken_line(x.tolist(), y.tolist())
    assert line.kink is not None
    ours = np.sum((_broken(x, slope=line.slope, kink=line.kink, plateau=line.plateau) - y) ** 2)
    for kink in np.arange(4.0, 9.01, 1 / 16):
        design = np.stack([np.ones_like(x), np.minimum(0.0, x - kink)], axis=1)
        best = np.sum((design @ np.linalg.lstsq(design, y, rcond=None)[0] - y) ** 2)
        assert ours <= best + 1e-9


def test_broken_line_needs_three_points() -> None:
    with pytest.raises(ValueError, match="three points or more, got 2"):
        fit_broken_line([3, 4], [0, 1])


def test_a_broken_line_gives_its_values_back() -> None:
    x = [3.0, 5.0, 7.0, 9.0]
    assert BrokenLine(slope=0.5, kink=6.0, plateau=2.0).at(x).tolist() == [0.5, 1.5, 2.0, 2.0]
    assert BrokenLine(slope=0.5, kink=None, plateau=2.0).at(x).tolist() == [-1.0, 0.0, 1.0, 2.0]


# -- resampled values ------------------------------------------------------------------------------


def test_percentile_limits_of_a_known_distribution() -> None:
    """Uniform on [0, 1]: limits 0.05 and 0.95 at level 0.9, standard error 0.0022 at 10 000 draws, allowed 0.01."""
    low, high = percentile_limits(np.random.default_rng(0).random(10_000), level=0.9)
    assert low == pytest.approx(0.05, abs=0.01)
    assert high == pytest.approx(0.95, abs=0.01)


def test_percentile_limits_of_a_resampled_mean_agree_with_the_normal_interval() -> None:
    """The mean of 200 values: limits ± 1.96 standard errors, to a fifth of that at 2000 draws."""
    generator = np.random.default_rng(5)
    values = generator.normal(size=200)
    low, high = percentile_limits(generator.choice(values, size=(2000, 200)).mean(axis=1))
    half = 1.96 * values.std(ddof=1) / math.sqrt(200)
    assert low == pytest.approx(values.mean() - half, abs=0.2 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.2 * half)


def test_percentile_limits_count_infinite_draws() -> None:
    assert percentile_limits(np.array([2.5, INF, 2.5, INF])) == (2.5, INF)
    mostly_finite = np.append(np.zeros(99), INF)  # one in a hundred lies beyond the limit of one in forty
    assert percentile_limits(mostly_finite) == (0.0, 0.0)


def test_sums_of_exponentials_survive_large_and_missing_values() -> None:
    values = np.array([[1000.0, 1000.0], [-np.inf, 3.0], [-np.inf, -np.inf]])
    assert log_sum_exp(values, axis=1) == pytest.approx([1000 + math.log(2), 3.0, -math.inf])
