"""How often 95 % intervals hold the truth, with the error that the number of simulations leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import beta

Job = dict[str, Any]

NUM_SIZES = 8  # batch sizes, and heights, of a sweep
LEVEL = 0.95
TARGET = (0.93, 0.97)


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The part of intervals that hold the truth, the 95 % limits of that part, and the number of sweeps."""

    part: float
    low: float
    high: float
    num_sweeps: int

    @property
    def is_shown(self) -> bool:
        """Whether it is shown to be within the target."""
        return TARGET[0] <= self.low and self.high <= TARGET[1]

    @property
    def is_possible(self) -> bool:
        """Whether it may be within the target."""
        return self.low <= TARGET[1] and self.high >= TARGET[0]


def covered(jobs: Sequence[Job], quantity: str, effect: float) -> Coverage:
    """Return how often intervals of a quantity hold the truth.

    Args:
        jobs: that simulated it.
        quantity: one of the fit.
        effect: of heights of one sweep on each other, see `design_effect`.
    """
    held = np.concatenate([job["held"][quantity] for job in jobs])
    num = len(held) * (NUM_SIZES / effect if quantity == "height" else 1.0)
    part = float(np.mean(held))
    low, high = limits(part * num, num)
    return Coverage(part=part, low=low, high=high, num_sweeps=len(held))


def limits(hits: float, num: float) -> tuple[float, float]:
    """Return the exact binomial 95 % interval (Clopper and Pearson) of a part.

    >>> [round(limit, 3) for limit in limits(20, 20)], [round(limit, 3) for limit in limits(0, 20)]
    ([0.832, 1.0], [0.0, 0.168])
    """
    tail = (1 - LEVEL) / 2
    low = 0.0 if hits <= 0 else float(beta.ppf(tail, hits, num - hits + 1))
    high = 1.0 if hits >= num else float(beta.ppf(1 - tail, hits + 1, num - hits))
    return low, high


def design_effect(jobs: Sequence[Job]) -> float:
    """Return how many times larger the variance of a sweep's part of heights held is than with independent ones.

    The heights of one sweep share a shape: where one is missed others are more likely to be.
    """
    held = np.concatenate([job["held"]["height"] for job in jobs])
    part = float(np.mean(held))
    independent = part * (1 - part) / NUM_SIZES
    if independent == 0 or len(held) < 2:
        return 1.0
    return min(float(NUM_SIZES), max(1.0, float(np.var(held, ddof=1)) / independent))
