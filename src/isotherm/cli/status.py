"""`isotherm status`: how far the studies of a store have come, and why runs are missing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, escaped, give_json
from isotherm.cli.options import DataOption, JsonOption, StoreArgument
from isotherm.core.schedule import Schedule

if TYPE_CHECKING:
    from isotherm.sweep.results import StudyResults


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusOptions:
    """The options of `isotherm status`."""

    store: StoreArgument
    why: Annotated[
        str | None,
        typer.Option("--why", metavar="STUDY", help="Explain why runs of STUDY are not found in the store."),
    ] = None
    data: DataOption = None
    json_path: JsonOption = None


@command(StatusOptions)
def status(options: StatusOptions) -> None:
    """Show how many runs of each study in a store are finished, diverged, failed or missing."""
    from isotherm.cli.stores import store_path
    from isotherm.running.stored import stored_studies

    console = console_for(options.json_path)
    check_json(options.json_path)
    path = store_path(options.store)
    if options.why is not None:
        _explain(path, options.why, options)
        return
    rows = [row for results in stored_studies(path) for row in _rows(results)]
    console.print(_table(rows))
    console.print("Extensions of grids whose optimum lies at an edge count once their base grids are complete.")
    give_json(options.json_path, {"store": str(path), "sweeps": rows})


def _explain(path: Path, study: str, options: StatusOptions) -> None:
    """Print what differs between the missing runs of a study and stored ones that nearly match."""
    from isotherm.running.store import Store
    from isotherm.running.why import explain, why_missing
    from isotherm.studies.load import load_study

    prepared = load_study(study, data=options.data).prepare()
    with Store.read(path) as store:
        missing = why_missing(prepared, store)
    sentences = [explain(match) for match in missing.near_matches]
    if missing.num_failed:
        sentences.append(f"failed, to be tried again: {missing.num_failed:,}")
    if missing.num_unlike:
        sentences.append(f"missing, and unlike any other run of the store: {missing.num_unlike:,}")
    console = console_for(options.json_path)
    for sentence in sentences or ["no run is missing"]:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    give_json(options.json_path, {"store": str(path), "study": prepared.plan.name, **dataclasses.asdict(missing)})


def _rows(results: StudyResults) -> list[dict[str, Any]]:
    return [
        {
            "study": results.plan.name,
            "sweep": sweep.plan.name,
            "momenta": ", ".join(f"{momentum:g}" for momentum in sweep.plan.momenta),
            "optimizers": [method.label for method in sweep.plan.methods],
            "schedule": str(sweep.plan.schedule),
            **sweep.counts(),
        }
        for sweep in results.sweeps
    ]


def _sweep_words(row: dict[str, Any]) -> str:
    method = f"m = {row['momenta']}" if row["momenta"] else ", ".join(row["optimizers"])
    own = "" if row["schedule"] == str(Schedule()) else f"; {row['schedule']}"
    return f"{row['sweep']} ({method}{own})"


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    outcomes = ("finished", "diverged", "failed", "missing")
    for name in ("study", "sweep", *outcomes):
        table.add_column(name, justify="right" if name in outcomes else "left", overflow="fold")
    for row in rows:
        counts = (f"{row[outcome]:,}" for outcome in outcomes)
        table.add_row(escaped(row["study"]), escaped(_sweep_words(row)), *counts)
    return table
