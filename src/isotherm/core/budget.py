"""Budget: how long a run trains, and its conversion to updates, once.

The paper compares batch sizes at an equal number of epochs (equal compute) and at an equal number of steps.
Batches run across epoch boundaries and nothing is dropped, so E epochs of N examples are

    updates = floor(E N / B).
"""

from __future__ import annotations

import enum
import math
import numbers
from dataclasses import dataclass
from fractions import Fraction

from isotherm.core.checks import is_finite, is_number, require_positive, require_whole
from isotherm.errors import UserError

# Updates that no training reaches: eleven days of a microsecond each.
MOST_STEPS = 10**12


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
        if isinstance(self.amount, bool) or not isinstance(self.amount, numbers.Real):
            raise UserError(f"a budget must be a number of {self.unit} such as 20, not {self.amount!r}")
        if self.amount > 0 and isinstance(self.amount, int) and not is_finite(self.amount):
            raise UserError(f"a budget of more than 1e308 {self.unit} would never end; use at most {MOST_STEPS:,}")
        if not is_finite(self.amount) or self.amount <= 0:
            raise UserError(f"a budget of {self.amount} {self.unit} is not positive; use a number above 0")
        if self.unit is BudgetUnit.STEPS and self.amount != int(self.amount):
            raise UserError(f"a budget of {self.amount} steps is not a whole number; round it")
        if self.amount > MOST_STEPS:
            raise UserError(f"a budget of {self.amount:g} {self.unit} would never end; use at most {MOST_STEPS:,}")
        whole = self.amount == int(self.amount)
        object.__setattr__(self, "amount", int(self.amount) if whole else float(self.amount))

    @classmethod
    def epochs(cls, amount: float) -> Budget:
        """Return a budget of so many passes over the training set, fractions allowed."""
        return cls(unit=BudgetUnit.EPOCHS, amount=amount)

    @classmethod
    def steps(cls, amount: int) -> Budget:
        """Return a budget of so many updates."""
        return cls(unit=BudgetUnit.STEPS, amount=amount)

    @classmethod
    def until(
        cls, *, first: float, at_most: float | None = None, target: float | None = None, patience: int = 1
    ) -> Until:
        """Return epoch budgets that double until what is tuned meets a target or no longer improves.

        Args:
            first: epochs of the first budget.
            at_most: epochs that no budget exceeds; by default 1,024 times the first.
            target: of what is tuned, e.g. 0.95 for an accuracy; None for none.
            patience: doublings in a row without improvement after which it ends.
        """
        return Until(
            first=first, at_most=1024 * first if at_most is None else at_most, target=target, patience=patience
        )

    def num_steps(self, *, num_train: int, batch_size: int, unroll: int | None = None) -> int:
        """Return the number of updates for a training set of `num_train` examples at `batch_size`.

        With `unroll` the training set is a sequence, and an epoch as many updates as each of `batch_size` streams of it
        holds whole windows of that length.

        >>> Budget.epochs(40).num_steps(num_train=929_588, batch_size=64, unroll=35)
        16560
        """
        if self.unit is BudgetUnit.STEPS:
            return int(self.amount)
        if unroll is not None:
            windows = updates_per_pass(num_tokens=num_train + 1, batch_size=batch_size, unroll=unroll)
            steps = math.floor(Fraction(str(self.amount)) * windows)
            if steps < 1:
                raise UserError(
                    f"a budget of {self} is less than one update at batch_size={batch_size}, where an epoch is "
                    f"{windows} windows of {unroll} tokens; use at least {_rounded_up(1 / windows)} epochs"
                )
            return self._ending(steps)
        # Fraction of the decimal as written: 0.1 epochs of 1,000 examples are 100 examples, not 99.
        steps = math.floor(Fraction(str(self.amount)) * num_train / batch_size)
        if steps < 1:
            raise UserError(
                f"a budget of {self} on {num_train} examples is less than one update at batch_size={batch_size}; "
                f"use at least {_rounded_up(batch_size / num_train)} epochs, or a smaller batch"
            )
        return self._ending(steps)

    def _ending(self, steps: int) -> int:
        if steps > MOST_STEPS:
            raise UserError(f"a budget of {self} is {steps:,} updates, which would never end; use fewer epochs")
        return steps

    def __repr__(self) -> str:
        return f"Budget.{self.unit}({self.amount!r})"

    def __str__(self) -> str:
        return f"{self.amount:,} {str(self.unit)[:-1] if self.amount == 1 else self.unit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Until:
    """Epoch budgets that double until what is tuned meets a target or no longer improves; see `Budget.until`.

    >>> [str(budget) for budget in Until(first=5, at_most=50).budgets]
    ['5 epochs', '10 epochs', '20 epochs', '40 epochs']
    """

    first: float
    at_most: float
    target: float | None = None
    patience: int = 1

    def __post_init__(self) -> None:
        require_positive("the first budget of Budget.until", self.first)
        require_positive("at_most of Budget.until", self.at_most)
        if self.at_most > MOST_STEPS:
            raise UserError(f"at_most={self.at_most:g} epochs would never end; use at most {MOST_STEPS:,}")
        require_whole("patience of Budget.until", self.patience, at_least=1)
        if self.at_most < 2 * self.first:
            raise UserError(
                f"at_most={self.at_most} leaves no doubling of first={self.first} epochs; use at least "
                f"{2 * self.first:g}, or Budget.epochs for a single budget"
            )
        if self.target is not None and not (is_number(self.target) and is_finite(self.target)):
            raise UserError(f"target={self.target!r} is not a number; give e.g. 0.95 for an accuracy, or leave it out")

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Every budget that may be reached."""
        num = math.floor(math.log2(self.at_most / self.first) + 1e-9)
        return tuple(Budget.epochs(self.first * 2**k) for k in range(num + 1))


def updates_per_pass(*, num_tokens: int, batch_size: int, unroll: int) -> int:
    """Return how many whole windows each of `batch_size` streams holds; the last token is only ever predicted.

    >>> updates_per_pass(num_tokens=929_589, batch_size=64, unroll=35)
    414
    """
    windows = (num_tokens // batch_size - 1) // unroll
    if windows < 1:
        raise UserError(
            f"{num_tokens} tokens in {batch_size} streams are too few for a window of {unroll} tokens and the next "
            f"token; use a batch size of at most {num_tokens // (unroll + 1)}"
        )
    return windows


def _rounded_up(value: float) -> float:
    """Return a positive value with three digits, never less than it is.

    >>> _rounded_up(1 / 17)
    0.0589
    """
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.ceil(value * scale) / scale
