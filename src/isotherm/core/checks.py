"""Checks of a user's values: each error says what was given and what to do."""

from __future__ import annotations

import math
import numbers
import unicodedata
from collections.abc import Sequence
from typing import Any

from isotherm.errors import UserError

# Names of files have at most 255 bytes, and ours add to them.
MOST_NAME_BYTES = 150


def is_number(value: object) -> bool:
    """Tell whether a value is a real number, NumPy's included; True and False are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Tell whether a value is an integer, NumPy's included; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Tell whether a number is finite; a whole number that no float can hold is taken for infinite.

    >>> is_finite(1e308), is_finite(10**400), is_finite(float("nan"))
    (True, False, False)
    """
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def require_positive(name: str, value: Any) -> None:
    """Refuse what is not a finite number above 0."""
    if not is_number(value) or not (is_finite(value) and value > 0):
        raise UserError(f"{name} must be a positive number, not {value!r}{_as_number(value)}")


def require_whole(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> None:
    """Refuse what is not an integer within the limits."""
    if not is_whole(value) or value < at_least:
        raise UserError(f"{name} must be a whole number of at least {at_least}, not {value!r}{_as_whole(value)}")
    if at_most is not None and int(value) > at_most:
        raise UserError(f"{name} must be at most {at_most:,}, not {value!r}")


def require_name(name: str, value: object) -> None:
    """Refuse what is no name: it is shown in terminals and on pages, and files are named after it."""
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{name} is {value!r}; give a non-empty string")
    num_bytes = len(value.encode(errors="surrogatepass"))
    if num_bytes > MOST_NAME_BYTES:
        raise UserError(f"{name} has {num_bytes:,} bytes, {value[:20]!r}...; use at most {MOST_NAME_BYTES}")
    if odd := [character for character in value if unicodedata.category(character) in ("Cc", "Cs")]:
        raise UserError(f"{name} is {value!r}, with the control character {odd[0]!r}; use printable characters")


def require_some(name: str, values: object) -> None:
    """Refuse what is not a sequence, or is empty."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"{name} must be a list, not {_shown(values)}; write {_as_list(values)}")
    if len(values) == 0:
        raise UserError(f"{name} is empty; give at least one value")


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse what is not one of the choices."""
    if value not in choices:
        raise UserError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, choices))}")


def _as_number(value: object) -> str:
    """Return the remedy for a number in quotes."""
    try:
        return f"; write {float(value):g}, without quotes" if isinstance(value, str) else ""
    except ValueError:
        return ""


def _as_whole(value: object) -> str:
    """Return the remedy for a whole number written as a real one."""
    return f"; write {int(value)}" if isinstance(value, float) and value.is_integer() and value > 0 else ""


def _shown(values: object) -> str:
    return repr(values) if len(repr(values)) < 60 else type(values).__name__


def _as_list(values: object) -> str:
    """Return how a list is made of what was given."""
    if is_number(values) or isinstance(values, str):
        return f"[{values}]"
    return "values.tolist()" if hasattr(values, "tolist") else "list(values)"
