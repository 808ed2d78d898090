"""Numbers from the draws of a fit: intervals in words, limits of the kink, shortfalls, gains."""

from __future__ import annotations

import numpy as np

from isotherm.analysis.family import FamilyFit
from isotherm.core.statistics import Floats, percentile_limits


def interval_text(draws: Floats, *, digits: int = 2, sign: bool = False) -> str:
    """Return median and 95 % interval.

    >>> interval_text(np.array([1.0, 2.0, 3.0]), digits=1)
    '2.0 [1.0, 3.0]'
    """
    low, high = percentile_limits(draws)
    plus = "+" if sign else ""
    return f"{np.median(draws):{plus}.{digits}f} [{low:{plus}.{digits}f}, {high:{plus}.{digits}f}]"


def limits_of_kink(fit: FamilyFit) -> tuple[float, float]:
    """Return the 95 % interval of the batch size at the kink; infinite where draws show none."""
    return percentile_limits(2.0 ** np.where(np.isnan(fit.kinks), np.inf, fit.kinks))


def shortfalls(fit: FamilyFit) -> Floats:
    """Return by how many octaves the line stays below the continued rise at the largest batch; 0 without a kink."""
    last = np.log2(fit.batch_sizes[-1])
    return np.asarray(np.where(np.isnan(fit.kinks), 0.0, fit.slopes * (last - fit.kinks)))


def independent(draws: Floats, *, seed: int) -> Floats:
    """Return draws in another order, so that those of two fits do not go together by accident."""
    return np.asarray(np.random.default_rng(seed).permutation(draws))
