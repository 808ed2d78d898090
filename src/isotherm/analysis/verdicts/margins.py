"""Margins fixed beforehand: what counts as equal. None depends on run noise; docs/statistics.md lists them all."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from isotherm.core.statistics import Floats

LEVEL = 0.05  # the chance of any wrong verdict in a study
POWER = 0.8  # the chance to see what is there, in plans and with the seeds that a remedy names

PROPORTIONAL = (0.8, 1.25)  # slopes of log2 ε* over log2 B that count as proportional
ROOT = (0.4, 0.625)  # the same for proportional to the square root
SAME_RATE = 0.25  # octaves; a smaller distance between two optima is none
NO_KINK = 0.5  # octaves by which the last optimum may stay below the continued line where there is no kink
TOLERATED_RISE = 0.1  # relative rise of the training objective that still counts as fitting no worse

BOUNDED_MARGIN = 0.005  # of the range of a metric with bounds: half a point of an accuracy
RELATIVE_MARGIN = 0.01  # of the scale of any other metric


def metric_margin(bounds: tuple[float, float] | None, heights: Iterable[Floats]) -> float:
    """Return the difference of a metric that is too small to matter, in the metric's own units.

    Half a point for accuracies, and as much of the range of any metric with bounds. For others a hundredth of their
    scale: the median over batch sizes of the absolute value at the optimum, which more noise does not make larger.

    Args:
        bounds: the metric's smallest and largest value.
        heights: draws of the metric at the optima, shape (num_draws, num_grids), of every series compared.

    >>> metric_margin((0.0, 1.0), [])
    0.005
    >>> metric_margin(None, [np.array([[2.0, 1.0, 4.0], [2.0, 1.0, 4.0]])])
    0.02
    """
    if bounds is not None and math.isfinite(bounds[1] - bounds[0]):
        return BOUNDED_MARGIN * (bounds[1] - bounds[0])
    values = np.concatenate([np.abs(np.median(drawn, axis=0)) for drawn in heights])
    scale = float(np.median(values))
    assert math.isfinite(scale)
    return RELATIVE_MARGIN * scale
