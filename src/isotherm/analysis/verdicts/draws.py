"""Numbers from the draws of a fit: intervals in words, limits of the kink, shortfalls, gains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isotherm.analysis.family import FamilyFit
from isotherm.core.statistics import Floats, percentile_limits

HEIGHT_WIDENING = 1.2


def interval_text(draws: Floats, *, digits: int = 2, sign: bool = False) -> str:
    """Return median and 95 % interval.

    >>> interval_text(np.array([1.0, 2.0, 3.0]), digits=1)
    '2.0 [1.0, 3.0]'
    >>> interval_text(np.array([-0.002, -0.001, 0.0]), sign=True)
    '+0.00 [+0.00, +0.00]'
    """
    low, high = percentile_limits(draws)
    form = f"{'+' if sign else ''}z.{digits}f"  # z: never -0.00
    return f"{np.median(draws):{form}} [{low:{form}}, {high:{form}}]"


def limits_of_kink(fit: FamilyFit) -> tuple[float, float]:
    """Return the 95 % interval of the batch size at the kink; infinite where draws show none."""
    return percentile_limits(2.0 ** np.where(np.isnan(fit.kinks), np.inf, fit.kinks))


def shortfalls(fit: FamilyFit) -> Floats:
    """Return by how many octaves the line stays below the continued rise at the largest batch; 0 without a kink."""
    last = np.log2(fit.batch_sizes[-1])
    return np.asarray(np.where(np.isnan(fit.kinks), 0.0, fit.slopes * (last - fit.kinks)))


def mean_over_sizes(fit: FamilyFit, values: Floats, columns: Sequence[int]) -> Floats:
    """Return draws of the mean of optima or heights over some batch sizes, shape (num_draws,).

    Grids of a series often have the same position against their optima, so what a grid does not resolve errs alike at
    all of them and does not average out. Draws with low optima at one batch size are therefore put together with those
    at the others; what seeds do stays independent.

    Args:
        fit: of the series.
        values: optima or heights of the fit, shape (num_draws, num_grids).
        columns: of the batch sizes.
    """
    order = np.argsort(fit.optima[:, columns], axis=0)
    return np.asarray(np.take_along_axis(values[:, columns], order, axis=0).mean(axis=1))


def widened(draws: Floats) -> Floats:
    """Return draws of a difference of heights with a wider spread about their medians.

    In simulations such differences err by more than 2.33 standard deviations in 2 to 3 % of cases instead of 1, and
    verdicts that compare many batch sizes live on these tails (docs/statistics.md).
    """
    middle = np.median(draws, axis=0)
    return np.asarray(middle + HEIGHT_WIDENING * (draws - middle))


def independent(draws: Floats, *, seed: int) -> Floats:
    """Return draws in another order, so that those of two fits do not go together by accident."""
    return np.asarray(np.random.default_rng(seed).permutation(draws))
