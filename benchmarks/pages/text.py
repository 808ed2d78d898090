"""Tables, paragraphs and numbers in the documents' format."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(("B", "speed"), [("8", "54,300")]))
    | B | speed |
    | --- | --- |
    | 8 | 54,300 |
    """
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def paragraph(text: str, *, bullet: bool = False) -> str:
    """Return a text wrapped to the documents' width."""
    indents = {"initial_indent": "- ", "subsequent_indent": "  "} if bullet else {}
    options: dict[str, Any] = {"width": 120, "break_long_words": False, "break_on_hyphens": False, **indents}
    return textwrap.fill(" ".join(text.split()), **options)


def number(value: float | None) -> str:
    """Return a speed with three significant digits.

    >>> number(54321.0), number(76.44), number(None)
    ('54,300', '76.4', '–')
    """
    if value is None:
        return "–"
    digits = 3 - len(str(int(abs(value))))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}"


def signed(value: float, decimals: int) -> str:
    """Return a difference with its sign.

    >>> signed(-0.434, 2), signed(0.007, 3)
    ('−0.43', '+0.007')
    """
    return f"{value:+.{decimals}f}".replace("-", "−")


def signed_interval(estimate: float, limits: tuple[float, float], *, decimals: int) -> str:
    """Return a difference with the limits of its interval.

    >>> signed_interval(0.5, (-0.25, 1.25), decimals=2)
    '+0.50 [−0.25, +1.25]'
    """
    low, high = (signed(limit, decimals) for limit in limits)
    return f"{signed(estimate, decimals)} [{low}, {high}]"


def percent(part: float) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.797)
    '80 %'
    """
    return f"{100 * part:.0f} %"
