"""`isotherm status`: how far the studies of a store have come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, give_json
from isotherm.cli.options import JsonOption, StoreArgument

if TYPE_CHECKING:
    from isotherm.sweep.results import StudyResults


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusOptions:
    """The options of `isotherm status`."""

    store: StoreArgument
    json_path: JsonOption = None


@command(StatusOptions)
def status(options: StatusOptions) -> None:
    """Show how many runs of each study in a store are finished, diverged, failed or missing."""
    from isotherm.cli.stores import store_path
    from isotherm.running.stored import stored_studies

    console = console_for(options.json_path)
    check_json(options.json_path)
    path = store_path(options.store)
    rows = [row for results in stored_studies(path) for row in _rows(results)]
    console.print(_table(rows))
    console.print("Extensions of grids whose optimum lies at an edge count once their base grids are complete.")
    give_json(options.json_path, {"store": str(path), "sweeps": rows})


def _rows(results: StudyResults) -> list[dict[str, Any]]:
    return [
        {
            "study": results.plan.name,
            "sweep": sweep.plan.name,
            "momenta": ", ".join(f"{momentum:g}" for momentum in sweep.plan.momenta),
            **sweep.counts(),
        }
        for sweep in results.sweeps
    ]


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    outcomes = ("finished", "diverged", "failed", "missing")
    for name in ("study", "sweep", *outcomes):
        table.add_column(name, justify="right" if name in outcomes else "left", overflow="fold")
    for row in rows:
        counts = (f"{row[outcome]:,}" for outcome in outcomes)
        table.add_row(row["study"], f"{row['sweep']} (m = {row['momenta']})", *counts)
    return table
