"""`isotherm theory`: pieces of the theory, computed and compared here and now."""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.cli.common import (
    EXIT_INTERRUPTED,
    JsonOption,
    check_json,
    console_for,
    errors,
    escaped,
    give_json,
    guarded,
)
from isotherm.errors import UserError, nearest
from isotherm.report.theory.figure import figure_format, save_theory_figure
from isotherm.theory import demonstration as contract
from isotherm.theory.demonstration import Demonstration

TEXT_WIDTH = 100  # a paragraph in longer lines is hard to read
HEADING_WIDTH = 10  # of a column whose cells are shorter


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A piece of the theory: the module with its `demonstrate`, which is imported when it is asked for."""

    module: str
    shows: str


PIECES = {
    "noisy-quadratic": Piece(
        module="isotherm.theory.demos.noisy_quadratic",
        shows="two regimes without a network: ε_eff ∝ B, then the critical learning rate",
    ),
    "sde": Piece(
        module="isotherm.theory.demos.sde",
        shows="SGD beside its stochastic differential equation, and where linear scaling ends",
    ),
    "curvature": Piece(
        module="isotherm.theory.demos.curvature",
        shows="full-batch descent sharpens a network until its learning rate is critical",
    ),
    "noise-scale": Piece(
        module="isotherm.theory.demos.noise_scale",
        shows="the gradient noise scale of a regression, measured and known, as training goes on",
    ),
}

NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help=f"One of {', '.join(PIECES)}; without it: what there is.")
]
FigureOption = Annotated[
    Path | None, typer.Option("--figure", metavar="PATH", help="Draw it too: a .png, .pdf or .svg file.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of all random numbers.")]
ListOption = Annotated[bool, typer.Option("--list", help="Show what there is; compute nothing.")]


@guarded
def theory(
    name: NameArgument = None,
    figure: FigureOption = None,
    seed: SeedOption = 0,
    list_: ListOption = False,
    json_path: JsonOption = None,
) -> None:
    """Compute a piece of the theory in seconds: a paragraph with the numbers found, tables and a figure."""
    console = console_for(json_path)
    check_json(json_path)
    if name is None or list_:
        if figure is not None:
            raise UserError(f"--figure {figure}: a list has no figure; name what to draw, {nearest('', PIECES)}")
        _print_list(console)
        give_json(json_path, {"theory": [{"name": name, "shows": piece.shows} for name, piece in PIECES.items()]})
        return
    piece = _piece(name)
    _check_figure(figure)
    found = _computed(piece, seed=seed, console=console)
    _print(found, console)
    if figure is not None:
        save_theory_figure(found, figure)
    give_json(json_path, _finite(found.as_json()))
    for path in (figure, json_path):
        if path not in (None, Path("-")):
            console.print(f"Written to {escaped(str(path))}", highlight=False, soft_wrap=True)


def _finite(content: Any) -> Any:
    """Return plain values with None for every number that is not finite, which JSON does not know.

    >>> _finite({"x": [1.0, float("inf")], "n": 3})
    {'x': [1.0, None], 'n': 3}
    """
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content


def _piece(name: str) -> Piece:
    spelled = name.replace("_", "-")
    if spelled not in PIECES:
        raise UserError(f"there is no theory {name!r}; {nearest(spelled, PIECES)}")
    return PIECES[spelled]


def _check_figure(path: Path | None) -> None:
    """Refuse a path that cannot be written before anything is computed."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(
            f"--figure {path}: it is a folder, or its folder does not exist; name a file in an existing folder"
        )
    figure_format(path)


def _computed(piece: Piece, *, seed: int, console: Console) -> Demonstration:
    try:
        with console.status("computing"):
            return cast(Demonstration, importlib.import_module(piece.module).demonstrate(seed=seed))
    except KeyboardInterrupt as error:
        errors().print("[bold]stopped.[/] Nothing was written.")
        raise typer.Exit(EXIT_INTERRUPTED) from error


# -- what is printed ------------------------------------------------------------------------------------------------


def _print_list(console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    for name, piece in PIECES.items():
        table.add_row(name, escaped(piece.shows))
    console.print(table, highlight=False)
    console.print("isotherm theory NAME computes one of them.", highlight=False)


def _print(found: Demonstration, console: Console) -> None:
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
