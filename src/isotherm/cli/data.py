"""`isotherm data`: which data sets there are, whether they are right, and fetching them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from isotherm.cli.common import (
    EXIT_INTERRUPTED,
    EXIT_USER,
    DataOption,
    JsonOption,
    check_json,
    console_for,
    errors,
    escaped,
    give_json,
    guarded,
)
from isotherm.cli.progress import FetchProgress
from isotherm.data import files
from isotherm.data.catalogue import DATASETS, Dataset, data_folder, get_dataset
from isotherm.data.files import FileStatus
from isotherm.data.listing import Listed, Presence, listed
from isotherm.errors import UserError

app = typer.Typer(name="data", help="The data sets of the built-in tasks: list, verify, fetch.", no_args_is_help=True)

_COLOURS = {Presence.COMPLETE: "green", Presence.MISSING: "yellow", Presence.WRONG: "red"}


@app.command("list")
@guarded
def list_command(data: DataOption = None, json_path: JsonOption = None) -> None:
    """Show which data sets there are, where each is expected, and whether it is there, by names and sizes."""
    console = console_for(json_path)
    check_json(json_path)
    folder = data_folder(data)
    found = listed(folder)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("name", "what it is, and where it is expected", "size", "state"):
        table.add_column(name, justify="right" if name == "size" else "left", no_wrap=name in ("name", "size"))
    for one in found:
        table.add_row(
            one.dataset.name,
            f"{escaped(one.dataset.title)}\n[dim]{escaped(str(one.folder))}[/]",
            "–" if one.size is None else decimal(one.size),
            f"[{_COLOURS[one.presence]}]{one.presence}[/]\n[dim]{escaped(one.detail)}[/]",
        )
    console.print(table, highlight=False)
    console.print("States are told by names and sizes; `isotherm data verify` reads the files and checks their sha256.")
    give_json(json_path, {"folder": str(folder), "checked": "sizes", "datasets": [_listed_entry(one) for one in found]})


@app.command()
@guarded
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Data sets; default: all that have a folder.")
    ] = None,
    data: DataOption = None,
    json_path: JsonOption = None,
) -> None:
    """Check size and sha256 of every file; exit code 2 when something is wrong or missing."""
    console = console_for(json_path)
    check_json(json_path)
    folder = data_folder(data)
    checked: dict[str, list[FileStatus]] = {}
    for dataset in _chosen(names, folder):
        with console.status(f"reading {dataset.name}"):
            checked[dataset.name] = files.verify(dataset, folder)
        _print_statuses(dataset, checked[dataset.name], console)
    _conclude(folder, checked, json_path)


@app.command()
@guarded
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets, as `isotherm data list` names them.")],
    data: DataOption = None,
    json_path: JsonOption = None,
) -> None:
    """Bring data sets into the data folder and check them; what broke off is resumed."""
    console = console_for(json_path)
    check_json(json_path)
    folder = data_folder(data)
    datasets = [get_dataset(name) for name in dict.fromkeys(names)]
    checked: dict[str, list[FileStatus]] = {}
    for dataset in datasets:
        console.print(
            f"[bold]{dataset.name}[/] into {escaped(str(folder / dataset.name))}", highlight=False, soft_wrap=True
        )
        if dataset.note:
            console.print(escaped(dataset.note), highlight=False)
        checked[dataset.name] = _fetched(dataset, folder, console)
        _print_statuses(dataset, checked[dataset.name], console)
    _conclude(folder, checked, json_path)


def _fetched(dataset: Dataset, folder: Path, console: Console) -> list[FileStatus]:
    try:
        with FetchProgress(console) as progress:
            return files.fetch(dataset, folder, on_progress=progress)
    except KeyboardInterrupt as error:
        errors().print("[bold]stopped.[/] What has come is kept; the same command goes on from there.")
        raise typer.Exit(EXIT_INTERRUPTED) from error


def _chosen(names: list[str] | None, folder: Path) -> list[Dataset]:
    """Return the data sets that are meant: by name, or all that have a folder."""
    if names:
        return [get_dataset(name) for name in dict.fromkeys(names)]
    found = [dataset for dataset in DATASETS.values() if (folder / dataset.name).is_dir()]
    if not found:
        raise UserError(
            f"there is no data set in {folder}; fetch one with `isotherm data fetch NAME`, or name the folder that has "
            "them with --data or the environment variable ISOTHERM_DATA"
        )
    return found


def _print_statuses(dataset: Dataset, statuses: list[FileStatus], console: Console) -> None:
    if not statuses:
        console.print(f"{dataset.name}: generated, there is no file to check", highlight=False)
    for status in statuses:
        mark = "[green]right[/]" if status.ok else f"[red]{status.state}[/]"
        console.print(f"{mark}  {escaped(status.sentence)}", highlight=False, soft_wrap=True)


def _conclude(folder: Path, checked: dict[str, list[FileStatus]], json_path: Path | None) -> None:
    give_json(json_path, _checked_content(folder, checked))
    if bad := [name for name, statuses in checked.items() if not all(status.ok for status in statuses)]:
        errors().print(f"[bold red]error:[/] not all files are right: {', '.join(bad)}; see above", highlight=False)
        raise typer.Exit(EXIT_USER)


def _listed_entry(one: Listed) -> dict[str, Any]:
    return {
        "name": one.dataset.name,
        "title": one.dataset.title,
        "page": one.dataset.page,
        "folder": str(one.folder),
        "size": one.size,
        "state": str(one.presence),
        "detail": one.detail,
    }


def _checked_content(folder: Path, checked: dict[str, list[FileStatus]]) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "datasets": [
            {
                "name": name,
                "ok": all(status.ok for status in statuses),
                "files": [{"path": str(s.path), "state": str(s.state), "sentence": s.sentence} for s in statuses],
            }
            for name, statuses in checked.items()
        ],
    }
