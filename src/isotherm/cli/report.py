"""`isotherm report`: page, figures and tables from a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, give_json
from isotherm.cli.options import JsonOption, StoreArgument

if TYPE_CHECKING:
    from isotherm.sweep.results import StudyResults


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """The options of `isotherm report`."""

    store: StoreArgument
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the report; default: beside the store."),
    ] = None
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Report one study of the store; default: all.")
    ] = None
    json_path: JsonOption = None


@command(ReportOptions)
def report(options: ReportOptions) -> None:
    """Write report.html, figures (PNG and PDF) and CSV from a store."""
    from isotherm.cli.show.study import exit_if_failed, present
    from isotherm.cli.stores import store_path
    from isotherm.running.stored import stored_studies

    console = console_for(options.json_path)
    check_json(options.json_path)
    path = store_path(options.store)
    found = stored_studies(path, study=options.study)
    base = options.output or (path.with_suffix("") if path.suffix else path.with_name(f"{path.name}_report"))
    folders = [base] if len(found) == 1 else [base / results.plan.name for results in found]
    summaries = [
        present(results, folder, console=console, run=_run(options.store, path, results))
        for results, folder in zip(found, folders, strict=True)
    ]
    give_json(options.json_path, summaries[0] if len(summaries) == 1 else {"studies": summaries})
    for results in found:
        exit_if_failed(results)


def _run(given: str, path: Path, results: StudyResults) -> list[str]:
    """Return the words of the command that runs a study of the store; what was given may name the study's file."""
    from isotherm.cli.stores import run_command

    name = results.plan.name
    return run_command(given if given.endswith(".toml") or ":" in given else name, name, path)
