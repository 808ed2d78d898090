"""`isotherm bench`: how fast this machine trains the paper's networks, against what people use instead."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, escaped, give_json, is_standard_output, print_written, stopped
from isotherm.cli.options import JsonOption
from isotherm.errors import UserError
from isotherm.report.files import open_descriptor, require_writable

if TYPE_CHECKING:
    from rich.console import Console

    from isotherm.bench.measure import Settings
    from isotherm.bench.start import StartWorkload
    from isotherm.bench.workloads import AnyWorkload
    from isotherm.core.records import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchOptions:
    """The options of `isotherm bench`."""

    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="Time cpu or cuda.")] = "cpu"
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", help="Windows timed per contender; the median counts.")
    ] = 5
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", help="Length of a window, approximately.")
    ] = 1.0
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            "--work",
            metavar="NAME",
            help="Time NAME, one batch size as NAME:B, or the first update as NAME:start; repeatable.",
        ),
    ] = None
    contenders: Annotated[
        list[str] | None,
        typer.Option("--contender", metavar="NAME", help="Compare with this contender; repeatable; default: all."),
    ] = None
    list_: Annotated[bool, typer.Option("--list", help="List workloads and contenders and time nothing.")] = False
    json_path: JsonOption = None


@command(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Time fleets against plain PyTorch loops and other ways to train. Keep the machine otherwise idle."""
    console = console_for(options.json_path)
    _check_json(options.json_path)
    if options.list_:
        _list(options, console)
    else:
        _time(options, console)


def _list(options: BenchOptions, console: Console) -> None:
    from isotherm.bench.contenders import PEERS
    from isotherm.bench.start import STARTS
    from isotherm.bench.workloads import WORKLOADS, workload_entry
    from isotherm.cli.show.bench import print_list

    print_list(console)
    starts = [dataclasses.asdict(start) | {"label": start.label} for start in STARTS]
    workloads = [workload_entry(one) for one in WORKLOADS]
    give_json(options.json_path, {"workloads": workloads, "starts": starts, "peers": PEERS})


def _time(options: BenchOptions, console: Console) -> None:
    from isotherm.bench.contenders import chosen_peers
    from isotherm.bench.measure import Settings
    from isotherm.bench.start import chosen_starts
    from isotherm.bench.workloads import chosen_workloads
    from isotherm.cli.show.bench import print_bench
    from isotherm.cli.show.starts import print_starts
    from isotherm.engine.placed_task import checked_device

    _check_numbers(options)
    starts, others = chosen_starts(options.workloads or [], device=_checked_kind(options.device))
    workloads = chosen_workloads(others, device=options.device) if others or not starts else []
    peers = chosen_peers(options.contenders or [])
    checked_device(options.device)
    settings = Settings(device=options.device, peers=peers, repeats=options.repeats, seconds=options.seconds)
    content = _measured(workloads, settings, json_path=options.json_path, console=console)
    if workloads:
        print_bench(content["rows"], console)
    if starts:
        content["starts"] = _timed_starts(starts, repeats=options.repeats, console=console)
        print_starts(content["starts"], console)
    give_json(options.json_path, content)
    print_written((options.json_path,), console)


def _measured(
    workloads: Sequence[AnyWorkload], settings: Settings, *, json_path: Path | None, console: Console
) -> dict[str, Any]:
    """Time everything with a line for every row; what was timed is written as it comes."""
    from isotherm.bench.measure import measure
    from isotherm.cli.show.bench import row_line

    is_file = json_path is not None and not is_standard_output(json_path) and open_descriptor(json_path) is None
    num_done = 0

    def on_row(content: dict[str, Any]) -> None:
        nonlocal num_done
        num_done = len(content["rows"])
        console.print(f"{num_done} of {len(workloads)}: {escaped(row_line(content['rows'][-1]))}", highlight=False)
        if is_file:
            give_json(json_path, content)

    with console.status("") as status:

        def on_workload(workload: AnyWorkload) -> None:
            status.update(f"timing {workload.label}")

        try:
            return measure(workloads, settings, planned=_planned, on_workload=on_workload, on_row=on_row)
        except KeyboardInterrupt as error:
            kept = f"{json_path} has the rows above" if is_file and num_done else "Nothing was written"
            raise stopped(f"{kept}.") from error


def _timed_starts(starts: Sequence[StartWorkload], *, repeats: int, console: Console) -> list[dict[str, Any]]:
    from isotherm.bench.start import measure_start

    found = []
    with console.status("") as status:
        for start in starts:
            status.update(f"timing {start.label}")
            found.append(measure_start(start, repeats=repeats))
    return found


def _planned(study: str) -> list[RunSpec]:
    from isotherm.studies import STUDIES
    from isotherm.sweep.rounds import missing_runs

    return missing_runs(STUDIES[study](None).plan().sweeps, {})


def _check_json(path: Path | None) -> None:
    """Refuse a path that cannot be written before anything is timed."""
    check_json(path)
    if path is None or is_standard_output(path) or require_writable(path):
        return
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise UserError(
            f"--json {path}: its folder cannot be written to ({error.strerror}); name a file in another one"
        ) from error


def _check_numbers(options: BenchOptions) -> None:
    repeats, seconds = options.repeats, options.seconds
    if repeats < 1:
        raise UserError(f"--repeats must be at least 1, not {repeats}; 5 or more is better")
    if not 0 < seconds < float("inf"):
        raise UserError(f"--seconds must be a positive number of seconds, not {seconds:g}")


def _checked_kind(device: str) -> str:
    if device not in ("cpu", "cuda"):
        raise UserError(f"--device {device!r} cannot be timed; use 'cpu' or 'cuda'")
    return device
