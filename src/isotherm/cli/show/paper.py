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
from isotherm.report.wording import count_text
from isotherm.studies.paper.definition import PaperObject, Scale
from isotherm.studies.paper.judged import command, differences, runs_words
from isotherm.studies.paper.shipped import Record
from isotherm.studies.paper.single_cells import SingleCell, cell_words


def print_list(
    objects: Iterable[PaperObject], records: Sequence[Record], cells: Sequence[SingleCell], console: Console
) -> None:
    """Print every object: what it shows, its networks, runs and cost at each scale, and what has been run."""
    table = Table.grid(padding=(0, 2, 1, 0))
    for one in objects:
        costs = " · ".join(f"{scale} {cost(one, scale)}" for scale in Scale)
        lines = [
            f"{escaped(one.shows)} [dim]{escaped(one.networks)}[/]",
            costs,
            *_so_far(one, records),
            *_single_cells(one, cells),
        ]
        table.add_row(f"[bold]{one.identifier}[/]", "\n".join(lines))
    console.print(table, highlight=False)
    console.print(
        "Runs of the base grids, and their time at measured speeds without start-up: on two cores for smoke and "
        "laptop, on one H200 for gpu and paper. Grids that are refined, as at laptop, end with two to three times as "
        "many runs.\n"
        "isotherm reproduce ID --scale SCALE",
        highlight=False,
    )


def list_content(
    objects: Iterable[PaperObject], records: Sequence[Record], cells: Sequence[SingleCell]
) -> dict[str, Any]:
    """Return the list as JSON values."""
    return {"objects": [_entry(one, records, cells) for one in objects]}


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


def _entry(one: PaperObject, records: Sequence[Record], cells: Sequence[SingleCell]) -> dict[str, Any]:
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
        "single_cells": [
            {
                "batch_size": cell.row.batch_size,
                "effective_learning_rate": cell.row.rate,
                "num_runs": len(cell.results),
                "rows": str(cell.path),
            }
            for cell in _own(one, cells)
        ],
    }


def cost(one: PaperObject, scale: Scale) -> str:
    """Return how many runs the base grids of an object have, and how long these take at measured speeds."""
    scaled = one.scales[scale]
    return f"{count_text(scaled.num_runs, 'run')}, {_about(scaled.seconds)}" if scaled.settings else "no runs"


def _about(seconds: float) -> str:
    """Return a duration in its largest unit.

    >>> _about(0.2), _about(44.0), _about(1446.0), _about(126_000.0), _about(5_000_000.0)
    ('1 s', '44 s', '24 min', '35 h', '58 days')
    """
    for limit, unit, name in ((90, 1, "s"), (90 * 60, 60, "min"), (72 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(1, round(seconds / unit))} {name}"
    return f"{seconds / 86400:.0f} days"


def _so_far(one: PaperObject, records: Sequence[Record]) -> list[str]:
    own = [r for r in records if r.wanted.identifier == one.identifier]
    return [escaped(f"run so far: {r.scale}, {_so_far_words(r)}; {r.path}") for r in own]


def _single_cells(one: PaperObject, cells: Sequence[SingleCell]) -> list[str]:
    """Say which cells were trained alone at full length: they are no sweep, and decide no claim."""
    return [escaped(f"single cell at full length, not a sweep: {cell_words(c)}; {c.path}") for c in _own(one, cells)]


def _own(one: PaperObject, cells: Sequence[SingleCell]) -> list[SingleCell]:
    return [cell for cell in cells if cell.wanted.identifier == one.identifier]


def _so_far_words(record: Record) -> str:
    """Return the number of runs, and how its grids differ from the scale's, which `list` counts."""
    other = differences(record.wanted, record.scale, record.results).removeprefix("Run so far ").removesuffix(".")
    return f"{runs_words(record.results)}{f' ({other})' if other else ''}"


def _rich(table: TextTable) -> Table:
    drawn = Table(
        title=escaped(table.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for name in table.columns:
        drawn.add_column(escaped(name), justify="left" if name in ("", "source", "sweep", "optimiser") else "right")
    for row in table.rows:
        drawn.add_row(*map(escaped, row))
    return drawn
