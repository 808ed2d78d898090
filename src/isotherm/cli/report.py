"""`isotherm report`: page, figures and tables from a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, give_json
from isotherm.cli.options import JsonOption
from isotherm.errors import UserError

if TYPE_CHECKING:
    from isotherm.sweep.results import StudyResults


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """The options of `isotherm report`."""

    store: Annotated[
        str | None, typer.Argument(metavar="STORE", help="A store, or a study whose store is in this folder.")
    ] = None
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Put all figures and tables of the paper on one page; STORE may be left out."),
    ] = False
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar="SCALE",
            help="Show --paper at one scale; default: the largest that has rows of an object.",
        ),
    ] = None
    results: Annotated[
        Path, typer.Option("--results", metavar="FOLDER", help="Folder of earlier rows that --paper shows as well.")
    ] = Path("results")
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
    """Write report.html, figures (PNG and PDF) and CSV from a store; with --paper, the page of the whole paper."""
    check_json(options.json_path)
    if options.paper:
        _report_paper(options)
    elif options.scale is not None:
        raise UserError(f"--scale {options.scale} chooses a scale of the paper's objects; add --paper, or leave it out")
    elif options.store is None:
        raise UserError("no store is given; name one, or a study stored in this folder, or --paper for the whole paper")
    else:
        _report_store(options, options.store)


def _report_store(options: ReportOptions, given: str) -> None:
    from isotherm.cli.show.study import exit_if_failed, present
    from isotherm.cli.stores import store_path
    from isotherm.report.files import unique_stems
    from isotherm.running.stored import stored_studies

    console = console_for(options.json_path)
    path = store_path(given)
    found = stored_studies(path, study=options.study)
    base = options.output or (path.with_suffix("") if path.suffix else path.with_name(f"{path.name}_report"))
    folders = (
        [base] if len(found) == 1 else [base / stem for stem in unique_stems([results.plan.name for results in found])]
    )
    summaries = [
        present(results, folder, console=console, run=_run(given, path, results))
        for results, folder in zip(found, folders, strict=True)
    ]
    give_json(options.json_path, summaries[0] if len(summaries) == 1 else {"studies": summaries})
    for results in found:
        exit_if_failed(results)


def _report_paper(options: ReportOptions) -> None:
    """Write the page of the paper from a store, the stores in this folder, and the rows of earlier runs."""
    from isotherm.report.paper.finding import find_record
    from isotherm.report.paper.folder import summary
    from isotherm.report.paper.page import findings_by_object, write_paper_page
    from isotherm.studies.paper.definition import Scale
    from isotherm.studies.paper.registry import find_scale
    from isotherm.studies.paper.shipped import records_in, stored_records
    from isotherm.studies.paper.single_cells import cells_in

    scale = None if options.scale is None else find_scale(options.scale)
    console = console_for(options.json_path)
    given = sorted(Path().glob("paper_*.sqlite")) if options.store is None else [Path(options.store)]
    stored = [record for path in given for record in stored_records(path)]
    if options.store is not None and not stored:
        raise UserError(
            f"the store {options.store} holds nothing of the paper; fill it with isotherm reproduce ID --store "
            f"{options.store}"
        )
    records = [r for r in (*stored, *records_in(options.results)) if scale in (None, r.scale)]
    findings = [find_record(record) for record in records]
    path = (options.output or Path("paper")) / "report.html"
    cells = cells_in(options.results) if scale in (None, Scale.PAPER) else []
    page = write_paper_page(findings, path, scale=scale or Scale.LAPTOP, cells=cells)
    found = findings_by_object(findings)
    for name, finding in ((name, finding) for name, of_scales in found.items() for finding in of_scales):
        console.print(f"{name}: {finding.state}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Written to {page}", highlight=False, markup=False, soft_wrap=True)
    give_json(options.json_path, {"objects": [summary(of_scales[0]) for of_scales in found.values()]})


def _run(given: str, path: Path, results: StudyResults) -> list[str]:
    """Return the words of the command that runs a study of the store; what was given may name the study's file."""
    from isotherm.cli.stores import run_command

    name = results.plan.name
    return run_command(given if given.endswith(".toml") or ":" in given else name, name, path)
