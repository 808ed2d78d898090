"""Grids of effective learning rates: powers of two, and grids around an isotherm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isotherm.core.checks import is_finite, is_number, is_whole, require_positive, require_whole
from isotherm.core.temperature import effective_learning_rate_at
from isotherm.errors import UserError

# Far beyond any use; a typing error should not fill a disk.
_MAX_POINTS = 100


def powers_of_two(lowest: int, highest: int) -> tuple[float, ...]:
    """Return 2^lowest .. 2^highest, both included: the paper's grid.

    >>> powers_of_two(-2, 1)
    (0.25, 0.5, 1.0, 2.0)
    """
    for name, value in (("lowest", lowest), ("highest", highest)):
        if not is_whole(value):
            raise UserError(f"powers_of_two: the exponent {name}={value!r} is not a whole number; write e.g. -6")
    if lowest > highest:
        raise UserError(f"powers_of_two({lowest}, {highest}) is empty; the lower exponent comes first")
    return tuple(2.0**k for k in range(lowest, highest + 1))


def tidy(value: float) -> float:
    """Return a computed learning rate rounded to 15 digits, so that it equals the same rate written by hand.

    >>> tidy(0.09 * 3 * 3), tidy(2.0**-30) == 2.0**-30
    (0.81, True)
    """
    is_power_of_two = math.frexp(value)[0] == 0.5
    return value if is_power_of_two else float(f"{value:.15g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class IsothermGrid:
    """Learning rates around an isotherm: at batch size B, centred on min(T B, ceiling).

    Rough guesses of the optimal temperature and the largest useful learning rate are enough: the protocol extends a
    grid whose optimum lies at an end.

    >>> IsothermGrid(temperature=2**-5, ceiling=8.0).at(64)
    (0.5, 1.0, 2.0, 4.0, 8.0)
    >>> IsothermGrid(temperature=2**-5, ceiling=8.0, num_below=1, num_above=1).at(4096)
    (4.0, 8.0, 16.0)
    """

    temperature: float
    ceiling: float = math.inf
    num_below: int = 2
    num_above: int = 2
    ratio: float = 2.0

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)
        if not is_number(self.ceiling) or not self.ceiling > 0:
            raise UserError(f"ceiling={self.ceiling!r} is not positive; give the largest learning rate worth trying")
        require_whole("num_below", self.num_below, at_least=0, at_most=_MAX_POINTS)
        require_whole("num_above", self.num_above, at_least=0, at_most=_MAX_POINTS)
        if not is_number(self.ratio) or not (is_finite(self.ratio) and self.ratio > 1):
            raise UserError(f"ratio={self.ratio!r} is not above 1; neighbouring learning rates differ by this factor")

    def at(self, batch_size: int) -> tuple[float, ...]:
        """Return the effective learning rates to try at a batch size, rising."""
        centre = min(effective_learning_rate_at(self.temperature, batch_size), self.ceiling)
        return tuple(tidy(centre * self.ratio**k) for k in range(-self.num_below, self.num_above + 1))
