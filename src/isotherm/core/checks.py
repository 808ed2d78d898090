"""Checks of a user's values: each error says what was given and what to do."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from isotherm.errors import UserError


def is_number(value: object) -> bool:
    """Tell whether a value is a real number, NumPy's included; True and False are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def require_positive(name: str, value: Any) -> None:
    """Refuse what is not a finite number above 0."""
    if not is_number(value) or not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} must be a positive number, not {value!r}")


def require_whole(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> None:
    """Refuse what is not an integer within the limits."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < at_least:
        raise UserError(f"{name} must be a whole number of at least {at_least}, not {value!r}")
    if at_most is not None and int(value) > at_most:
        raise UserError(f"{name} must be at most {at_most:,}, not {value!r}")


def require_some(name: str, values: object) -> None:
    """Refuse what is not a sequence, or is empty."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"{name} must be a list, not {values!r}")
    if len(values) == 0:
        raise UserError(f"{name} is empty; give at least one value")


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse what is not one of the choices."""
    if value not in choices:
        raise UserError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, choices))}")
