"""Budget: how long a run trains, and its conversion to updates, once.

The paper compares batch sizes at an equal number of epochs (equal compute) and at an equal number of steps.
Batches run across epoch boundaries and nothing is dropped, so E epochs of N examples are

    updates = floor(E N / B).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from fractions import Fraction

from isotherm.errors import UserError


class BudgetUnit(enum.StrEnum):
    """What a budget counts."""

    EPOCHS = "epochs"
    STEPS = "steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A training length in epochs or in steps (updates).

    >>> Budget.epochs(200).num_steps(num_train=50_000, batch_size=64)
    156250
    >>> Budget.epochs(200).num_steps(num_train=50_000, batch_size=1024)
    9765
    >>> Budget.steps(9765).num_steps(num_train=50_000, batch_size=64)
    9765
    """

    unit: BudgetUnit
    amount: float

    def __post_init__(self) -> None:
        if isinstance(self.amount, bool) or not isinstance(self.amount, int | float):
            raise UserError(f"a budget of {self.amount!r} {self.unit} is not a number; give one, e.g. 20")
        if not math.isfinite(self.amount) or self.amount <= 0:
            raise UserError(f"a budget of {self.amount} {self.unit} is not positive; use a number above 0")
        if self.unit is BudgetUnit.STEPS and self.amount != int(self.amount):
            raise UserError(f"a budget of {self.amount} steps is not a whole number; round it")

    @classmethod
    def epochs(cls, amount: float) -> Budget:
        """Return a budget of so many passes over the training set, fractions allowed."""
        return cls(unit=BudgetUnit.EPOCHS, amount=amount)

    @classmethod
    def steps(cls, amount: int) -> Budget:
        """Return a budget of so many updates."""
        return cls(unit=BudgetUnit.STEPS, amount=amount)

    def num_steps(self, *, num_train: int, batch_size: int) -> int:
        """Return the number of updates for a training set of `num_train` examples at `batch_size`."""
        if self.unit is BudgetUnit.STEPS:
            return int(self.amount)
        # Fraction of the decimal as written: 0.1 epochs of 1,000 examples are 100 examples, not 99.
        steps = math.floor(Fraction(str(self.amount)) * num_train / batch_size)
        if steps < 1:
            raise UserError(
                f"a budget of {self} on {num_train} examples is no whole update at batch_size={batch_size}; "
                f"use at least {batch_size / num_train:.3g} epochs, or a smaller batch"
            )
        return steps

    def __str__(self) -> str:
        amount = int(self.amount) if self.amount == int(self.amount) else self.amount
        return f"{amount:,} {self.unit}"
