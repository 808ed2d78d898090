"""`isotherm data`: list, verify and fetch the data sets of the built-in tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from isotherm.cli.command import Command, Group, command
from isotherm.cli.common import (
    EXIT_USER,
    check_json,
    console_for,
    errors,
    escaped,
    give_json,
    stopped,
)
from isotherm.cli.options import DataOption, JsonOption
from isotherm.data.catalogue import DATASETS, Dataset, data_folder, get_dataset
from isotherm.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from isotherm.data.files import FileStatus
    from isotherm.data.listing import Listed

app = typer.Typer(
    name="data", cls=Group, help="List, verify and fetch the data sets of the built-in tasks.", no_args_is_help=True
)

_COLOURS = {"complete": "green", "missing": "yellow", "wrong": "red"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ListOptions:
    """The options of `isotherm data list`."""

    data: DataOption = None
    json_path: JsonOption = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyOptions:
    """The options of `isotherm data verify`."""

    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Data sets; default: all that have a folder.")
    ] = None
    data: DataOption = None
    json_path: JsonOption = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchOptions:
    """The options of `isotherm data fetch`."""

    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets, as `isotherm data list` names them.")]
    data: DataOption = None
    json_path: JsonOption = None


@app.command("list", cls=Command)
@command(ListOptions)
def list_data(options: ListOptions) -> None:
    """Show every data set, where it is expected and whether it is there, judged by file names and sizes."""
    from isotherm.data.listing import listed

    console = console_for(options.json_path)
    check_json(options.json_path)
    folder = data_folder(options.data)
    found = listed(folder)
    console.print(_table(found), highlight=False)
    console.print("Judged by names and sizes; `isotherm data verify` reads the files and checks their sha256.")
    content = {"folder": str(folder), "checked": "sizes", "datasets": [_listed_entry(one) for one in found]}
    give_json(options.json_path, content)


@app.command("verify", cls=Command)
@command(VerifyOptions)
def verify_data(options: VerifyOptions) -> None:
    """Read every file and check its size and sha256. Exit code 2 if one is wrong or missing."""
    from isotherm.data.files import verify

    console = console_for(options.json_path)
    check_json(options.json_path)
    folder = data_folder(options.data)
    checked: dict[str, list[FileStatus]] = {}
    for dataset in _chosen(options.names, folder):
        with console.status(f"reading {dataset.name}"):
            checked[dataset.name] = verify(dataset, folder)
        _print_statuses(dataset, checked[dataset.name], console)
    _conclude(folder, checked, options.json_path)


@app.command("fetch", cls=Command)
@command(FetchOptions)
def fetch_data(options: FetchOptions) -> None:
    """Download data sets into the data folder and check them. A broken download resumes."""
    console = console_for(options.json_path)
    check_json(options.json_path)
    folder = data_folder(options.data)
    datasets = [get_dataset(name) for name in dict.fromkeys(options.names)]
    checked: dict[str, list[FileStatus]] = {}
    for dataset in datasets:
        console.print(
            f"[bold]{dataset.name}[/] into {escaped(str(folder / dataset.name))}", highlight=False, soft_wrap=True
        )
        if dataset.note:
            console.print(escaped(dataset.note), highlight=False)
        checked[dataset.name] = _fetched(dataset, folder, console)
        _print_statuses(dataset, checked[dataset.name], console)
    _conclude(folder, checked, options.json_path)


def _fetched(dataset: Dataset, folder: Path, console: Console) -> list[FileStatus]:
    from isotherm.cli.download_progress import DownloadProgress
    from isotherm.data.files import fetch

    try:
        with DownloadProgress(console) as progress:
            return fetch(dataset, folder, on_progress=progress)
    except KeyboardInterrupt as error:
        raise stopped("What was downloaded is kept; the same command resumes from there.") from error


def _chosen(names: list[str] | None, folder: Path) -> list[Dataset]:
    """Return the named data sets, or all that have a folder."""
    if names:
        return [get_dataset(name) for name in dict.fromkeys(names)]
    found = [dataset for dataset in DATASETS.values() if (folder / dataset.name).is_dir()]
    if not found:
        raise UserError(
            f"there is no data set in {folder}; fetch one with `isotherm data fetch NAME`, or name the folder that has "
            "them with --data or the environment variable ISOTHERM_DATA"
        )
    return found


def _table(found: list[Listed]) -> Table:
    from rich.filesize import decimal

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
    return table


def _print_statuses(dataset: Dataset, statuses: list[FileStatus], console: Console) -> None:
    if not statuses:
        console.print(f"{dataset.name}: generated, there is no file to check", highlight=False)
    for status in statuses:
        mark = "[green]right[/]" if status.ok else f"[red]{status.state}[/]"
        console.print(f"{mark}  {escaped(status.sentence)}", highlight=False, soft_wrap=True)


def _conclude(folder: Path, checked: dict[str, list[FileStatus]], json_path: Path | None) -> None:
    give_json(json_path, _checked_content(folder, checked))
    if bad := [name for name, statuses in checked.items() if not all(status.ok for status in statuses)]:
        errors().print(f"[bold red]error:[/] missing or wrong files: {', '.join(bad)}; see above", highlight=False)
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
