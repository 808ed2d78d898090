"""The command line: parse, call one function, print."""

from __future__ import annotations

import errno
import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

import isotherm
from isotherm import planning
from isotherm.console import RunProgress
from isotherm.errors import StoreError, UserError, nearest
from isotherm.protocol import all_runs
from isotherm.report.draw import save_figures
from isotherm.report.html import write_report
from isotherm.report.summary import json_text, study_summary, write_json
from isotherm.report.tables import optima_table, write_csv
from isotherm.results import StudyResults
from isotherm.runner import default_workers, run_study
from isotherm.store import Store
from isotherm.studies import STUDIES
from isotherm.studies.load import load_study
from isotherm.study import Study, StudyPlan
from isotherm.verdicts import Verdict, judge

app = typer.Typer(
    name="isotherm",
    help="Learning rate and batch size for SGD, chosen by measurement.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

P = ParamSpec("P")
R = TypeVar("R")

StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A shipped study's name, a TOML file, or module:function.")
]
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="A store, or a study whose store lies in the current folder.")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="The store; default: <study>.sqlite here.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="PATH", help="Write the results as JSON too; '-' for standard output.")
]
DeviceOption = Annotated[str, typer.Option(help="Where to train: cpu or cuda.")]
FleetOption = Annotated[int | None, typer.Option(min=1, help="Runs trained together; default: as many as pay.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes on the CPU; default: one per core.")]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for store, report, figures and CSV.")]

EXIT_USER = 2
EXIT_FAILED_RUNS = 3
EXIT_INTERRUPTED = 130


