"""Where the optimum of a grid of learning rates lies, and between which places it may.

One fit for sweeps and for diagnoses. How seeds are drawn anew is their own. Pure NumPy; logarithms are to base 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.core.statistics import Floats

# Where the loss climbs up to so many times faster above its lowest value than it falls towards it, the parabola through
# that value and its neighbours is believed.
STEEP = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """Optima of many curves over the same learning rates, in log2; shapes (num_curves,).

    `log_rate` is the estimate; the optimum lies between `low` and `high`. `lower` and `upper` are the learning rates
    next to the lowest value, one step further where the grid ends. `centre` is the bottom of the parabola through these
    three; NaN where a value fails or was not tried. `believed` tells where it is the estimate, `told` where the two
    learning rates below the lowest value have values as well, so that the way of the loss up to it is known.
    """

    log_rate: Floats
    low: Floats
    high: Floats
    lower: Floats
    upper: Floats
    centre: Floats
    believed: NDArray[np.bool_]
    told: NDArray[np.bool_]

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Where a parabola goes through the lowest value and its neighbours."""
        return ~np.isnan(self.centre)


def locate(log_rates: Floats, losses_DR: Floats) -> Located:
    """Return where curves have their lowest points, and between which places these may lie.

    The estimate is the bottom of the parabola through the lowest value and its neighbours. Where the loss climbs
    steeply above, and the parabola through the lowest value and the two below it says something else, it is the bottom
    of the latter, but not above the lowest value; so it is where the next value fails. At an end of the grid it is the
    end.

    The range holds the bottoms of three parabolas, through the lowest value and its neighbours, the two below and the
    two above, but nothing beyond the neighbours. The three agree for a loss that is a parabola. If it rises more
    steeply to one side its bottom lies between theirs: the first is drawn away from the steep side, one of the others
    knows that side alone. Without two values below nothing tells where the fall ends. Next to a value that fails, or
    the end of the grid, parabolas say nothing: the range is from half a step below the lowest up to the next.

    Args:
        log_rates: rising, shape (num_rates,).
        losses_DR: by curve and learning rate; infinite where training fails.

    >>> found = locate(np.arange(5.0), np.array([[4.0, 1.0, 0.0, 1.0, 4.0], [2.0, 1.0, 0.0, 4.0, 16.0]]))
    >>> found.log_rate.tolist(), found.low.tolist(), found.high.tolist()
    ([2.0, 2.0], [2.0, 1.7], [2.0, 3.0])
    """
    near = _Neighbours(log_rates, losses_DR)
    (lower, at_lower), (lowest, at_lowest), (upper, at_upper) = (near.at(k) for k in (-1, 0, 1))
    centre, _ = near.parabola(-1)
    (below, bends_below), (above, bends_above) = near.parabola(-2), near.parabola(0)
    holds = ~np.isnan(centre)
    with np.errstate(invalid="ignore"):  # values that fail, of which nothing is taken
        fall, climb = (at_lower - at_lowest) / (lowest - lower), (at_upper - at_lowest) / (upper - lowest)
    inside = upper <= log_rates[-1]
    from_below = np.where(inside & (bends_below > 0), np.minimum(below, lowest), lowest)
    foretold = (from_below < lowest) & (np.abs(from_below - centre) <= (lowest - lower) / 4)
    believed = holds & ((climb <= STEEP * fall) | foretold)
    below = np.where(bends_below > 0, np.clip(below, lower, upper), upper)
    above = np.where(bends_above <= 0, lower, np.where(np.isnan(above), centre, np.clip(above, lower, upper)))
    return Located(
        log_rate=np.where(believed, centre, from_below),
        low=np.where(holds, np.minimum(np.minimum(centre, below), above), (lower + lowest) / 2),
        high=np.where(holds, np.maximum(np.maximum(centre, below), above), upper),
        lower=lower,
        upper=upper,
        centre=centre,
        believed=believed,
        told=~np.isnan(bends_below),
    )


class _Neighbours:
    """Many curves around their lowest values; beyond the ends they are infinite."""

    def __init__(self, x: Floats, losses_DR: Floats) -> None:
        steps = np.diff(x) if len(x) > 1 else np.ones(1)
        self._x = np.concatenate([x[0] - steps[0] * np.array([2, 1]), x, x[-1] + steps[-1] * np.array([1, 2])])
        self._losses_DR = np.pad(losses_DR, ((0, 0), (2, 2)), constant_values=np.inf)
        self._place = np.argmin(losses_DR, axis=1) + 2

    def at(self, away: int) -> tuple[Floats, Floats]:
        """Return the learning rates so many places from the lowest, and the values there."""
        place = self._place + away
        return self._x[place], self._losses_DR[np.arange(len(place)), place]

    def parabola(self, first: int) -> tuple[Floats, Floats]:
        """Return bottoms and curvatures of the parabolas through three values from a place on; NaN where one fails."""
        (a, at_a), (b, at_b), (c, at_c) = (self.at(first + k) for k in range(3))
        with np.errstate(invalid="ignore", divide="ignore"):  # values that fail; three on a line
            slope_ab, slope_bc = (at_b - at_a) / (b - a), (at_c - at_b) / (c - b)
            curvature = 2 * (slope_bc - slope_ab) / (c - a)
            bottoms = (a + b) / 2 - slope_ab / curvature
        known = np.isfinite(at_a) & np.isfinite(at_b) & np.isfinite(at_c)
        return np.where(known, bottoms, np.nan), np.where(known, curvature, np.nan)
