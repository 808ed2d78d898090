"""What a sweep can see, before it is run: the power of its comparisons, and the seeds that a difference needs.

A difference between two batch sizes is judged by n runs on either side, one-sided. The level is corrected twice: for
picking the best of all batch sizes, and for the number of verdicts (Holm; the level here is that of its first step,
which is enough whatever the other verdicts are). A learning rate's neighbours help only as far as a seed's luck differs
between them. What a grid hides between its learning rates is a limit that no number of seeds removes.

Formulas in NumPy and SciPy; tests check them by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

from isotherm.analysis.verdicts.margins import LEVEL, POWER
from isotherm.core.statistics import Floats

# The most seeds worth naming.
MANY_SEEDS = 100_000


def power_of_difference(difference: float, *, noise: float, num_seeds: int, level: float = LEVEL) -> float:
    """Return the chance that a difference is shown to be above zero at this level, one-sided.

    Student's test for two samples of `num_seeds` runs each, in exact form (noncentral t).

    >>> round(power_of_difference(1.0, noise=1.0, num_seeds=17, level=0.025), 2)  # a textbook case
    0.81
    """
    if num_seeds < 2:
        return 0.0
    freedom = 2 * (num_seeds - 1)
    limit = float(stats.t.isf(level, freedom))
    return float(stats.nct.sf(limit, freedom, difference / (noise * math.sqrt(2 / num_seeds))))


def smallest_difference(*, noise: float, num_seeds: int, level: float = LEVEL, power: float = POWER) -> float:
    """Return the difference that is seen with this power; infinite with a single seed.

    >>> round(smallest_difference(noise=1.0, num_seeds=17, level=0.025), 2)
    0.99
    """
    if num_seeds < 2:
        return math.inf

    def lacking(difference: float) -> float:
        return power - power_of_difference(difference, noise=1.0, num_seeds=num_seeds, level=level)

    enough = 1.0
    while lacking(enough) > 0:
        enough *= 2
    return noise * float(optimize.brentq(lacking, 0.0, enough))


def seeds_for_difference(difference: float, *, noise: float, level: float = LEVEL, power: float = POWER) -> int | None:
    """Return the fewest seeds that show a difference with this power; None above a hundred thousand.

    >>> seeds_for_difference(1.0, noise=1.0, level=0.025)
    17
    """
    low, high = 1, 2
    while power_of_difference(difference, noise=noise, num_seeds=high, level=level) < power:
        low, high = high, 2 * high
        if low > MANY_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = power_of_difference(difference, noise=noise, num_seeds=middle, level=level) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def effective_noise(
    noise: float,
    *,
    num_seeds: int,
    num_confirm: int = 0,
    log_spacing: float,
    num_rates: int,
    correlation: float | None,
) -> float:
    """Return the noise per run of the best value: learning rates around the optimum add their runs.

    The runs of `num_seeds` are fitted by a peak through the points within an octave of the optimum, whose shape is
    shared with all other batch sizes, so that its error cancels in a difference; the confirming runs stand at the
    optimum alone. A seed's luck at all learning rates, of variance `correlation`, does not average out; where that is
    not known, nothing is gained.

    >>> effective_noise(1.0, num_seeds=5, log_spacing=0.5, num_rates=9, correlation=None)
    1.0
    >>> round(effective_noise(1.0, num_seeds=5, log_spacing=0.5, num_rates=9, correlation=0.0) ** 2, 3)
    0.2
    """
    num_near = len(_window(log_spacing, num_rates))
    if correlation is None or num_near < 3:
        return noise
    height = correlation + (1 - correlation) / num_near
    return noise * math.sqrt((num_seeds + num_confirm) / (num_seeds / height + num_confirm))


def error_of_optimum(
    *, noise: float, curvature: float, num_seeds: int, log_spacing: float, num_rates: int, correlation: float | None
) -> float:
    """Return the standard error of log2 ε*, the top of a parabola with this curvature per octave squared.

    A seed's luck at all learning rates moves the parabola up or down, not sideways.
    """
    x = _window(log_spacing, num_rates)
    tilt = noise * math.sqrt((1 - (correlation or 0.0)) / (num_seeds * float(np.sum(x**2))))
    return tilt / (2 * curvature)


def slope_error(batch_sizes: Sequence[int], *, error: float) -> float:
    """Return the standard error of the slope of log2 ε* over log2 B, where every optimum has this error.

    >>> round(slope_error([8, 16, 32], error=0.5), 3)
    0.354
    """
    x = _centred(batch_sizes)
    return error / math.sqrt(float(x @ x))


def slope_from_grid(batch_sizes: Sequence[int], *, log_spacing: float) -> float:
    """Return how far the slope can be off where each optimum is known only to the nearest learning rate.

    >>> round(slope_from_grid([8, 16, 32, 64, 128], log_spacing=1.0), 2)
    0.3
    """
    x = _centred(batch_sizes)
    return log_spacing / 2 * float(np.sum(np.abs(x)) / (x @ x))


def smallest_slope_deviation(error: float, *, level: float = LEVEL, power: float = POWER) -> float:
    """Return the deviation of the slope from 1, to either side, that is seen with this power.

    >>> round(smallest_slope_deviation(0.1), 2)
    0.28
    """
    return error * float(stats.norm.isf(level / 2) + stats.norm.ppf(power))


def power_of_proportionality(error: float, *, within: tuple[float, float], level: float = LEVEL) -> float:
    """Return the chance that a slope of 1 is shown to lie inside the margin: above its lower and below its upper end.

    >>> round(power_of_proportionality(0.06, within=(0.8, 1.25), level=0.025), 2)
    0.9
    """
    half = float(stats.norm.isf(level)) * error
    low, high = within[0] + half - 1, within[1] - half - 1
    return max(0.0, float(stats.norm.cdf(high / error) - stats.norm.cdf(low / error)))


def hidden_between(log_spacing: float, *, curvature: float) -> float:
    """Return what an optimum halfway between two learning rates has more than either of them.

    >>> hidden_between(1.0, curvature=2.0), hidden_between(0.25, curvature=2.0)
    (0.5, 0.03125)
    """
    return curvature * (log_spacing / 2) ** 2


def binomial_error(num_test: int) -> float:
    """Return the largest standard error of an accuracy that so many test examples leave: that of 50 %.

    It concerns claims about new data. Runs differ by less on one test set, since they err on the same examples.

    >>> binomial_error(10_000)
    0.005
    """
    return 0.5 / math.sqrt(num_test)


def _window(log_spacing: float, num_rates: int) -> Floats:
    """Return the learning rates within an octave of the optimum, at least its neighbours, in octaves from it."""
    each_side = min(max(1, math.floor(1 / log_spacing + 1e-9)), (num_rates - 1) // 2)
    return np.asarray(np.arange(-each_side, each_side + 1) * log_spacing)


def _centred(batch_sizes: Sequence[int]) -> Floats:
    x = np.log2(np.asarray(batch_sizes, dtype=np.float64))
    return np.asarray(x - x.mean())
