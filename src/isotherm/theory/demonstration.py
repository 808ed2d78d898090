"""The result of `isotherm theory NAME`: a paragraph, tables and one figure, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A line or a set of points; `low` and `high` are a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Literal["line", "points", "dashed"] = "line"

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.x, self.y, self.low, self.high) if values is not None}
        if len(lengths) != 1:
            raise ValueError(f"curve {self.label!r} has sequences of different lengths {sorted(lengths)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel of the figure."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    x_log: bool = False
    y_log: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of numbers or words under column titles."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """One demonstration of the theory.

    Args:
        name: as on the command line.
        title: one line.
        paragraph: what is shown and what it means, with the numbers found, for a student.
        panels: of the figure, left to right.
        tables: for the terminal.
        settings: the settings that reproduce it.
    """

    name: str
    title: str
    paragraph: str
    panels: Sequence[Panel]
    tables: Sequence[Table]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)
