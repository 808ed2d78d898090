"""How well a grid resolves its optimum: what a finer one could still gain, and which learning rates it would add.

Works on plain numbers: learning rates, and means signed so that larger is better. Logarithms are to base 2.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import math
from collections.abc import Sequence
from decimal import Decimal

from isotherm.core.rates import tidy

# Powers of two with these fractional exponents are recognised, so that grids of ratio 2, √2, ... share their midpoints.
_FRACTIONS_OF_OCTAVE = 64
# A cliff is a fall of so many errors of the mean, after which the curve falls less than this times as fast.
_CLIFF = 6.0
_LEVEL = 1 / 6
_CONTEXT = decimal.Context(prec=40)


def possible_gains(
    log_rates: Sequence[float], means: Sequence[float], best: int, *, error: float = 0.0
) -> tuple[float, float]:
    """Return how much more than the best mean there may be below it and above it, up to the next learning rates.

    A curve that is concave in log ε lies below its chords extended. Between two learning rates that is the smaller of
    two lines: the one through the two learning rates on the left, and the one through the two on the right. Where a
    learning rate is unstable or was not tried, the line through it is missing and the other alone is the bound; where
    both are missing, and beyond the ends of a grid, there is no bound. Two learning rates at the foot of a cliff, where
    the metric is as bad as it gets and falls no further, are no part of a concave curve, and their line is no bound.

    Args:
        log_rates: rising.
        means: signed so that larger is better; NaN at a learning rate that cannot be used.
        best: the index of the largest mean.
        error: of a mean. A fall that noise can make is no cliff.

    >>> possible_gains([-2, -1, 0, 1, 2], [-4.0, -1.0, 0.0, -1.0, -4.0], 2)
    (0.5, 0.5)
    >>> possible_gains([-1, 0, 1], [-1.0, 0.0, math.nan], 1)
    (inf, 1.0)
    >>> possible_gains([0, 1, 2, 3], [-1.0, 0.0, -9.0, -9.0], 1)
    (9.0, 1.0)
    """
    above = _gain_above(log_rates, means, best, error)
    mirrored = [-x for x in reversed(log_rates)]
    return _gain_above(mirrored, list(reversed(means)), len(means) - 1 - best, error), above


def _gain_above(x: Sequence[float], means: Sequence[float], best: int, error: float) -> float:
    """Return the largest value of the smaller line between the best learning rate and the next, less the best mean."""
    if best == len(x) - 1:
        return math.inf
    start, end = x[best], x[best + 1]
    left, right = _line(x, means, best - 1), _line(x, means, best + 1)
    fall = means[best] - means[best + 1]
    if right is not None and fall > _CLIFF * error and -right[0] < _LEVEL * fall / (end - start):
        right = None  # the foot of a cliff
    lines = [line for line in (left, right) if line is not None]
    if not lines:
        return math.inf
    places = [start, end]
    if left is not None and right is not None and left[0] != right[0]:
        crossing = (right[1] - left[1]) / (left[0] - right[0])
        places += [crossing] if start < crossing < end else []
    return max(0.0, max(min(slope * place + level for slope, level in lines) for place in places) - means[best])


def _line(x: Sequence[float], means: Sequence[float], first: int) -> tuple[float, float] | None:
    """Return slope and level of the line through a learning rate and the next; None where one has no mean."""
    if first < 0 or first + 1 >= len(x) or not (math.isfinite(means[first]) and math.isfinite(means[first + 1])):
        return None
    slope = (means[first + 1] - means[first]) / (x[first + 1] - x[first])
    return slope, means[first] - slope * x[first]


def midpoint(low: float, high: float, *, given: Sequence[float], smallest_ratio: float) -> float | None:
    """Return the learning rate halfway between two neighbours in log ε; None where they are close enough.

    Midpoints are computed from the learning rates of the given grid and rounded once. They do not depend on the order
    in which a grid was refined, so that sweeps share their runs.

    Args:
        low: a learning rate of the grid as refined so far.
        high: the next one.
        given: the learning rates before refinement, rising; both lie within one of its steps.
        smallest_ratio: neighbours with this ratio or a smaller one are close enough.

    >>> midpoint(1.0, 2.0, given=[1.0, 2.0], smallest_ratio=2**0.25)
    1.4142135623731
    >>> midpoint(1.0, 1.18920711500272, given=[1.0, 2.0], smallest_ratio=2**0.25) is None
    True
    """
    upper = next(index for index, rate in enumerate(given) if rate >= high)
    rates = _halvings(given[upper - 1], given[upper], smallest_ratio)
    first, last = rates.index(low), rates.index(high)
    return None if last - first < 2 else rates[(first + last) // 2]


def num_halvings(rates: Sequence[float], smallest_ratio: float) -> int:
    """Return how often the widest step of a grid can be halved.

    >>> num_halvings([0.5, 1.0, 2.0], 2**0.25)
    2
    """
    octaves = max((math.log2(high / low) for low, high in itertools.pairwise(rates)), default=1.0)
    return max(0, math.ceil(math.log2(octaves / math.log2(smallest_ratio)) - 1e-9))


@functools.cache
def _halvings(low: float, high: float, smallest_ratio: float) -> tuple[float, ...]:
    """Return learning rates from low to high, evenly spaced in log ε: 1, 2, 4, ... steps, until they are close enough.

    >>> _halvings(0.01, 0.04, 2.0)
    (0.01, 0.02, 0.04)
    """
    num_steps = 2 ** num_halvings((low, high), smallest_ratio)
    start, end = _exact(low).ln(_CONTEXT), _exact(high).ln(_CONTEXT)
    step = _CONTEXT.divide(_CONTEXT.subtract(end, start), Decimal(num_steps))
    inner = (_CONTEXT.exp(_CONTEXT.fma(step, Decimal(k), start)) for k in range(1, num_steps))
    return (low, *(tidy(float(value)) for value in inner), high)


def _exact(rate: float) -> Decimal:
    """Return what a rounded learning rate stands for: a power of two, also a fractional one, or its decimal digits."""
    exponent = math.log2(rate) * _FRACTIONS_OF_OCTAVE
    if abs(exponent - round(exponent)) < 1e-11:
        return _CONTEXT.power(Decimal(2), _CONTEXT.divide(Decimal(round(exponent)), Decimal(_FRACTIONS_OF_OCTAVE)))
    return Decimal(repr(rate))
