"""Seconds to the first update as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def print_starts(starts: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a row for every batch size whose first update was waited for."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("workload", "B", "built before", "seconds to the first update", "target"):
        table.add_column(name, justify="right" if name in ("B", "seconds to the first update") else "left")
    for start in starts:
        for entry in start["starts"]:
            spread = f" [{entry['lowest']:.1f}, {entry['highest']:.1f}]" if start["repeats"] > 1 else ""
            seconds = f"{entry['seconds']:.1f}{spread}".replace("[", r"\[")
            table.add_row(start["label"], f"{entry['batch_size']:,}", entry["built_before"], seconds, _target(entry))
    console.print(table, highlight=False)
    for start in starts:
        num = start["repeats"]
        console.print(
            f"[dim]{start['label']}: {start['num_runs']} runs, {num} trial{'s' * (num > 1)}; imports and data not "
            "counted[/]",
            highlight=False,
        )


def _target(entry: dict[str, Any]) -> str:
    if entry["target"] is None:
        return "–"
    mark = "[green]reached[/]" if entry["reached"] else "[yellow]not reached[/]"
    return f"{entry['target']:g} s, {mark}"
