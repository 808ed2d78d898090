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
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

NUM_DROPS = 10

Shape = Literal["paper", "constant", "linear", "cosine", "wsd", "piecewise"]
# A fraction of training and the multiplier there.
Point = tuple[float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSchedule:
    """A schedule at the length of one run; `gamma` and `num_steps` are the run's own.

    Args:
        shape: its form after the warm-up.
        warmup_steps: updates of the warm-up.
        decay_steps: updates at the end in which "wsd" falls.
        final_fraction: the multiplier at the end of training, for shapes that fall to one.
        points: of "piecewise".

    >>> RunSchedule(shape="linear", warmup_steps=2, final_fraction=0.0).multipliers(6).tolist()
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    >>> RunSchedule(shape="wsd", decay_steps=2, final_fraction=0.0).multipliers(4).tolist()
    [1.0, 1.0, 1.0, 0.5]
    """

    shape: Shape
    warmup_steps: int = 0
    decay_steps: int | None = None
    final_fraction: float | None = None
    points: tuple[Point, ...] | None = None

    def multipliers(self, num_steps: int, *, gamma: float = 1.0, start: int = 0, stop: int | None = None) -> Floats:
        """Return what the learning rate is multiplied by at the updates start .. stop - 1, by default all of them."""
        steps = np.arange(start, num_steps if stop is None else stop)
        after = np.maximum(steps - self.warmup_steps, 0)
        values = self._after_warmup(after, num_steps - self.warmup_steps, gamma=gamma)
        rising = np.minimum((steps + 1) / self.warmup_steps, 1.0) if self.warmup_steps else np.ones(len(steps))
        return np.asarray(rising * values, dtype=np.float64)

    def _after_warmup(self, steps: NDArray[np.int64], num_steps: int, *, gamma: float) -> Floats:
        done = steps / num_steps
        final = 0.0 if self.final_fraction is None else self.final_fraction
        if self.shape == "paper":
            return powers(_drops(steps, num_steps=num_steps), gamma=gamma)
        if self.shape == "linear":
            return 1.0 - (1.0 - final) * done
        if self.shape == "cosine":
            return final + (1.0 - final) * (1.0 + np.cos(math.pi * done)) / 2.0
        if self.shape == "wsd":
            length = self.decay_steps or 0
            return 1.0 - (1.0 - final) * np.maximum(steps - (num_steps - length), 0) / max(length, 1)
        if self.shape == "piecewise":
            return _interpolated(done, self.points or ())
        return np.ones(len(steps))

    def __str__(self) -> str:
        parts = [str(self.shape)]
        if self.points is not None:
            parts.append(", ".join(f"{value:g} at {done:.4g}" for done, value in self.points[:4]))
        parts += [f"{self.warmup_steps:,} updates of warm-up"] if self.warmup_steps else []
        parts += [] if self.decay_steps is None else [f"{self.decay_steps:,} of decay"]
        parts += [] if self.final_fraction is None else [f"to {self.final_fraction:g} of the peak"]
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON, without what the shape does not use."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> RunSchedule:
        """Return the schedule that `to_json` wrote."""
        points = content.get("points")
        return cls(**{**content, "points": None if points is None else tuple(map(tuple, points))})


def num_drops(step: int, *, num_steps: int) -> int:
    """Return how many times the paper's schedule has divided by γ at update `step` (from 0) of `num_steps`.

    >>> [num_drops(i, num_steps=9765) for i in (0, 4881, 4882, 5369, 5370, 9764)]
    [0, 0, 1, 1, 2, 10]
    """
    hold, interval = num_steps // 2, max(1, num_steps // 20)
    return 0 if step < hold else min(NUM_DROPS, 1 + (step - hold) // interval)


def multipliers(num_steps: int, *, gamma: float, start: int = 0, stop: int | None = None) -> Floats:
    """Return γ^-k of the paper's schedule for the updates start .. stop - 1 of `num_steps`, by default all of them.

    >>> multipliers(4, gamma=2.0).tolist()
    [1.0, 1.0, 0.5, 0.25]
    >>> multipliers(4, gamma=2.0, start=1, stop=3).tolist()
    [1.0, 0.5]
    """
    steps = np.arange(start, num_steps if stop is None else stop)
    return powers(_drops(steps, num_steps=num_steps), gamma=gamma)


def powers(drops: NDArray[np.int64], *, gamma: float) -> Floats:
    """Return γ^-k."""
    return np.asarray(float(gamma) ** -drops.astype(np.float64), dtype=np.float64)


def rounded(value: float) -> int:
    """Return the nearest whole number, the larger one of two.

    >>> rounded(2.5), rounded(0.29 * 100)
    (3, 29)
    """
    return math.floor(value + 0.5)


def _drops(steps: NDArray[np.int64], *, num_steps: int) -> NDArray[np.int64]:
    hold, interval = num_steps // 2, max(1, num_steps // 20)
    return np.where(steps < hold, 0, np.minimum(NUM_DROPS, 1 + (steps - hold) // interval))


def _interpolated(done: Floats, points: tuple[Point, ...]) -> Floats:
    """Return the values on the lines between points; at a jump that of its later point."""
    x, y = np.array(points).T
    after = np.searchsorted(x, done, side="right").clip(1, len(x) - 1)
    before = after - 1
    width = x[after] - x[before]
    part = np.divide(done - x[before], width, out=np.ones(len(done)), where=width > 0)
    return np.asarray(y[before] + part * (y[after] - y[before]))
