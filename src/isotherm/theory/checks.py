"""Numbers that a formula can use, or an error that says why not."""

from __future__ import annotations

import math
import numbers
from typing import Any

from isotherm.errors import UserError


def is_number(value: Any) -> bool:
    """Tell whether a value is a real number, and neither a truth value nor text."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def need_positive(name: str, value: Any) -> None:
    """Refuse what is not one positive, finite number."""
    if not (is_number(value) and 0 < value < math.inf):
        raise UserError(f"{name}={value!r} is not a positive number; give one above 0")


def need_stable(curvature: float, learning_rate: float) -> None:
    """Refuse a learning rate at or above the critical one of SGD."""
    need_positive("curvature", curvature)
    need_positive("learning_rate", learning_rate)
    if learning_rate * curvature >= 2:
        raise UserError(
            f"learning_rate={learning_rate} is not below the critical learning rate 2 / h = {2 / curvature:g}, "
            f"so SGD has no stationary state; lower it"
        )
