"""Statistics: best k of n, confidence intervals, and broken lines of optimal learning rate against batch size.

Pure NumPy and SciPy; knows nothing about runs or stores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from isotherm.core.records import Direction

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate with its confidence limits."""

    estimate: float
    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Tell whether a value lies within the limits."""
        return self.low <= value <= self.high


def best_k_of_n(values: Sequence[float], *, num_kept: int, direction: Direction) -> list[int]:
    """Return the indices of the best k values, best first; NaN (a diverged run) is worse than anything.

    Ties go to the lower index.

    >>> best_k_of_n([0.5, 0.9, math.nan, 0.9], num_kept=3, direction=Direction.MAXIMISE)
    [1, 3, 0]
    """
    order = np.argsort(-direction.sign * np.asarray(values, dtype=np.float64), kind="stable")  # NaN last
    kept: list[int] = order[:num_kept].tolist()
    return kept


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); 0 for a single value.

    >>> standard_deviation([1.0, 3.0]) == 2**0.5
    True
    """
    if not np.isfinite(values).all():
        return math.nan
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def t_interval(values: Sequence[float], *, level: float = 0.95, bounds: tuple[float, float] | None = None) -> Interval:
    """Return the mean with its Student-t interval; unbounded for a single value or none.

    Where the values have bounds, so has their mean: the interval is cut off there, which loses no coverage.

    >>> interval = t_interval([1.0, 2.0, 3.0])
    >>> round(interval.low, 3), interval.estimate, round(interval.high, 3)
    (-0.484, 2.0, 4.484)
    >>> t_interval([0.98, 1.0], bounds=(0.0, 1.0)).high
    1.0
    """
    mean = float(np.mean(values)) if len(values) else math.nan
    low, high = bounds or (-math.inf, math.inf)
    if len(values) < 2:
        return Interval(estimate=mean, low=low, high=high)
    half = _t_quantile(0.5 + level / 2, len(values) - 1) * standard_deviation(values) / math.sqrt(len(values))
    return Interval(estimate=mean, low=max(low, mean - half), high=min(high, mean + half))


@functools.cache
def _t_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t; kept, as every cell of every grid asks for the same few."""
    return float(special.stdtrit(freedom, probability))


def welch_interval(first: Sequence[float], second: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return mean(first) - mean(second) with Welch's interval; unbounded where a side has a single value.

    >>> interval = welch_interval([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    >>> interval.estimate, round(interval.high, 2)
    (0.0, 2.27)
    """
    return mean_difference([(first, second)], level=level)


def mean_difference(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], *, level: float = 0.95) -> Interval:
    """Return the average over pairs of mean(first) - mean(second), with its interval for these pairs.

    Variances are summed over pairs and the degrees of freedom are Welch's.

    >>> interval = mean_difference([([1.0, 3.0], [0.0, 2.0]), ([2.0, 4.0], [1.0, 3.0])])
    >>> interval.estimate, round(interval.low, 3)
    (1.0, -1.776)
    """
    samples = [side for pair in pairs for side in pair]
    difference = float(np.mean([np.mean(first) - np.mean(second) for first, second in pairs]))
    if min(len(side) for side in samples) < 2:
        return Interval(estimate=difference, low=-math.inf, high=math.inf)
    parts = [(standard_deviation(side) / len(pairs)) ** 2 / len(side) for side in samples]
    total = sum(parts)
    if total == 0.0:
        return Interval(estimate=difference, low=difference, high=difference)
    freedom = total**2 / sum(p**2 / (len(side) - 1) for p, side in zip(parts, samples, strict=True))
    half = float(special.stdtrit(freedom, 0.5 + level / 2)) * math.sqrt(total)
    return Interval(estimate=difference, low=difference - half, high=difference + half)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenLine:
    """log2 ε* = plateau + slope · min(0, log2 B - kink): rising with a slope, then level.

    `kink` is None where the data show no level part.
    """

    slope: float
    kink: float | None
    plateau: float

    def at(self, log_batch_size: Sequence[float]) -> Floats:
        """Return log2 ε* at these log2 B, the last of which is where a line without a kink ends.

        >>> BrokenLine(slope=1.0, kink=6.0, plateau=2.0).at([4.0, 8.0]).tolist()
        [0.0, 2.0]
        """
        x = np.asarray(log_batch_size, dtype=np.float64)
        return np.asarray(self.plateau + self.slope * np.minimum(0.0, x - (x[-1] if self.kink is None else self.kink)))