def _guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what a user can mend into one sentence and an exit code."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            _errors().print(f"[bold red]error:[/] {_escaped(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(EXIT_USER) from error
        except KeyboardInterrupt as error:
            _errors().print("[bold]stopped.[/] What was finished is in the store; the same command goes on from there.")
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM, errno.EDQUOT):
                raise
            _errors().print(
                f"[bold red]error:[/] {_escaped(str(error.filename or 'a file'))} cannot be written: {error.strerror}; "
                "what is in the store is intact: make room or choose another folder, and run again",
                soft_wrap=True,
            )
            raise typer.Exit(EXIT_USER) from error

    return guarded


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        Console().print(f"isotherm {isotherm.__version__}", highlight=False)
        raise typer.Exit


@app.command()
@_guarded
def quickstart(
    output: OutputOption = Path("quickstart"),
    workers: WorkersOption = None,
    fleet_size: FleetOption = None,
    json_path: JsonOption = None,
) -> None:
    """Run the embedded study on this machine's CPU: tables, verdicts, report.html. About two minutes."""
    console = _console(json_path)
    start = time.perf_counter()
    _check_json(json_path)
    study = STUDIES["quickstart"]()
    path = output / "quickstart.sqlite"
    results = _run(study, path, console=console, device="cpu", workers=workers, fleet_size=fleet_size)
    _write_json(json_path, _present(results, output, console=console, start=start))
    _exit_if_failed(results)


@app.command()
@_guarded
def plan(
    study: StudyArgument,
    store: StoreOption = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    fleet_size: FleetOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show what a study would run and how long it would take; starts nothing and writes no store."""
    console = _console(json_path)
    _check_json(json_path)
    loaded = load_study(study)
    path = store or _default_store(loaded.name)
    known: dict[str, Any] = {}
    if path.exists():
        with Store.read(path) as opened:
            known = opened.results()
    with console.status("timing a few updates of every shape"):
        cost = planning.estimate(
            loaded, known, device=device, workers=workers or default_workers(device), fleet_size=fleet_size
        )
    console.print(f"[bold]{loaded.name}[/]: {cost.num_runs} runs to do, {cost.num_stored} stored in {path}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("task", "B", "steps", "runs", "fleet", "examples", "TFLOP", "MiB", "seconds"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    for c in sorted(cost.costs, key=lambda c: (c.task, c.num_steps * c.batch_size, c.batch_size)):
        table.add_row(
            c.task,
            *(f"{value:,}" for value in (c.batch_size, c.num_steps, c.num_runs, c.fleet_size)),
            *(f"{c.num_examples:.3g}" if c.num_examples < 1e3 else f"{c.num_examples / 1e3:,.0f}k",),
            *(f"{c.flop / 1e12:.2g}", f"{c.memory_bytes / 2**20:.0f}", f"{c.seconds:.1f}"),
        )
    console.print(table)
    console.print(
        f"In all {cost.num_examples:,} examples, {cost.flop / 1e12:.3g} TFLOP, about {_duration(cost.seconds)} here. "
        "Grids whose optimum lies at an edge will add to it.",
        highlight=False,
    )
    content = {
        "study": loaded.name,
        "num_runs": cost.num_runs,
        "num_stored": cost.num_stored,
        "num_examples": cost.num_examples,
        "flop": cost.flop,
        "memory_bytes": cost.memory_bytes,
        "seconds": cost.seconds,
        "fleets": [{name: getattr(c, name) for name in c.__slots__} for c in cost.costs],
    }
    _write_json(json_path, content)


@app.command()
@_guarded
def run(
    study: StudyArgument,
    store: StoreOption = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    fleet_size: FleetOption = None,
    json_path: JsonOption = None,
) -> None:
    """Run what is missing of a study. Ctrl-C and kill are safe: run it again to go on."""
    console = _console(json_path)
    start = time.perf_counter()
    _check_json(json_path)
    loaded = load_study(study)
    path = store or _default_store(loaded.name)
    results = _run(loaded, path, console=console, device=device, workers=workers, fleet_size=fleet_size)
    verdicts = judge(results)
    _print_results(results, verdicts, console)
    console.print(f"\nStore: {path}. Report: isotherm report {path}", highlight=False)
    _write_json(json_path, study_summary(results, verdicts=verdicts, seconds=time.perf_counter() - start))
    _exit_if_failed(results)


@app.command()
@_guarded
def status(store: StoreArgument, json_path: JsonOption = None) -> None:
    """Show how far the studies of a store have come."""
    console = _console(json_path)
    _check_json(json_path)
    content: list[dict[str, Any]] = []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("study", "sweep", "finished", "diverged", "failed", "missing"):
        table.add_column(name, justify="left" if name in ("study", "sweep") else "right")
    path = _store_path(store)
    for results in _stored(path, study=None):
        for sweep in results.sweeps:
            counts = sweep.counts()
            momenta = ", ".join(f"{m:g}" for m in sweep.plan.momenta)
            table.add_row(results.plan.name, f"{sweep.plan.name} (m = {momenta})", *(f"{n:,}" for n in counts.values()))
            content.append({"study": results.plan.name, "sweep": sweep.plan.name, "momenta": momenta, **counts})
    console.print(table)
    console.print("Extensions of grids that touch an edge count once their base grids are complete.")
    _write_json(json_path, {"store": str(path), "sweeps": content})


@app.command()
@_guarded
def report(
    store: StoreArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default: beside the store.")] = None,
    study: Annotated[str | None, typer.Option(help="Which study of the store; default: all.")] = None,
    json_path: JsonOption = None,
) -> None:
    """Write report.html, figures (PNG and PDF) and CSV from a store."""
    console = _console(json_path)
    _check_json(json_path)
    path = _store_path(store)
    found = _stored(path, study=study)
    base = output or path.with_suffix("")
    folders = [base] if len(found) == 1 else [base / results.plan.name for results in found]
    summaries = [_present(results, folder, console=console) for results, folder in zip(found, folders, strict=True)]
    _write_json(json_path, summaries[0] if len(summaries) == 1 else {"studies": summaries})
    for results in found:
        _exit_if_failed(results)


def _run(
    study: Study, path: Path, *, console: Console, device: str, workers: int | None, fleet_size: int | None
) -> StudyResults:
    num_workers = default_workers(device) if workers is None else workers
    with RunProgress(console) as progress:
        return run_study(
            study, store=path, device=device, workers=num_workers, fleet_size=fleet_size, progress=progress
        )


def _present(results: StudyResults, folder: Path, *, console: Console, start: float | None = None) -> dict[str, Any]:
    """Write every file of a report, print tables, verdicts and where to look; return the summary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be made: {error.strerror}; choose another with --output"
        ) from error
    verdicts = judge(results)
    figures = save_figures(results, folder)
    tables = write_csv(results, folder)
    seconds = None if start is None else time.perf_counter() - start
    page = write_report(results, folder / "report.html", verdicts=verdicts, seconds=seconds)
    _print_results(results, verdicts, console)
    console.print(f"\n[bold]Where to look[/] in {folder}/", highlight=False)
    console.print(f"  {page.name}: everything in one page, works offline")
    formats = " and ".join(sorted({f.suffix.lstrip(".").upper() for f in figures}, reverse=True))
    console.print(f"  figures ({formats}): {', '.join(sorted({f.stem for f in figures}))}", highlight=False)
    console.print(f"  {', '.join(sorted(t.name for t in tables))}: the same as numbers", highlight=False)
    seconds = None if start is None else time.perf_counter() - start
    if seconds is not None:
        console.print(f"  {results.plan.name}.sqlite: every run; this call took {seconds:.0f} s", highlight=False)
    return study_summary(results, verdicts=verdicts, seconds=seconds)


def _print_results(results: StudyResults, verdicts: list[Verdict], console: Console) -> None:
    for sweep in results.sweeps:
        console.print()
        console.print(optima_table(sweep))
    if verdicts:
        console.print("\n[bold]Verdicts[/], computed from these runs")
    lines = Table.grid(padding=(0, 2))
    for verdict in verdicts:
        mark = "[green]holds[/]" if verdict.holds else "[red]does not hold[/]"
        lines.add_row(mark, f"{_escaped(verdict.claim)}\n[dim]{_escaped(verdict.evidence)}[/]")
    console.print(lines, highlight=False)


def _exit_if_failed(results: StudyResults) -> None:
    failed = results.counts()["failed"]
    if failed:
        own = all_runs(results.plan.sweeps, results.by_key)
        reasons = _escaped("; ".join(sorted({r.error for k, r in results.by_key.items() if k in own and r.error})))
        _errors().print(f"[bold red]{failed} runs failed[/] and are tried again by the next run: {reasons}")
        raise typer.Exit(EXIT_FAILED_RUNS)


def _store_path(reference: str) -> Path:
    """Return the store that is meant: by its path, its folder, or a study whose store lies here."""
    path = Path(reference)
    if not path.exists() and reference in STUDIES:
        path = next(
            (p for p in (Path(reference) / f"{reference}.sqlite", _default_store(reference)) if p.exists()), path
        )
    elif not path.exists() or path.suffix == ".toml":
        path = _default_store(load_study(reference).name) if ":" in reference or path.suffix == ".toml" else path
    elif path.is_dir():
        stores = sorted(path.glob("*.sqlite"))
        if len(stores) != 1:
            raise StoreError(f"{path} is a folder with {len(stores)} stores in it; name one file")
        path = stores[0]
    return path


def _stored(path: Path, *, study: str | None) -> list[StudyResults]:
    """Return the studies of a store, one of them or all."""
    with Store.read(path) as store:
        plans = {name: StudyPlan.from_json(content) for name, content in store.studies().items()}
        results = store.results()
    if study is not None and study not in plans:
        raise UserError(f"the store {path} holds no study {study!r}; {nearest(study, plans)}")
    chosen = plans if study is None else {study: plans[study]}
    if not chosen:
        raise UserError(f"the store {path} holds no study yet; run one into it with isotherm run STUDY --store {path}")
    return [StudyResults(plan=plan, by_key=results) for plan in chosen.values()]


def _default_store(name: str) -> Path:
    return Path(f"{name}.sqlite")


def _console(json_path: Path | None) -> Console:
    """Return where people read: standard output, or standard error where that carries JSON."""
    return Console(stderr=json_path == Path("-"))


def _errors() -> Console:
    return Console(stderr=True)


def _check_json(path: Path | None) -> None:
    """Refuse a JSON path that cannot be written before hours are spent."""
    if path is not None and path != Path("-") and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UserError(
            f"--json {path}: it is a folder, or its folder does not exist; name a file in an existing folder"
        )


def _write_json(path: Path | None, content: Any) -> None:
    if path == Path("-"):
        sys.stdout.write(json_text(content))
    elif path is not None:
        write_json(path, content)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


class _OncePerText(logging.Filter):
    """Lets every text through once; fleets of one study have the same things to say."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line is new."""
        is_new = record.getMessage() not in self._seen
        self._seen.add(record.getMessage())
        return is_new


def main() -> None:
    """Entry of the `isotherm` command."""
    handler = RichHandler(console=_errors(), show_time=False, show_path=False, show_level=False)
    handler.addFilter(_OncePerText())
    logging.getLogger("isotherm").addHandler(handler)
    try:
        app()
    except SystemExit as leaving:
        if leaving.code != EXIT_INTERRUPTED:
            raise
        # An interrupt that passed through generated code makes Python end by the signal whatever is caught later.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
