"""A demonstration of the theory in the terminal: its paragraph and tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.cli.common import escaped
from isotherm.theory import demonstration as contract
from isotherm.theory.demonstration import Demonstration

TEXT_WIDTH = 100  # a paragraph in longer lines is hard to read
HEADING_WIDTH = 10  # of a column whose cells are shorter


def print_demonstration(found: Demonstration, console: Console) -> None:
    """Print title, paragraph and tables."""
    width = min(console.width, TEXT_WIDTH)
    console.print(f"[bold]{escaped(found.title)}[/]\n", highlight=False, width=width)
    console.print(escaped(found.paragraph), highlight=False, width=width)
    for table in found.tables:
        console.print(f"\n[italic]{escaped(table.title)}[/]", highlight=False, width=width)
        console.print(_table(table, console), highlight=False)


def _table(table: contract.Table, console: Console) -> Table:
    """Return a table to print; one that is too wide has its rows as columns."""
    lines = [list(table.columns), *([_text(value) for value in row] for row in table.rows)]
    printed = _unbroken(lines)
    unlimited = console.options.update(max_width=10 * console.width)
    if console.measure(printed, options=unlimited).maximum <= console.width:
        return printed
    return _unbroken(list(zip(*lines, strict=True)))


def _unbroken(lines: Sequence[Sequence[str]]) -> Table:
    """Return a table of headings and rows; headings are broken between words, nothing else is."""
    headings, *rows = lines
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        cells = [row[place] for row in rows]
        is_name = place == 0 and not all(map(_is_number, cells))
        width = max([HEADING_WIDTH, *map(len, cells)])
        broken = textwrap.fill(heading, width, break_long_words=False, break_on_hyphens=False)
        table.add_column(escaped(broken), justify="left" if is_name else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(escaped, row))
    return table


def _text(value: str | float) -> str:
    """Return a cell: words as they are, numbers in four digits or, from ten thousand on, without decimals.

    >>> _text(131072), _text(1217.748), _text(22.627417), _text(0.010892358), _text("none")
    ('131,072', '1,218', '22.63', '0.01089', 'none')
    """
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:,.4g}"


def _is_number(text: str) -> bool:
    return text.lstrip("-−+").startswith(tuple("0123456789"))
