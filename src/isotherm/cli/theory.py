"""`isotherm theory`: demonstrations of the theory, computed here and now."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, escaped, give_json, print_written, stopped
from isotherm.cli.options import JsonOption, SeedOption
from isotherm.errors import UserError, nearest

if TYPE_CHECKING:
    from isotherm.theory.demonstration import Demonstration


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A demonstration: the module with its `demonstrate`, imported when asked for, and what it shows."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TheoryOptions:
    """The options of `isotherm theory`."""

    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help=f"One of {', '.join(PIECES)}; lists them if omitted.")
    ] = None
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="Save the figure as .png, .pdf or .svg.")
    ] = None
    seed: SeedOption = 0
    list_: Annotated[bool, typer.Option("--list", help="List the demonstrations and compute nothing.")] = False
    json_path: JsonOption = None


@command(TheoryOptions)
def theory(options: TheoryOptions) -> None:
    """Run a demonstration of the theory and print its numbers and tables; --figure saves a plot."""
    console = console_for(options.json_path)
    check_json(options.json_path)
    if options.name is None or options.list_:
        _list(options, console)
    else:
        _show(_piece(options.name), options, console)


def _list(options: TheoryOptions, console: Console) -> None:
    if options.figure is not None:
        raise UserError(f"--figure {options.figure}: a list has no figure; name what to draw, {nearest('', PIECES)}")
    _print_list(console)
    content = [{"name": name, "shows": piece.shows} for name, piece in PIECES.items()]
    give_json(options.json_path, {"theory": content})


def _show(piece: Piece, options: TheoryOptions, console: Console) -> None:
    from isotherm.cli.show.demonstration import print_demonstration
    from isotherm.report.theory.figure import save_theory_figure

    _check_figure(options.figure)
    found = _computed(piece, seed=options.seed, console=console)
    print_demonstration(found, console)
    if options.figure is not None:
        save_theory_figure(found, options.figure)
    give_json(options.json_path, found.as_json())
    print_written((options.figure, options.json_path), console)


def _piece(name: str) -> Piece:
    spelled = name.replace("_", "-")
    if spelled not in PIECES:
        raise UserError(f"there is no demonstration {name!r}; {nearest(spelled, PIECES)}")
    return PIECES[spelled]


def _check_figure(path: Path | None) -> None:
    """Refuse a path that cannot be written before anything is computed."""
    from isotherm.report.theory.figure import figure_format

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
            return cast("Demonstration", importlib.import_module(piece.module).demonstrate(seed=seed))
    except KeyboardInterrupt as error:
        raise stopped("Nothing was written.") from error


def _print_list(console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    for name, piece in PIECES.items():
        table.add_row(name, escaped(piece.shows))
    console.print(table, highlight=False)
    console.print("`isotherm theory NAME` computes one of them.", highlight=False)
