"""A schedule at the length of one run, in whole updates; `multipliers` turns it into numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

NUM_DROPS = 10

Shape = Literal["paper", "constant", "linear", "cosine", "wsd", "piecewise"]
# A fraction of training and the multiplier there.
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSchedule:
    """A schedule at the length of one run; `gamma` and `num_steps` are the run's own.

    Args:
        shape: its form after the warm-up.
        warmup_steps: updates of the warm-up.
        decay_steps: updates at the end in which "wsd" falls.
        final_fraction: the multiplier at the end of training, for shapes that fall to one.
        points: of "piecewise".
    """

    shape: Shape
    warmup_steps: int = 0
    decay_steps: int | None = None
    final_fraction: float | None = None
    points: tuple[Point, ...] | None = None

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


def rounded(value: float) -> int:
    """Return the nearest whole number, the larger one of two.

    >>> rounded(2.5), rounded(0.29 * 100)
    (3, 29)
    """
    return math.floor(value + 0.5)