def fit_broken_line(log_batch_size: Sequence[float], log_learning_rate: Sequence[float]) -> BrokenLine:
    """Return the least-squares broken line; logarithms to base 2. Needs at least three points.

    >>> line = fit_broken_line([3, 4, 5, 6, 7, 8], [-3, -2, -1, 0, 0, 0])
    >>> round(line.slope, 6), line.kink, line.plateau
    (1.0, 6.0, 0.0)
    >>> fit_broken_line([3, 4, 5], [0, 1, 2]).kink is None
    True
    """
    y = np.asarray(log_learning_rate, dtype=np.float64)
    (slope,), (kink,), (plateau,) = fit_broken_lines(log_batch_size, y[None])
    return BrokenLine(slope=float(slope), kink=None if math.isnan(kink) else float(kink), plateau=float(plateau))


def fit_broken_lines(log_batch_size: Sequence[float], log_learning_rates: Floats) -> tuple[Floats, Floats, Floats]:
    """Return slopes, kinks (NaN where none is seen) and plateaus of many lines at once.

    Args:
        log_batch_size: rising, shape (num_points,).
        log_learning_rates: shape (num_lines, num_points).
    """
    bends = _Bends(log_batch_size)
    products = bends.products(log_learning_rates)
    indices = np.argmax(products**2 / bends.squares + bends.preference, axis=1)
    slopes = products[np.arange(len(indices)), indices] / bends.squares[indices]
    return slopes, bends.kinks_seen(indices), bends.plateaus(log_learning_rates, slopes, indices)


class _Bends:
    """All candidate kinks of a broken line over given points, a sixteenth of an octave apart.

    With the kink fixed, least squares is linear: a slope lowers the sum of squares by products² / squares.
    """

    def __init__(self, log_batch_size: Sequence[float]) -> None:
        x = np.asarray(log_batch_size, dtype=np.float64)
        if len(x) < 3:
            raise ValueError(f"a broken line needs three points or more, got {len(x)}")
        # At least two points rise; a kink at the last point means that there is none.
        self._kinks = np.append(np.arange(x[1], x[-1] - 1e-9, 1 / 16), x[-1])
        rises = np.minimum(0.0, x - self._kinks[:, None])
        self._mean_rises = rises.mean(axis=1)
        self._centred = rises - self._mean_rises[:, None]
        self.squares: Floats = np.sum(self._centred**2, axis=1)
        # Among equal fits, prefer the later kink.
        self.preference: Floats = np.linspace(0.0, 1e-11, len(self._kinks))

    def products(self, log_learning_rates: Floats) -> Floats:
        """Return the products of every line with the rise to every kink, shape (num_lines, num_kinks)."""
        residuals = log_learning_rates - log_learning_rates.mean(axis=1, keepdims=True)
        return np.asarray(residuals @ self._centred.T)

    def kinks_seen(self, indices: NDArray[np.int64]) -> Floats:
        """Return the kinks at these indices; NaN for the last one."""
        return np.where(indices == len(self._kinks) - 1, np.nan, self._kinks[indices])

    def plateaus(self, log_learning_rates: Floats, slopes: Floats, indices: NDArray[np.int64]) -> Floats:
        """Return the plateaus for these slopes and kinks."""
        return np.asarray(log_learning_rates.mean(axis=1) - slopes * self._mean_rises[indices])


def log_sum_exp(values: Floats, *, axis: int) -> Floats:
    """Return log(sum(exp(values))) along an axis; minus infinity where all values are.

    >>> log_sum_exp(np.log([[1.0, 3.0], [0.5, 1.5]]), axis=1).round(6).tolist() == np.log([4.0, 2.0]).round(6).tolist()
    True
    """
    most = values.max(axis=axis, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - most).sum(axis=axis)) + most.squeeze(axis))


def percentile_limits(draws: Floats, *, level: float = 0.95) -> tuple[float, float]:
    """Return percentile limits of resampled values, which may be infinite.

    >>> percentile_limits(np.arange(101.0), level=0.9)
    (5.0, 95.0)
    >>> percentile_limits(np.array([1.0, 2.0, 3.0, np.inf]))
    (1.0, inf)
    """
    low = np.quantile(draws, 0.5 - level / 2, method="inverted_cdf")
    high = np.quantile(draws, 0.5 + level / 2, method="inverted_cdf")
    return float(low), float(high)
