"""Tables that a console and a notebook show, with their values for code."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isotherm.core.one_screen import columns_text, one_screen


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ShownTable:
    """One table: `cells` are its text, `values` what they were made of, one mapping per row."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    values: tuple[Mapping[str, Any], ...] = ()

    def lines(self) -> list[str]:
        """Return the table as text."""
        flat = [[cell.replace("\n", " ") for cell in row] for row in self.cells]
        return [self.title, *columns_text(self.columns, flat), *self.notes]

    def html(self) -> str:
        """Return the table as HTML, without a style of its own."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{_html(cell)}</td>' for cell in row)}</tr>" for row in self.cells)
        notes = "".join(f"<div><small>{html.escape(note)}</small></div>" for note in self.notes)
        title = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ShownTables:
    """The tables of some results, one per sweep; a console and a notebook show them."""

    parts: tuple[ShownTable, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all tables as plain values."""
        return [dict(row) for part in self.parts for row in part.values]

    def __iter__(self) -> Iterator[ShownTable]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __str__(self) -> str:
        return "\n\n".join("\n".join(part.lines()) for part in self.parts)

    def __repr__(self) -> str:
        return one_screen([line for part in self.parts for line in [*part.lines(), ""]][:-1])

    def _repr_html_(self) -> str:
        return "".join(part.html() for part in self.parts)


def _html(cell: str) -> str:
    return html.escape(cell).replace("\n", "<br>")
