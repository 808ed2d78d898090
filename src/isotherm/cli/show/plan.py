"""The cost of a study as a table and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.cli.common import escaped
from isotherm.core.budget import Until
from isotherm.core.schedule import Schedule
from isotherm.report.wording import count_text
from isotherm.running.cost import Estimate, FleetCost, busy_words
from isotherm.sweep.study import Study


def print_plan(name: str, cost: Estimate, *, store: Path, console: Console) -> None:
    """Print the runs to do, a row for every batch size and budget, and the total."""
    console.print(
        f"[bold]{escaped(name)}[/]: {cost.num_runs} runs to do, {cost.num_stored} stored in {escaped(str(store))}"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("task", "B", "steps", "runs", "fleet", "examples", "TFLOP", "MiB", "seconds"):
        table.add_column(column, justify="left" if column == "task" else "right", no_wrap=True)
    for fleet in sorted(cost.costs, key=lambda c: (c.task, c.num_steps * c.batch_size, c.batch_size)):
        table.add_row(*map(escaped, _row(fleet)))
    console.print(table)
    console.print(
        f"In all {cost.num_examples:,} examples, {cost.flop / 1e12:.3g} TFLOP, about {_duration(cost.seconds)} here. "
        f"{' '.join([*busy_words(cost), *_to_come(cost)])}",
        highlight=False,
    )


def later_notes(study: Study) -> list[str]:
    """Say of every sweep its schedule, if not the paper's, and what is called for later and not counted yet."""
    notes = []
    for sweep in study.sweeps:
        if sweep.schedule != Schedule():
            notes.append(f"{sweep.name}: learning rates follow the schedule: {sweep.schedule}")
        if sweep.estimate_at is not None:
            notes.append(f"{sweep.name}: grids are estimated at {sweep.estimate_at} first; the rest is not counted yet")
        if isinstance(sweep.budget, Until):
            last = sweep.budgets[-1]
            notes.append(f"{sweep.name}: budgets double while it improves, to {last} at most; those are not counted")
    return notes


def plan_content(name: str, cost: Estimate) -> dict[str, Any]:
    """Return the same as JSON values."""
    return {
        "study": name,
        "num_runs": cost.num_runs,
        "num_stored": cost.num_stored,
        "num_confirming": cost.num_confirming,
        "num_refining": cost.num_refining,
        "num_examples": cost.num_examples,
        "flop": cost.flop,
        "memory_bytes": cost.memory_bytes,
        "seconds": cost.seconds,
        "busy": cost.busy,
        "fleets": [{name: getattr(fleet, name) for name in fleet.__slots__} for fleet in cost.costs],
    }


def _to_come(cost: Estimate) -> list[str]:
    """Say which runs confirm, and what cannot be known before the first ones are done."""
    confirming = (
        [f"{count_text(cost.num_confirming, 'run')} of them confirm the choice."] if cost.num_confirming else []
    )
    refining = [f"Refining the grids will add about {cost.num_refining:,}."] if cost.num_refining else []
    return [*confirming, *refining, "Grids whose optimum lies at an edge will add to it."]


def _row(cost: FleetCost) -> list[str]:
    examples = f"{cost.num_examples:.3g}" if cost.num_examples < 1e3 else f"{cost.num_examples / 1e3:,.0f}k"
    counts = [f"{value:,}" for value in (cost.batch_size, cost.num_steps, cost.num_runs, cost.fleet_size)]
    amounts = [f"{cost.flop / 1e12:.2g}", f"{cost.memory_bytes / 2**20:.0f}", f"{cost.seconds:.1f}"]
    return [cost.task, *counts, examples, *amounts]


def _duration(seconds: float) -> str:
    """Return a duration in the unit that people use for it.

    >>> _duration(42.4), _duration(600), _duration(7200)
    ('42 s', '10 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
