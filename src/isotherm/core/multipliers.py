"""Schedules as numbers: the multiplier of a run's learning rate at each of its updates.

With N updates, of which W warm up, update i = 0 .. N-1 has the multiplier (i + 1) / W · m(0) for i < W, and m(s) with
s = (i - W) / (N - W) after it. With the final fraction f, and D updates of decay:

    constant   1
    linear     1 - (1 - f) s
    cosine     f + (1 - f) (1 + cos πs) / 2
    wsd        1 until update N - D, then 1 - (1 - f) (i - (N - D)) / D
    piecewise  straight lines between points (s, m)
    paper      γ^-k: constant for half of the N - W updates, then divided by γ every twentieth of them

The paper's first drop comes at T/2 and there are exactly ten, so that the last learning rate is ε_f = ε_0 γ^-10. In
whole updates i = 0 .. T-1:

    H = T // 2,  D = max(1, T // 20),  k = 0 if i < H else min(10, 1 + (i - H) // D),  ε_i = ε_0 γ^-k.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from isotherm.core.run_schedule import NUM_DROPS, Point, RunSchedule

Floats = NDArray[np.float64]


def multipliers(
    num_steps: int,
    *,
    gamma: float = 1.0,
    schedule: RunSchedule | None = None,
    start: int = 0,
    stop: int | None = None,
) -> Floats:
    """Return what a run's learning rate is multiplied by at the updates start .. stop - 1, by default all of them.

    Args:
        num_steps: updates of the run.
        gamma: of the paper's drops.
        schedule: None is the paper's, without a warm-up.
        start: the first of the updates.
        stop: the one after the last.

    >>> multipliers(4, gamma=2.0).tolist(), multipliers(4, gamma=2.0, start=1, stop=3).tolist()
    ([1.0, 1.0, 0.5, 0.25], [1.0, 0.5])
    >>> multipliers(6, schedule=RunSchedule(shape="linear", warmup_steps=2, final_fraction=0.0)).tolist()
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    >>> multipliers(4, schedule=RunSchedule(shape="wsd", decay_steps=2, final_fraction=0.0)).tolist()
    [1.0, 1.0, 1.0, 0.5]
    """
    steps = np.arange(start, num_steps if stop is None else stop)
    if schedule is None:
        return _after_drops(steps, num_steps, gamma=gamma)
    warmup = schedule.warmup_steps
    values = _after_warmup(schedule, np.maximum(steps - warmup, 0), num_steps - warmup, gamma=gamma)
    rising = np.minimum((steps + 1) / warmup, 1.0) if warmup else np.ones(len(steps))
    return np.asarray(rising * values, dtype=np.float64)


def _after_warmup(schedule: RunSchedule, steps: NDArray[np.int64], num_steps: int, *, gamma: float) -> Floats:
    done = steps / num_steps
    final = 0.0 if schedule.final_fraction is None else schedule.final_fraction
    if schedule.shape == "paper":
        return _after_drops(steps, num_steps, gamma=gamma)
    if schedule.shape == "linear":
        return 1.0 - (1.0 - final) * done
    if schedule.shape == "cosine":
        return final + (1.0 - final) * (1.0 + np.cos(math.pi * done)) / 2.0
    if schedule.shape == "wsd":
        length = schedule.decay_steps or 0
        return 1.0 - (1.0 - final) * np.maximum(steps - (num_steps - length), 0) / max(length, 1)
    if schedule.shape == "piecewise":
        return _interpolated(done, schedule.points or ())
    return np.ones(len(steps))


def _after_drops(steps: NDArray[np.int64], num_steps: int, *, gamma: float) -> Floats:
    hold, interval = num_steps // 2, max(1, num_steps // 20)
    drops = np.where(steps < hold, 0, np.minimum(NUM_DROPS, 1 + (steps - hold) // interval))
    return np.asarray(float(gamma) ** -drops.astype(np.float64), dtype=np.float64)


def _interpolated(done: Floats, points: tuple[Point, ...]) -> Floats:
    """Return the values on the lines between points; at a jump that of its later point."""
    x, y = np.array(points).T
    after = np.searchsorted(x, done, side="right").clip(1, len(x) - 1)
    before = after - 1
    width = x[after] - x[before]
    part = np.divide(done - x[before], width, out=np.ones(len(done)), where=width > 0)
    return np.asarray(y[before] + part * (y[after] - y[before]))
