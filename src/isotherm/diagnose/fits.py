"""Estimates from short runs: where half of them fail, where a parabola has its minimum, and their uncertainty.

Pure NumPy and SciPy; logarithms are to base 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from isotherm.analysis.optimum import locate
from isotherm.core.statistics import Floats, Interval, percentile_limits

NUM_DRAWS = 400
# In octaves: a parabola through means a factor of two apart is no better than this, however small the seed noise.
LEAST_ERROR = 0.25
# Widths of the rise in failures, in octaves, with equal prior weight; few data cannot tell sharper ones apart.
_WIDTHS = np.geomspace(0.05, 1.6, 11)
# Positions of the rise, in octaves: how far beyond the learning rates, and how far apart.
_BEYOND, _SPACING = 2.0, 1 / 32


def failure_limit(rates: Sequence[float], failed: Sequence[Sequence[bool]]) -> Interval | None:
    """Return the learning rate at which half of the runs fail, with its 95 % interval; None if no run or all failed.

    The curve is logistic in the logarithm of the learning rate. Each curve is weighted by the likelihood of the
    outcomes, over all positions and widths of the rise; the estimate is the median, so untried regions stay open.

    >>> limit = failure_limit([1, 2, 4, 8], [[False] * 4, [False] * 4, [True] * 4, [True] * 4])
    >>> 1.5 < limit.low < limit.estimate < limit.high < 6
    True
    """
    x = np.log2(np.asarray(rates, dtype=np.float64))
    outcomes = [np.asarray(runs, dtype=bool) for runs in failed]
    if all(not runs.any() for runs in outcomes) or all(runs.all() for runs in outcomes):
        return None
    counts = np.array([len(runs) for runs in outcomes], dtype=np.float64)
    failures = np.array([runs.sum() for runs in outcomes], dtype=np.float64)
    places_L = np.arange(x.min() - _BEYOND, x.max() + _BEYOND, _SPACING)
    z_LWR = (x - places_L[:, None, None]) / _WIDTHS[:, None]
    likelihood_LW = special.log_expit(z_LWR) @ failures + special.log_expit(-z_LWR) @ (counts - failures)
    weights_L = np.exp(likelihood_LW - likelihood_LW.max()).sum(axis=1)
    upto_L = (np.cumsum(weights_L) - weights_L / 2) / weights_L.sum()
    low, estimate, high = 2.0 ** np.interp([0.025, 0.5, 0.975], upto_L, places_L)
    return Interval(estimate=float(estimate), low=float(low), high=float(high))


def bottom(log_rates: Floats, values: Floats) -> float:
    """Return where a curve has its minimum, by `locate`; NaN if that is at an edge.

    Without two points below the lowest value to say otherwise, the curve is taken to be a parabola, however steep.

    >>> bottom(np.array([0.0, 1.0, 2.0]), np.array([2.0, 1.0, 2.0]))
    1.0
    >>> bottom(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    nan
    """
    index = int(np.argmin(values)) if np.isfinite(values).any() else 0
    if index in (0, len(values) - 1):
        return math.nan
    near = locate(log_rates, values[None])
    return float(np.where(near.has_parabola & ~near.has_two_below, near.centre, near.log_rate)[0])


def optimum(rates: Sequence[float], losses_RS: Floats, *, seed: int = 0) -> Interval | None:
    """Return the learning rate of lowest mean loss with its 95 % interval; None if it is at an edge.

    Args:
        rates: rising, R of them.
        losses_RS: by rate and seed; infinite if a run failed.
        seed: of the resampling.
    """
    x = np.log2(np.asarray(rates, dtype=np.float64))
    estimate = bottom(x, _means(losses_RS))
    if math.isnan(estimate):
        return None
    low, high = percentile_limits(resampled_optima(rates, losses_RS, seed=seed))
    return Interval(estimate=2.0**estimate, low=2.0 ** min(low, estimate), high=2.0 ** max(high, estimate))


def resampled_optima(rates: Sequence[float], losses_RS: Floats, *, seed: int = 0) -> Floats:
    """Return log2 of resampled optima, (NUM_DRAWS,); an edge of the grid if the optimum falls there.

    Means are redrawn with the scatter of seeds at the lowest one and its neighbours, minus the part of a seed that is
    common to all rates. In every draw the optimum lies uniformly between the minima of the parabolas to both sides,
    which coincide for a loss that is a parabola; their own error, `LEAST_ERROR`, is added.
    """
    x = np.log2(np.asarray(rates, dtype=np.float64))
    means = _means(losses_RS)
    error, freedom = _error_of_means(losses_RS, int(np.argmin(means)))
    generator = np.random.default_rng(seed)
    noise_DR = generator.normal(scale=error, size=(NUM_DRAWS, len(x)))
    if freedom:  # the scatter itself comes from only a few seeds
        noise_DR *= np.sqrt(freedom / generator.chisquare(freedom, size=(NUM_DRAWS, 1)))
    near = locate(x, means + noise_DR)
    found = near.low + generator.uniform(size=NUM_DRAWS) * (near.high - near.low)
    return found + np.where(near.has_parabola, generator.normal(scale=LEAST_ERROR, size=NUM_DRAWS), 0.0)


def _error_of_means(losses_RS: Floats, index: int) -> tuple[float, int]:
    """Return the standard error of the means around an index, relative to each other, and its degrees of freedom."""
    near = losses_RS[max(0, index - 1) : index + 2]
    near = near[np.isfinite(near).all(axis=1)]
    freedom = (len(near) - 1) * (near.shape[1] - 1)
    if freedom < 1:
        return 0.0, 0
    apart = near - near.mean(axis=1, keepdims=True) - near.mean(axis=0) + near.mean()
    return math.sqrt(float(np.sum(apart**2)) / freedom / near.shape[1]), freedom


def _means(losses_RS: Floats) -> Floats:
    """Return the mean loss of each rate; infinite if more than a fifth of the runs failed."""
    failed = ~np.isfinite(losses_RS)
    sums = np.where(failed, 0.0, losses_RS).sum(axis=1)
    means = sums / np.maximum(1, (~failed).sum(axis=1))
    return np.where(failed.mean(axis=1) > 0.2, np.inf, means)


def ratio(numerator: Interval, denominator: Interval) -> Interval:
    """Return the ratio of two positive quantities; half widths of their logarithms add in quadrature.

    >>> found = ratio(Interval(estimate=8, low=4, high=16), Interval(estimate=2, low=2, high=2))
    >>> round(found.low, 6), found.estimate, round(found.high, 6)
    (2.0, 4.0, 8.0)
    """
    estimate = numerator.estimate / denominator.estimate

    def log(value: float) -> float:
        return math.inf if value == math.inf else math.log2(value) if value > 0 else -math.inf

    below = math.hypot(log(numerator.estimate) - log(numerator.low), log(denominator.high) - log(denominator.estimate))
    above = math.hypot(log(numerator.high) - log(numerator.estimate), log(denominator.estimate) - log(denominator.low))
    return Interval(estimate=estimate, low=estimate * 2.0**-below, high=estimate * 2.0**above)
