"""With which power of the batch size does the LSTM's optimal learning rate grow, for each kind of clipping?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isotherm.core.statistics import Interval, t_interval

Row = dict[str, Any]
# Values by learning rate.
Curve = Mapping[float, float]


def optimum(curve: Curve) -> float | None:
    """Return log2 of the learning rate with the lowest value, between grid points by a parabola; None at an end.

    The parabola goes through the lowest point and its neighbours; one that diverged bounds nothing.

    >>> round(optimum({1.0: 2.0, 2.0: 1.0, 4.0: 2.0}), 6)
    1.0
    >>> optimum({1.0: 1.0, 2.0: 2.0, 4.0: 3.0}) is None
    True
    """
    rates = sorted(curve)
    values = [curve[rate] for rate in rates]
    best = min(range(len(rates)), key=values.__getitem__, default=0)
    near = range(best - 1, best + 2)
    if best in (0, len(rates) - 1) or not all(math.isfinite(values[index]) for index in near):
        return None
    x = [math.log2(rates[index]) for index in near]
    square, slope, _ = np.polyfit(x, [values[index] for index in near], 2)
    return float(-slope / (2 * square))


def power(rows: Sequence[Row], *, quantity: str = "validation_metric") -> tuple[Interval, int] | None:
    """Return d log ε* / d log B with its 95 % interval over seeds, and their number; None where it is not determined.

    Every seed has its own optima and its own power, fitted by least squares. A seed counts if it has an optimum inside
    the grid at every batch size, and there must be two of them at three batch sizes or more.
    """
    sizes = sorted({row["spec"]["batch_size"] for row in rows})
    seeds = sorted({row["spec"]["seed"] for row in rows})
    if len(sizes) < 3:
        return None
    powers = []
    for seed in seeds:
        optima = [optimum(_curve(rows, size, seed, quantity)) for size in sizes]
        known = [value for value in optima if value is not None]
        if len(known) == len(sizes):
            powers.append(float(np.polyfit(np.log2(sizes), known, 1)[0]))
    return (t_interval(powers), len(powers)) if len(powers) > 1 else None


def _curve(rows: Sequence[Row], size: int, seed: int, quantity: str) -> dict[float, float]:
    """Return log values of a seed at a batch size; infinite for runs without one."""
    return {
        row["spec"]["effective_learning_rate"]: _log(row["result"][quantity])
        for row in rows
        if (row["spec"]["batch_size"], row["spec"]["seed"]) == (size, seed)
    }


def _log(value: float | None) -> float:
    return math.inf if value is None or not math.isfinite(value) else math.log(value)
