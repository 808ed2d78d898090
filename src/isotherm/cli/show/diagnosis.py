"""A diagnosis in the terminal: the answer, its tables, what is missing, what it cost."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.cli.common import escaped
from isotherm.cli.show.code import print_code
from isotherm.diagnose import Diagnosis
from isotherm.report.diagnosis.text import (
    RANGE_SIGN,
    TextTable,
    answer_sentences,
    boundaries_table,
    choices_table,
    cost_sentence,
    current_sentence,
    headline,
    isotherm_sentence,
    probes_table,
    stability_table,
)

HEADER_WIDTH = 9  # headers wrap so that columns stay as narrow as their numbers


def print_diagnosis(found: Diagnosis, console: Console) -> None:
    """Print the answer first, then what it rests on."""
    _print_answer(found, console)
    if (current := current_sentence(found)) is not None:
        _print_lines(console, "Your setting", [current])
    for table in (choices_table(found), boundaries_table(found)):
        _print_table(table, console)
    _print_sentences(console, [found.agreement, isotherm_sentence(found)])
    for table in (stability_table(found), probes_table(found)):
        _print_table(table, console)
    if found.expectations:
        _print_lines(console, "What to expect", found.expectations)
    if found.missing and found.choice is not None:
        _print_lines(console, "[yellow]Missing[/]", found.missing)
    console.print()
    _print_sentences(console, [cost_sentence(found)])


def _print_answer(found: Diagnosis, console: Console) -> None:
    console.print(f"\n{escaped(found.task)}", highlight=False)
    if found.choice is not None:
        console.print(f"[bold green]{escaped(headline(found))}[/]", highlight=False)
        _print_items(console, answer_sentences(found))
        print_code(found.choice_code, console)
        return
    console.print(f"[bold red]{escaped(headline(found))}.[/] Missing:", highlight=False)
    _print_items(console, found.missing)


def _print_lines(console: Console, title: str, sentences: Sequence[str]) -> None:
    console.print(f"\n[bold]{title}[/]", highlight=False)
    _print_items(console, sentences)


def _print_items(console: Console, sentences: Sequence[str]) -> None:
    lines = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        lines.add_row(" ", escaped(sentence))
    console.print(lines, highlight=False)


def _print_sentences(console: Console, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        console.print(escaped(sentence), highlight=False)


def _print_table(content: TextTable, console: Console) -> None:
    """Print a table unless it is empty; where the terminal is narrow, limits of an interval stand below each other."""
    if not content.rows:
        return
    table = _table(content, width=console.width)
    needed = console.measure(table, options=console.options.update(max_width=10 * console.width)).minimum
    if needed > console.width:
        table = _table(content, width=console.width, range_sign=f"{RANGE_SIGN}\n")
    console.print()
    console.print(table, highlight=False)


def _table(content: TextTable, *, width: int, range_sign: str = RANGE_SIGN) -> Table:
    table = Table(
        title=escaped(content.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        min_width=min(len(content.title), width),  # a title on one line
    )
    for name in content.columns:
        header = "\n".join(textwrap.wrap(name, HEADER_WIDTH, break_long_words=False))
        table.add_column(escaped(header), justify="left" if name in content.words else "right", overflow="fold")
    for place, row in enumerate(content.rows):
        cells = [cell.partition("\n") for cell in row]
        shown = [
            f"{escaped(value)}{gap}[dim]{escaped(limits.replace(RANGE_SIGN, range_sign))}[/]"
            for value, gap, limits in cells
        ]
        table.add_row(*shown, style="bold" if place in content.marked else None)
    return table
