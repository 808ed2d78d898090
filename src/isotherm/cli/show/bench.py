"""Measured speeds as a table and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.bench.contenders import OURS, PEERS, PLAIN
from isotherm.bench.measure import NOT_ASKED
from isotherm.bench.start import FIRST_TARGET, FURTHER_TARGET, STARTS
from isotherm.bench.workloads import WORKLOADS, Workload
from isotherm.cli.common import escaped


def print_bench(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table with a row for each workload, then what does not fit into it."""
    console.print(_table(rows))
    for row in rows:
        for sentence in _sentences(row):
            console.print(f"[dim]{escaped(sentence)}[/]", highlight=False)


def print_list(console: Console) -> None:
    """Print the workloads and the contenders."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("workload", "device", "runs", "target"):
        table.add_column(name, justify="right" if name == "runs" else "left", overflow="fold")
    for one in WORKLOADS:
        unit = one.unit if isinstance(one, Workload) else "run-steps/s"
        runs = str(one.num_runs) if isinstance(one, Workload) else "as planned"
        table.add_row(one.label, one.device, runs, "–" if one.target is None else one.target.text(unit))
    for start in STARTS:
        target = f"{FIRST_TARGET:g} s, then {FURTHER_TARGET:g} s" if start.device == "cuda" else "–"
        table.add_row(start.label, start.device, str(start.num_runs), target)
    console.print(table, highlight=False)
    for name, text in PEERS.items():
        console.print(f"[bold]{name}[/]: {escaped(text)}", highlight=False)


def row_line(row: dict[str, Any]) -> str:
    """Return a row in one line."""
    if row["ours"] is None:
        return f"{row['label']} could not be timed: {row['reasons'].get(OURS, 'unknown')}"
    ratio = "" if row["ratio"] is None else f", {row['ratio']:.1f} times the plain loop"
    return f"{row['label']} {row['ours']:,.0f} {row['unit']}{ratio}"


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("workload", OURS, PLAIN, "ratio", "of floor", "target"):
        table.add_column(name, justify="left" if name in ("workload", "target") else "right", overflow="fold")
    for row in rows:
        size = "" if row["batch_size"] is None else f"B = {row['batch_size']:,}, "
        table.add_row(
            f"{row['workload']}\n[dim]{size}{row['num_runs']} run{'s' * (row['num_runs'] != 1)}[/]",
            f"{_number(row['ours'], ',.0f')}\n[dim]{row['unit']}[/]",
            _number(row["peers"][PLAIN], ",.0f"),
            _ratio_text(row["ratio"]),
            _number(row["fraction_of_floor"], ".0%"),
            _target_text(row),
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _ratio_text(ratio: float | None) -> str:
    """Return how many times as fast; near 1 with the digits that tell on which side of it."""
    if ratio is None:
        return "–"
    if ratio < 1:
        return f"{min(ratio, 0.99):.2f}x"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def _target_text(row: dict[str, Any]) -> str:
    target = row["target"]
    if target is None:
        return "–"
    marks = {True: "[green]reached[/]", False: "[yellow]not reached[/]", None: "not timed"}
    share = ""
    if target["of"] == "fraction_of_ceiling" and row["fraction_of_ceiling"] is not None:
        share = f": {row['fraction_of_ceiling']:.0%}"
    return f"{target['text']}\n{marks[target['reached']]}{share}"


def _sentences(row: dict[str, Any]) -> list[str]:
    """Return the other contenders of a row, those that could not be timed, and its remark."""
    told = [f"{name} {speed:,.0f}" for name, speed in row["peers"].items() if speed is not None and name != PLAIN]
    told += [f"{name} not timed ({reason})" for name, reason in row["reasons"].items() if reason != NOT_ASKED]
    told += [row["remark"]] if row["remark"] else []
    return [f"{row['label']}: {'; '.join(told)}"] if told else []
