"""The paper's figures and tables in the terminal, for `reproduce` and `report --paper`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.cli.common import escaped
from isotherm.cli.show.study import print_verdicts
from isotherm.report.paper.finding import Finding
from isotherm.report.paper.tables import TextTable, tables
from isotherm.report.wording import duration_text
from isotherm.studies.paper.definition import PaperObject, Scale
from isotherm.studies.paper.judged import command, runs_words
from isotherm.studies.paper.shipped import Record


def print_list(objects: Iterable[PaperObject], records: Sequence[Record], console: Console) -> None:
    """Print every object: what it shows, its networks, runs and cost at each scale, and what has been run."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "what it shows", *map(str, Scale), "run so far"):
        table.add_column(name)
    for one in objects:
        costs = [_cost(one, scale) for scale in Scale]
        shows = f"{one.shows}\n[dim]{escaped(one.networks)}[/]"
        table.add_row(one.identifier, shows, *costs, escaped(_so_far(one, records)))
    console.print(table, highlight=False)
    console.print(
        "Runs before any grid is extended or refined; time on two cores (smoke, laptop) or one H200 (gpu, paper) from "
        "measured speeds, without start-up. isotherm reproduce ID --scale SCALE",
        highlight=False,
        soft_wrap=True,
    )


def list_content(objects: Iterable[PaperObject], records: Sequence[Record]) -> dict[str, Any]:
    """Return the list as JSON values."""
    return {"objects": [_entry(one, records) for one in objects]}


def print_finding(finding: Finding, files: Sequence[Path], console: Console) -> None:
    """Print an object: its tables, the verdicts on its claims, and the files that were written."""
    console.print(f"\n[bold]{escaped(finding.wanted.title)}[/] {escaped(finding.wanted.shows)}", highlight=False)
    console.print(f"[dim]{escaped(finding.caption)}[/]", highlight=False)
    for table in tables(finding.wanted, finding):
        console.print(_rich(table))
    print_verdicts(finding.verdicts, console)
    if files:
        names = ", ".join(file.name for file in files)
        console.print(f"Written to {escaped(str(files[0].parent))}/: {escaped(names)}", highlight=False, soft_wrap=True)


def _entry(one: PaperObject, records: Sequence[Record]) -> dict[str, Any]:
    return {
        "id": one.identifier,
        "title": one.title,
        "shows": one.shows,
        "networks": one.networks,
        "num_claims": len(one.claims),
        "scales": {
            str(scale): {
                "num_runs": scaled.num_runs,
                "seconds": scaled.seconds,
                "note": scaled.note,
                "networks": [network.name for network in scaled.networks],
                "command": " ".join(command(one, scale)),
            }
            for scale, scaled in one.scales.items()
        },
        "run": [
            {"scale": str(r.scale), "rows": str(r.path), "counts": r.results.counts()}
            for r in records
            if r.wanted.identifier == one.identifier
        ],
    }


def _cost(one: PaperObject, scale: Scale) -> str:
    scaled = one.scales[scale]
    if not scaled.settings:
        return "no runs"
    return f"{scaled.num_runs:,} runs\n{duration_text(max(1.0, scaled.seconds))}"


def _so_far(one: PaperObject, records: Sequence[Record]) -> str:
    own = [r for r in records if r.wanted.identifier == one.identifier]
    return "\n".join(f"{r.scale}: {runs_words(r.results)}; {r.path}" for r in own) or "–"


def _rich(table: TextTable) -> Table:
    drawn = Table(
        title=escaped(table.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for name in table.columns:
        drawn.add_column(escaped(name), justify="left" if name in ("", "source", "sweep", "optimiser") else "right")
    for row in table.rows:
        drawn.add_row(*map(escaped, row))
    return drawn
