"""A function of the fraction done as points that are joined by straight lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from isotherm.core.checks import is_finite, is_number
from isotherm.core.run_schedule import Point
from isotherm.errors import UserError

# How far the lines may be from the function, relative to its largest value.
TOLERANCE = 1e-5
# Equal parts that are looked at whatever they look like.
_FIRST_PARTS = 64
# Every run keeps its points, and a function that needs more has no shape worth the name.
MOST_POINTS = 5_000


def tabulated(function: Callable[[float], float]) -> tuple[Point, ...]:
    """Return points between which straight lines are within `TOLERANCE` of a function on [0, 1].

    Intervals are halved until the line through their ends meets the function at three places between. At a jump they
    are halved down to neighbouring floats, so that it stays one.

    >>> tabulated(lambda done: 1 - done)
    ((0.0, 1.0), (1.0, 0.0))
    """
    values: dict[float, float] = {}

    def value_at(done: float) -> float:
        if done not in values:
            values[done] = _checked(function(done), done)
        return values[done]

    ends = [k / _FIRST_PARTS for k in range(_FIRST_PARTS + 1)]
    scale = max(value_at(done) for done in ends)
    tolerance = TOLERANCE / 2 * (scale or 1.0)  # it may be a little more between the places that are looked at
    kept = [ends[0]]
    left = list(itertools.pairwise(ends))[::-1]
    while left:
        low, high = left.pop()
        middle = (low + high) / 2
        if not low < middle < high or _is_straight(value_at, low, high, tolerance):
            kept.append(high)
        else:
            left += [(middle, high), (low, middle)]
        if len(kept) > MOST_POINTS:
            raise UserError(
                f"the schedule's function bends so often that {MOST_POINTS:,} points do not describe it; give a "
                "smoother one, or its points with Schedule.piecewise"
            )
    return _without_middles([(done, value_at(done)) for done in kept], tolerance)


def _is_straight(value_at: Callable[[float], float], low: float, high: float, tolerance: float) -> bool:
    first, last = value_at(low), value_at(high)
    return all(abs(value_at(low + (high - low) * p) - (first + p * (last - first))) <= tolerance for p in _PLACES)


# Not quarters: a wave that repeats twice or four times in an interval would look straight.
_PLACES = (0.21, 0.5, 0.83)


def _without_middles(points: Sequence[Point], tolerance: float) -> tuple[Point, ...]:
    """Return the points without those that lie on the line between the last one kept and the next."""
    found = [points[0]]
    for (x, y), (after, value) in itertools.pairwise(points[1:]):
        start, first = found[-1]
        on_line = first + (value - first) * (x - start) / (after - start)
        if abs(y - on_line) > 1e-9 * tolerance:
            found.append((x, y))
    return (*found, points[-1])


def _checked(value: object, done: float) -> float:
    if not is_number(value) or not is_finite(value) or value < 0:  # type: ignore[operator]
        raise UserError(
            f"the schedule's function returns {value!r} at the fraction {done:g} of training; it must return a finite "
            "number of at least 0, by which the learning rate is multiplied"
        )
    return float(value)  # type: ignore[arg-type]


def checked_points(points: object) -> tuple[Point, ...]:
    """Return the points of a schedule: rising fractions from 0 to 1 with finite multipliers of at least 0."""
    remedy = "give e.g. [(0, 1), (0.5, 1), (0.5, 0.1), (1, 0.1)]"
    if not isinstance(points, Sequence) or isinstance(points, str) or len(points) < 2:
        raise UserError(f"the points of a schedule are a list of two or more pairs, not {points!r}; {remedy}")
    found = []
    for point in points:
        if not isinstance(point, Sequence) or len(point) != 2 or not all(map(is_number, point)):
            raise UserError(f"{point!r} is no pair of a fraction of training and a multiplier; {remedy}")
        done, value = float(point[0]), float(point[1])
        if not 0 <= done <= 1:
            raise UserError(f"the fraction {done:g} of the point {tuple(point)} is not between 0 and 1; {remedy}")
        found.append((done, _checked_multiplier(value, done)))
    fractions = [done for done, _ in found]
    if fractions != sorted(fractions) or (fractions[0], fractions[-1]) != (0.0, 1.0):
        raise UserError(f"the fractions of a schedule's points rise from 0 to 1, not {_listed(fractions)}; {remedy}")
    if any(one == other == third for one, other, third in zip(fractions, fractions[1:], fractions[2:], strict=False)):
        raise UserError(f"three points of a schedule have one fraction: {_listed(fractions)}; a jump needs two")
    if fractions[-2] == 1.0:
        raise UserError("a schedule that jumps at the fraction 1 never gets there; leave the last point out")
    return tuple(found)


def _checked_multiplier(value: float, done: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise UserError(
            f"the multiplier {value:g} at the fraction {done:g} of training is not a finite number of at least 0; a "
            "learning rate is multiplied by it"
        )
    return value


def _listed(fractions: Sequence[float]) -> str:
    shown = ", ".join(f"{value:g}" for value in fractions[:8])
    return f"[{shown}{', ...' if len(fractions) > 8 else ''}]"
