"""The optimum of a grid of learning rates, located between the rates that were tried, with a range.

For the few runs of a diagnosis; a sweep fits whole curve families (`family.py`). Pure NumPy; logarithms are to base 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.core.statistics import Floats

# The parabola through the lowest value and its neighbours is trusted where the loss climbs on the far side at most this
# many times as steeply as it falls towards the lowest value.
STEEP = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """Optima of many curves over the same learning rates, in log2; shapes (num_curves,).

    `log_rate` is the estimate; the optimum lies between `low` and `high`. `lower` and `upper` are the learning rates
    next to the lowest value, one step beyond the grid where it ends. `centre` is the bottom of the parabola through
    these three; NaN where training failed at one of them or it was not tried. `uses_parabola` says where the estimate
    is `centre`, `has_two_below` where two learning rates below the lowest value have values, which shows how the loss
    falls towards it.
    """

    log_rate: Floats
    low: Floats
    high: Floats
    lower: Floats
    upper: Floats
    centre: Floats
    uses_parabola: NDArray[np.bool_]
    has_two_below: NDArray[np.bool_]

    @property
    def has_parabola(self) -> NDArray[np.bool_]:
        """Where there is a parabola through the lowest value and its neighbours."""
        return ~np.isnan(self.centre)


def locate(log_rates: Floats, losses_DR: Floats) -> Located:
    """Return the lowest point of each curve, and the range in which it may lie.

    The estimate is the bottom of the parabola through the lowest value and its neighbours. Where the loss climbs
    steeply above, and the parabola through the lowest value and the two below it disagrees, it is the bottom of that
    second parabola, but never above the lowest value; the same where training fails at the next learning rate. At an
    end of the grid the estimate is that end.

    The range spans the bottoms of three parabolas, through the lowest value and its neighbours, the two below and the
    two above, cut off at the neighbours. The three agree where the loss is a parabola. Where it is steeper on one side,
    its bottom lies between theirs: the first is pulled away from the steep side, one of the others sees that side
    alone. Without two values below nothing shows where the fall ends. Next to a failure, or at the end of the grid,
    parabolas say nothing: the range is from half a step below the lowest value up to the next learning rate.

    Args:
        log_rates: rising, shape (num_rates,).
        losses_DR: one row per curve, one column per learning rate; infinite where training fails.

    >>> found = locate(np.arange(5.0), np.array([[4.0, 1.0, 0.0, 1.0, 4.0], [2.0, 1.0, 0.0, 4.0, 16.0]]))
    >>> found.log_rate.tolist(), found.low.tolist(), found.high.tolist()
    ([2.0, 2.0], [2.0, 1.7], [2.0, 3.0])
    """
    near = _Neighbours(log_rates, losses_DR)
    (lower, at_lower), (lowest, at_lowest), (upper, at_upper) = (near.at(k) for k in (-1, 0, 1))
    centre, _ = near.parabola(-1)
    (below, bends_below), (above, bends_above) = near.parabola(-2), near.parabola(0)
    has_parabola = ~np.isnan(centre)
    with np.errstate(invalid="ignore"):  # infinite values, which are not used
        fall, climb = (at_lower - at_lowest) / (lowest - lower), (at_upper - at_lowest) / (upper - lowest)
    inside = upper <= log_rates[-1]
    from_below = np.where(inside & (bends_below > 0), np.minimum(below, lowest), lowest)
    agrees = (from_below < lowest) & (np.abs(from_below - centre) <= (lowest - lower) / 4)
    uses_parabola = has_parabola & ((climb <= STEEP * fall) | agrees)
    below = np.where(bends_below > 0, np.clip(below, lower, upper), upper)
    above = np.where(bends_above <= 0, lower, np.where(np.isnan(above), centre, np.clip(above, lower, upper)))
    return Located(
        log_rate=np.where(uses_parabola, centre, from_below),
        low=np.where(has_parabola, np.minimum(np.minimum(centre, below), above), (lower + lowest) / 2),
        high=np.where(has_parabola, np.maximum(np.maximum(centre, below), above), upper),
        lower=lower,
        upper=upper,
        centre=centre,
        uses_parabola=uses_parabola,
        has_two_below=~np.isnan(bends_below),
    )


class _Neighbours:
    """Many curves around their lowest values; infinite beyond the ends."""

    def __init__(self, x: Floats, losses_DR: Floats) -> None:
        steps = np.diff(x) if len(x) > 1 else np.ones(1)
        self._x = np.concatenate([x[0] - steps[0] * np.array([2, 1]), x, x[-1] + steps[-1] * np.array([1, 2])])
        self._losses_DR = np.pad(losses_DR, ((0, 0), (2, 2)), constant_values=np.inf)
        self._index = np.argmin(losses_DR, axis=1) + 2

    def at(self, away: int) -> tuple[Floats, Floats]:
        """Return the learning rates this many steps from the lowest value, and the values there."""
        index = self._index + away
        return self._x[index], self._losses_DR[np.arange(len(index)), index]

    def parabola(self, first: int) -> tuple[Floats, Floats]:
        """Return bottom and curvature of the parabolas through three values in a row; NaN where one is infinite."""
        (a, at_a), (b, at_b), (c, at_c) = (self.at(first + k) for k in range(3))
        with np.errstate(invalid="ignore", divide="ignore"):  # infinite values; three on a line
            slope_ab, slope_bc = (at_b - at_a) / (b - a), (at_c - at_b) / (c - b)
            curvature = 2 * (slope_bc - slope_ab) / (c - a)
            bottoms = (a + b) / 2 - slope_ab / curvature
        known = np.isfinite(at_a) & np.isfinite(at_b) & np.isfinite(at_c)
        return np.where(known, bottoms, np.nan), np.where(known, curvature, np.nan)
