"""A quantity over several runs: mean, standard deviation and number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """A mean with its standard deviation and the number of runs behind it."""

    mean: float
    sd: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Value:
        """Return the value of several runs.

        >>> Value.of([1.0, 2.0, 3.0])
        Value(mean=2.0, sd=1.0, num=3)
        """
        return cls(mean=statistics.mean(values), sd=statistics.stdev(values), num=len(values))

    @property
    def standard_error(self) -> float:
        """The standard error of the mean."""
        return self.sd / math.sqrt(self.num)

    def text(self, decimals: int, *, with_num: bool = True) -> str:
        """Return the value for a table.

        >>> Value(mean=2.0233, sd=0.0009, num=3).text(3)
        '2.023 ± 0.001 (3)'
        """
        return f"{self.mean:.{decimals}f} ± {self.sd:.{decimals}f}" + (f" ({self.num})" if with_num else "")
