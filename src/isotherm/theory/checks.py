"""Checks of numeric arguments, with errors that name the problem."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isotherm.core.statistics import Floats
from isotherm.errors import UserError


def is_number(value: Any) -> bool:
    """Tell whether a value is a real number, not a bool or a string."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def need_positive(name: str, value: Any) -> None:
    """Raise a UserError unless the value is a positive, finite number."""
    if not (is_number(value) and 0 < value < math.inf):
        raise UserError(f"{name} must be a positive number, not {value!r}")


def need_stable(curvature: float, learning_rate: float) -> None:
    """Raise a UserError for a learning rate at or above the critical one of SGD."""
    need_positive("curvature", curvature)
    need_positive("learning_rate", learning_rate)
    if learning_rate * curvature >= 2:
        raise UserError(
            f"learning_rate={learning_rate} is not below the critical learning rate 2 / h = {2 / curvature:g}, "
            f"so SGD has no stationary state; lower it"
        )


def not_negative(name: str, value: ArrayLike) -> Floats:
    """Return numbers as an array, all non-negative and finite."""
    given = np.asarray(value, dtype=np.float64)
    wrong = given[~(np.isfinite(given) & (given >= 0))]
    if wrong.size:
        raise UserError(f"{name}={wrong.flat[0]} is negative or not finite; use numbers of 0 or more")
    return given


def need_all_positive(name: str, value: ArrayLike) -> None:
    """Raise a UserError unless a number or array is positive and finite throughout."""
    given = np.asarray(value, dtype=np.float64)
    wrong = given[~(np.isfinite(given) & (given > 0))]
    if wrong.size:
        raise UserError(f"{name}={wrong.flat[0]} is not positive and finite; use numbers above 0")


def need_count(name: str, value: int) -> None:
    """Raise a UserError unless the value is a positive whole number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, not {value!r}")


def need_momentum(momentum: float) -> None:
    """Raise a UserError unless 0 <= momentum < 1."""
    if not 0.0 <= momentum < 1.0:
        raise UserError(f"momentum={momentum} is not in [0, 1); the paper uses 0 and 0.9")
