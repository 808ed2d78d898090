"""What a diagnosis is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from isotherm.core.budget import Budget
from isotherm.core.machine import can_fork
from isotherm.core.schedule import Schedule, checked_schedule
from isotherm.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnoseOptions:
    """What a diagnosis is asked for.

    Args:
        epochs: of the training that will be done; this or `steps` is required, as the best learning rate depends on it.
        steps: updates of the training that will be done, whatever the batch size.
        batch_size: the one used at present.
        learning_rate: the one used at present, as an optimiser gets it.
        momentum: the one used at present or wanted; plain SGD is tried in any case, and with 0 also momentum 0.9.
        schedule: of the training that will be done, or the name of one such as "cosine"; by default the paper's. Short
            runs have it too, fitted to their length.
        minutes: time to spend. What does not fit is left out and listed as missing.
        batch_sizes: those of the short grids, two or more; None chooses three that suit the task.
        seed: seed of all random numbers.
        device: "cpu" or "cuda".
        workers: processes, on a CPU.

    Raises:
        UserError: one of them makes no sense.
    """

    epochs: float | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    momentum: float = 0.9
    schedule: Schedule | str = field(default_factory=Schedule)
    minutes: float = 5.0
    batch_sizes: Sequence[int] | None = None
    seed: int = 0
    device: str = "cpu"
    workers: int = 1

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            given = "neither was" if self.epochs is None else "both were"
            raise UserError(
                "the best learning rate depends on how long you will train; give epochs (e.g. epochs=30) or steps "
                f"(e.g. steps=10000); {given} given"
            )
        _ = self.budget  # checks the length
        object.__setattr__(self, "schedule", checked_schedule(self.schedule))
        if not (isinstance(self.minutes, int | float) and math.isfinite(self.minutes) and self.minutes > 0):
            raise UserError(f"minutes must be a positive number such as 5, not {self.minutes!r}")
        if not (isinstance(self.momentum, int | float) and 0 <= self.momentum < 1):
            raise UserError(f"momentum={self.momentum!r} is not in [0, 1); use the one you train with, 0 for plain SGD")
        self._check_present()
        if self.workers < 1 or (self.workers > 1 and (self.device != "cpu" or not can_fork())):
            raise UserError(
                f"workers={self.workers} on {self.device!r}; use 1 here, or on the CPU of a Linux machine one per core"
            )

    @property
    def budget(self) -> Budget:
        """The length of the intended training."""
        if self.epochs is not None:
            return Budget.epochs(self.epochs)
        assert self.steps is not None
        return Budget.steps(self.steps)

    @property
    def intended_schedule(self) -> Schedule:
        """The schedule, a name replaced."""
        return checked_schedule(self.schedule)

    def _check_present(self) -> None:
        rate, size = self.learning_rate, self.batch_size
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UserError(f"learning_rate={rate!r} is not positive; give the one you use, or leave it out")
        if rate is not None and size is None:
            raise UserError("learning_rate needs the batch size it is used with; give batch_size too")
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise UserError(f"batch_size must be a whole number of at least 1, not {size!r}")
