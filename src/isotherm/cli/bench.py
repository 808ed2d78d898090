"""`isotherm bench`: how fast this machine trains what the paper trains, against what people use instead."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.bench.contenders import OURS, PEERS, PLAIN, chosen_peers
from isotherm.bench.measure import Settings, measure
from isotherm.bench.workloads import WORKS, AnyWork, Work, chosen_works, work_entry
from isotherm.cli.common import (
    EXIT_INTERRUPTED,
    JsonOption,
    check_json,
    console_for,
    errors,
    escaped,
    give_json,
    guarded,
)
from isotherm.core.records import RunSpec
from isotherm.engine.placed_task import checked_device
from isotherm.errors import UserError
from isotherm.studies import STUDIES
from isotherm.sweep.protocol import missing_runs

DeviceOption = Annotated[str, typer.Option(help="What to time: cpu or cuda.")]
RepeatsOption = Annotated[int, typer.Option(help="Windows of every side; the median counts.")]
SecondsOption = Annotated[float, typer.Option(help="Length of a window, about.")]
WorkOption = Annotated[
    list[str] | None,
    typer.Option("--work", metavar="NAME", help="A work, or one of its batch sizes as NAME:B; may be repeated."),
]
PeerOption = Annotated[
    list[str] | None, typer.Option("--peer", metavar="NAME", help="Whom to compare with; may be repeated.")
]
ListOption = Annotated[bool, typer.Option("--list", help="Show works and peers; time nothing.")]


@guarded
def bench(
    device: DeviceOption = "cpu",
    repeats: RepeatsOption = 5,
    seconds: SecondsOption = 1.0,
    work: WorkOption = None,
    peer: PeerOption = None,
    list_: ListOption = False,
    json_path: JsonOption = None,
) -> None:
    """Time training on this machine, fleets against plain loops and others; nothing else should run meanwhile."""
    console = console_for(json_path)
    _check_json(json_path)
    if list_:
        _print_list(console)
        give_json(json_path, {"works": [work_entry(one) for one in WORKS], "peers": PEERS})
        return
    _check_numbers(repeats, seconds)
    works, peers = chosen_works(work or [], device=_checked_kind(device)), chosen_peers(peer or [])
    checked_device(device)
    settings = Settings(device=device, peers=peers, repeats=repeats, seconds=seconds)
    content = _measured(works, settings, json_path=json_path, console=console)
    console.print(_table(content["rows"]))
    for row in content["rows"]:
        for sentence in _sentences(row):
            console.print(f"[dim]{escaped(sentence)}[/]", highlight=False)
    give_json(json_path, content)
    if json_path is not None and json_path != Path("-"):
        console.print(f"Written to {escaped(str(json_path))}", highlight=False, soft_wrap=True)


def _measured(
    works: Sequence[AnyWork], settings: Settings, *, json_path: Path | None, console: Console
) -> dict[str, Any]:
    """Time everything with a line for every row; what was timed is written as it comes."""
    is_file = json_path is not None and json_path != Path("-")
    num_done = 0

    def on_row(content: dict[str, Any]) -> None:
        nonlocal num_done
        num_done = len(content["rows"])
        console.print(f"{num_done} of {len(works)}: {escaped(_line(content['rows'][-1]))}", highlight=False)
        if is_file:
            give_json(json_path, content)

    with console.status("") as status:

        def on_work(work: AnyWork) -> None:
            status.update(f"timing {work.label}")

        try:
            return measure(works, settings, planned=_planned, on_work=on_work, on_row=on_row)
        except KeyboardInterrupt as error:
            kept = f"{json_path} has the rows above" if is_file and num_done else "nothing was written"
            errors().print(f"[bold]stopped.[/] {escaped(kept)}.", highlight=False, soft_wrap=True)
            raise typer.Exit(EXIT_INTERRUPTED) from error


def _planned(study: str) -> list[RunSpec]:
    return missing_runs(STUDIES[study]().plan().sweeps, {})


def _check_json(path: Path | None) -> None:
    """Refuse a path that cannot be written before anything is timed."""
    check_json(path)
    if path is None or path == Path("-"):
        return
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise UserError(
            f"--json {path}: its folder cannot be written to ({error.strerror}); name a file in another one"
        ) from error


def _check_numbers(repeats: int, seconds: float) -> None:
    if repeats < 1:
        raise UserError(f"--repeats {repeats}: there must be a window to time; use at least 1, better 5")
    if not 0 < seconds < float("inf"):
        raise UserError(f"--seconds {seconds:g} is no length of a window; use a positive number")


def _checked_kind(device: str) -> str:
    if device not in ("cpu", "cuda"):
        raise UserError(f"--device {device!r} is not one that is timed; use 'cpu' or 'cuda'")
    return device


def _print_list(console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("work", "device", "runs", "target"):
        table.add_column(name, justify="right" if name == "runs" else "left", overflow="fold")
    for one in WORKS:
        unit = one.unit if isinstance(one, Work) else "run-steps/s"
        runs = str(one.num_runs) if isinstance(one, Work) else "as planned"
        table.add_row(one.label, one.device, runs, "–" if one.target is None else one.target.text(unit))
    console.print(table, highlight=False)
    for name, text in PEERS.items():
        console.print(f"[bold]{name}[/]: {escaped(text)}", highlight=False)


def _line(row: dict[str, Any]) -> str:
    """Return a row in one line."""
    if row["ours"] is None:
        return f"{row['label']} could not be timed: {row['reasons'].get(OURS, 'unknown')}"
    ratio = "" if row["ratio"] is None else f", {row['ratio']:.1f} times the plain loop"
    return f"{row['label']} {row['ours']:,.0f} {row['unit']}{ratio}"


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("work", OURS, PLAIN, "ratio", "of floor", "target"):
        table.add_column(name, justify="left" if name in ("work", "target") else "right", overflow="fold")
    for row in rows:
        size = "" if row["batch_size"] is None else f"B = {row['batch_size']:,}, "
        table.add_row(
            f"{row['work']}\n[dim]{size}{row['num_runs']} run{'s' * (row['num_runs'] != 1)}[/]",
            f"{_number(row['ours'], ',.0f')}\n[dim]{row['unit']}[/]",
            _number(row["peers"][PLAIN], ",.0f"),
            _number(row["ratio"], ".1f") + ("x" if row["ratio"] is not None else ""),
            _number(row["fraction_of_floor"], ".0%"),
            _target_text(row),
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


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
    """Return the other peers of a row, those that could not be timed, and its remark."""
    told = [f"{name} {speed:,.0f}" for name, speed in row["peers"].items() if speed is not None and name != PLAIN]
    told += [f"{name} not timed ({reason})" for name, reason in row["reasons"].items() if reason != "not asked for"]
    told += [row["remark"]] if row["remark"] else []
    return [f"{row['label']}: {'; '.join(told)}"] if told else []
