"""The paper's hold-then-decay schedule: step -> multiplier of the learning rate.

Constant for half of the updates, then divided by γ every twentieth of them. The first drop happens at T/2 and
there are exactly ten, so the last learning rate is ε_f = ε_0 γ^-10. In whole updates i = 0 .. T-1:

    H = T // 2,  D = max(1, T // 20),  k = 0 if i < H else min(10, 1 + (i - H) // D),  ε_i = ε_0 γ^-k.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.errors import UserError

NUM_DROPS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Hold, then ten drops: by a factor γ each, or down to a final effective learning rate.

    >>> Schedule().gamma_from(initial=1.0)
    2.0
    >>> Schedule.ending_at(0.5).gamma_from(initial=512.0)
    2.0
    """

    gamma: float | None = 2.0
    final_effective_learning_rate: float | None = None

    def __post_init__(self) -> None:
        if (self.gamma is None) == (self.final_effective_learning_rate is None):
            raise UserError(
                f"a schedule needs gamma or final_effective_learning_rate and not both; got gamma={self.gamma}, "
                f"final_effective_learning_rate={self.final_effective_learning_rate}; drop one"
            )
        for name in ("gamma", "final_effective_learning_rate"):
            value = getattr(self, name)
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if value is not None and not (is_number and math.isfinite(value) and value > 0):
                raise UserError(f"{name}={value!r} is not a positive number; the paper uses gamma=2")

    @classmethod
    def ending_at(cls, final_effective_learning_rate: float) -> Schedule:
        """Return the schedule whose last learning rate is given, whatever the first is (the paper's figure 3)."""
        return cls(gamma=None, final_effective_learning_rate=final_effective_learning_rate)

    def gamma_from(self, initial: float) -> float:
        """Return γ for a run that starts at `initial`: given, or (ε_0 / ε_f)^(1/10)."""
        if self.final_effective_learning_rate is None:
            assert self.gamma is not None
            return self.gamma
        return float((initial / self.final_effective_learning_rate) ** (1.0 / NUM_DROPS))


def num_drops(step: int, *, num_steps: int) -> int:
    """Return how many times the learning rate has been divided by γ at update `step` (from 0) of `num_steps`.

    >>> [num_drops(i, num_steps=9765) for i in (0, 4881, 4882, 5369, 5370, 9764)]
    [0, 0, 1, 1, 2, 10]
    """
    hold, interval = num_steps // 2, max(1, num_steps // 20)
    return 0 if step < hold else min(NUM_DROPS, 1 + (step - hold) // interval)


def multipliers(num_steps: int, *, gamma: float, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
    """Return γ^-k for the updates start .. stop - 1 of `num_steps`, by default all of them.

    >>> multipliers(4, gamma=2.0).tolist()
    [1.0, 1.0, 0.5, 0.25]
    >>> multipliers(4, gamma=2.0, start=1, stop=3).tolist()
    [1.0, 0.5]
    """
    steps = np.arange(start, num_steps if stop is None else stop)
    hold, interval = num_steps // 2, max(1, num_steps // 20)
    drops = np.where(steps < hold, 0, np.minimum(NUM_DROPS, 1 + (steps - hold) // interval))
    return np.asarray(float(gamma) ** -drops.astype(np.float64), dtype=np.float64)
