"""`isotherm quickstart`: the embedded study, from nothing to a report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, give_json
from isotherm.cli.options import ComputeOptions, FleetSizeOption, JsonOption, WorkersOption


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartOptions:
    """The options of `isotherm quickstart`."""

    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the store, report, figures and CSV.")
    ] = Path("quickstart")
    workers: WorkersOption = None
    fleet_size: FleetSizeOption = None
    json_path: JsonOption = None


@command(QuickstartOptions)
def quickstart(options: QuickstartOptions) -> None:
    """Run the embedded study on a CPU: tables, verdicts and report.html, in two to three minutes on two cores."""
    from isotherm.cli.show.study import exit_if_failed, present
    from isotherm.cli.stores import run_command
    from isotherm.cli.training import train_study
    from isotherm.studies import STUDIES

    console = console_for(options.json_path)
    start = time.perf_counter()
    check_json(options.json_path)
    compute = ComputeOptions(workers=options.workers, fleet_size=options.fleet_size)
    store = options.output / "quickstart.sqlite"
    results = train_study(STUDIES["quickstart"](None), store, compute=compute, console=console)
    run = run_command("quickstart", "quickstart", store)
    give_json(options.json_path, present(results, options.output, console=console, run=run, start=start))
    exit_if_failed(results)
