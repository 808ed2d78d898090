"""The command line: parse, call one function, print."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from isotherm.analysis.analysis import Analysis, analyse
from isotherm.cli.bench import bench
from isotherm.cli.cell import (
    CellResults,
    cell_summary,
    cell_tables,
    default_store,
    parsed_options,
    prepare_cell,
    run_cell,
    run_sentences,
)
from isotherm.cli.common import (
    EXIT_FAILED_RUNS,
    EXIT_INTERRUPTED,
    DataOption,
    JsonOption,
    check_json,
    console_for,
    errors,
    escaped,
    give_json,
    guarded,
)
from isotherm.cli.data import app as data_app
from isotherm.cli.diagnose import diagnose_command
from isotherm.cli.progress import CellProgress, RunProgress
from isotherm.cli.theory import theory
from isotherm.core.budget import Budget
from isotherm.core.records import Outcome
from isotherm.engine.placed_task import checked_device
from isotherm.errors import StoreError, UserError
from isotherm.report.study.folder import write_report
from isotherm.report.study.summary import study_summary
from isotherm.report.study.tables import optima_table
from isotherm.running.cost import estimate
from isotherm.running.runner import CHECKPOINT_SECONDS, default_workers, run_study
from isotherm.running.store import Store
from isotherm.running.stored import stored_studies
from isotherm.studies import STUDIES
from isotherm.studies.load import load_study, load_task, study_name
from isotherm.sweep.protocol import all_runs
from isotherm.sweep.results import StudyResults
from isotherm.sweep.study import Study
from isotherm.version import __version__

app = typer.Typer(
    name="isotherm",
    help="Learning rate and batch size for SGD, chosen by measurement.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app)

CELL = "One cell instead of a study"

StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A shipped study's name, a TOML file, or module:function.")
]
OptionalStudyArgument = Annotated[
    str | None, typer.Argument(metavar="STUDY", help="A shipped study's name, a TOML file, or module:function.")
]
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="A store, or a study whose store lies in the current folder.")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="The store; default: <study>.sqlite here.")]
RunStoreOption = Annotated[
    Path | None, typer.Option("--store", help="The store; default: <study>.sqlite or <task>.sqlite here.")
]
DeviceOption = Annotated[str, typer.Option(help="Where to train: cpu or cuda.")]
FleetOption = Annotated[int | None, typer.Option(min=1, help="Runs trained together; default: as many as pay.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes on the CPU; default: one per core.")]
CheckpointOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="Save a fleet in training so often; 'inf': never.")
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", rich_help_panel=CELL, help="A built-in task, or module:function."),
]
BatchSizeOption = Annotated[int | None, typer.Option(rich_help_panel=CELL, help="Examples, or streams, per update.")]
RateOption = Annotated[
    float | None, typer.Option("--effective-learning-rate", rich_help_panel=CELL, help="ε_eff = ε / (1 - m).")
]
StepsOption = Annotated[int | None, typer.Option(rich_help_panel=CELL, help="How many updates; or use --epochs.")]
EpochsOption = Annotated[float | None, typer.Option(rich_help_panel=CELL, help="How many epochs; or use --steps.")]
MomentumOption = Annotated[float | None, typer.Option(rich_help_panel=CELL, help="Heavy ball; default: 0.9.")]
SeedsOption = Annotated[int | None, typer.Option(rich_help_panel=CELL, help="How many runs; default: 1.")]
FirstSeedOption = Annotated[int | None, typer.Option(rich_help_panel=CELL, help="Their first seed; default: 0.")]
L2Option = Annotated[
    float | None, typer.Option("--l2", rich_help_panel=CELL, help="λ of (λ/2)‖w‖²; default: the task's.")
]
ClipOption = Annotated[
    float | None, typer.Option(rich_help_panel=CELL, help="Cut the gradient's norm; 'inf': never; default: the task's.")
]
PrecisionOption = Annotated[
    str | None, typer.Option(rich_help_panel=CELL, help="float32, float64 or mixed; default: the task's.")
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model", metavar="NAME=VALUE", rich_help_panel=CELL, help="An argument of the task's model; may be repeated."
    ),
]
TransformOption = Annotated[
    list[str] | None,
    typer.Option(
        "--transform",
        metavar="NAME=VALUE",
        rich_help_panel=CELL,
        help="A field of the task's augmentation; may be repeated.",
    ),
]
EvaluationsOption = Annotated[
    int | None, typer.Option(rich_help_panel=CELL, help="Looks at the test set along the way; default: 10.")
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for store, report, figures and CSV.")]


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        Console().print(f"isotherm {__version__}", highlight=False)
        raise typer.Exit


@app.command()
@guarded
def quickstart(
    output: OutputOption = Path("quickstart"),
    workers: WorkersOption = None,
    fleet_size: FleetOption = None,
    json_path: JsonOption = None,
) -> None:
    """Run the embedded study on this machine's CPU: tables, verdicts, report.html. About two minutes."""
    console = console_for(json_path)
    start = time.perf_counter()
    check_json(json_path)
    study = STUDIES["quickstart"]()
    path = output / "quickstart.sqlite"
    results = _run(study, path, console=console, device="cpu", workers=workers, fleet_size=fleet_size)
    give_json(json_path, _present(results, output, console=console, start=start))
    _exit_if_failed(results)


@app.command()
@guarded
def plan(
    study: StudyArgument,
    store: StoreOption = None,
    data: DataOption = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    fleet_size: FleetOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show what a study would run and how long it would take; starts nothing and writes no store."""
    console = console_for(json_path)
    check_json(json_path)
    loaded = load_study(study, data=data)
    _print_notes([note for sweep in loaded.sweeps for note in sweep.task.notes], console)
    path = store or _default_store(loaded.name)
    known: dict[str, Any] = {}
    if path.exists():
        with Store.read(path) as opened:
            known = opened.results()
    with console.status("timing a few updates of every shape"):
        cost = estimate(loaded, known, device=device, workers=workers or default_workers(device), fleet_size=fleet_size)
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
    give_json(json_path, content)


@app.command()
@guarded
def run(
    study: OptionalStudyArgument = None,
    task: TaskOption = None,
    batch_size: BatchSizeOption = None,
    effective_learning_rate: RateOption = None,
    steps: StepsOption = None,
    epochs: EpochsOption = None,
    momentum: MomentumOption = None,
    seeds: SeedsOption = None,
    first_seed: FirstSeedOption = None,
    l2: L2Option = None,
    clip_norm: ClipOption = None,
    precision: PrecisionOption = None,
    evaluations: EvaluationsOption = None,
    model: ModelOption = None,
    transform: TransformOption = None,
    store: RunStoreOption = None,
    data: DataOption = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    fleet_size: FleetOption = None,
    checkpoint_seconds: CheckpointOption = CHECKPOINT_SECONDS,
    json_path: JsonOption = None,
) -> None:
    """Run what is missing of a study, or of one cell with --task. Ctrl-C and kill are safe: run it again to go on."""
    console = console_for(json_path)
    check_json(json_path)
    settings = {
        "batch_size": batch_size,
        "effective_learning_rate": effective_learning_rate,
        "steps": steps,
        "epochs": epochs,
        "momentum": momentum,
        "num_seeds": seeds,
        "first_seed": first_seed,
        "l2": l2,
        "clip_norm": clip_norm,
        "precision": precision,
        "num_evaluations": evaluations,
        "model": model,
        "transform": transform,
    }
    given = {name: value for name, value in settings.items() if value not in (None, [])}
    _check_kind(study, task, given, workers)
    common: dict[str, Any] = {"store": store, "data": data, "device": device, "fleet_size": fleet_size}
    common["checkpoint_seconds"] = checkpoint_seconds
    if task is not None:
        _run_cell(task, given, **common, console=console, json_path=json_path)
    else:
        assert study is not None
        _run_study(study, **common, workers=workers, console=console, json_path=json_path)


def _check_kind(study: str | None, task: str | None, given: dict[str, Any], workers: int | None) -> None:
    """Refuse what is neither a study nor a cell, or both."""
    remedy = "give STUDY for a study, or --task, --batch-size, --effective-learning-rate and --steps for one cell"
    if study is not None and task is not None:
        raise UserError(f"the study {study!r} and --task {task} are both given; {remedy}")
    if study is None and task is None:
        raise UserError(f"neither a study nor --task is given; {remedy}")
    if study is not None and given:
        raise UserError(f"{_option(next(iter(given)))} belongs to --task, and a study has its own; leave it out")
    if study is not None:
        return
    for name, example in (("batch_size", "64"), ("effective_learning_rate", "0.5")):
        if name not in given:
            raise UserError(f"--task needs {_option(name)}; add it, e.g. {_option(name)} {example}")
    if ("steps" in given) == ("epochs" in given):
        what = "both are given" if "steps" in given else "neither is given"
        raise UserError(f"--task needs --steps or --epochs, and {what}; keep exactly one")
    if workers not in (None, 1):
        raise UserError(f"--workers {workers}: one cell trains in one process, all seeds as a fleet; leave it out")


def _option(name: str) -> str:
    return "--" + name.removeprefix("num_").replace("_", "-")


def _run_study(
    reference: str,
    *,
    store: Path | None,
    data: Path | None,
    device: str,
    workers: int | None,
    fleet_size: int | None,
    checkpoint_seconds: float,
    console: Console,
    json_path: Path | None,
) -> None:
    start = time.perf_counter()
    loaded = load_study(reference, data=data)
    _print_notes([note for sweep in loaded.sweeps for note in sweep.task.notes], console)
    path = store or _default_store(loaded.name)
    results = _run(
        loaded,
        path,
        console=console,
        device=device,
        workers=workers,
        fleet_size=fleet_size,
        checkpoint_seconds=checkpoint_seconds,
    )
    analysis = analyse(results)
    _print_results(analysis, console)
    console.print(f"\nStore: {path}. Report: isotherm report {path}", highlight=False, soft_wrap=True)
    give_json(json_path, study_summary(analysis, seconds=time.perf_counter() - start))
    _exit_if_failed(results)


def _run_cell(
    reference: str,
    given: dict[str, Any],
    *,
    store: Path | None,
    data: Path | None,
    device: str,
    fleet_size: int | None,
    checkpoint_seconds: float,
    console: Console,
    json_path: Path | None,
) -> None:
    start = time.perf_counter()
    checked_device(device)  # before data are read
    steps, epochs = given.pop("steps", None), given.pop("epochs", None)
    budget = Budget.epochs(epochs) if steps is None else Budget.steps(steps)
    options = {name: parsed_options(given.pop(name, ()), _option(name)) for name in ("model", "transform")}
    task = load_task(reference, data=data).with_options(**options)
    cell = prepare_cell(task, budget=budget, device=device, **given)
    path = store or default_store(task)
    console.print(cell.line(), highlight=False, markup=False, soft_wrap=not console.is_terminal)
    _print_notes(cell.notes, console)

    def tell_stored(seeds: list[int]) -> None:
        if seeds:
            what = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            console.print(f"{what}: stored in {escaped(str(path))}, not run again", highlight=False)

    with CellProgress(console, metric=cell.plan.metric) as progress:
        results = run_cell(
            cell,
            path,
            fleet_size=fleet_size,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
            on_stored=tell_stored,
        )
    _print_cell(results, console)
    console.print(f"\nStore: {path}. Report: isotherm report {path}", highlight=False, soft_wrap=True)
    give_json(json_path, cell_summary(results, store=path, seconds=time.perf_counter() - start))
    if failed := results.count(Outcome.FAILED):
        raise _failed(failed, {run.result.error for run in results.runs if run.result.error})


def _print_cell(results: CellResults, console: Console) -> None:
    console.print()
    for table in cell_tables(results, width=console.width):
        console.print(table)
    for sentence in run_sentences(results):
        console.print(escaped(sentence), highlight=False)


def _print_notes(notes: Sequence[str], console: Console) -> None:
    for note in dict.fromkeys(notes):
        console.print(f"note: {escaped(note)}", highlight=False)


@app.command()
@guarded
def status(store: StoreArgument, json_path: JsonOption = None) -> None:
    """Show how far the studies of a store have come."""
    console = console_for(json_path)
    check_json(json_path)
    content: list[dict[str, Any]] = []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("study", "sweep", "finished", "diverged", "failed", "missing"):
        table.add_column(name, justify="left" if name in ("study", "sweep") else "right", overflow="fold")
    path = _store_path(store)
    for results in stored_studies(path):
        for sweep in results.sweeps:
            counts = sweep.counts()
            momenta = ", ".join(f"{m:g}" for m in sweep.plan.momenta)
            table.add_row(results.plan.name, f"{sweep.plan.name} (m = {momenta})", *(f"{n:,}" for n in counts.values()))
            content.append({"study": results.plan.name, "sweep": sweep.plan.name, "momenta": momenta, **counts})
    console.print(table)
    console.print("Extensions of grids that touch an edge count once their base grids are complete.")
    give_json(json_path, {"store": str(path), "sweeps": content})


@app.command()
@guarded
def report(
    store: StoreArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default: beside the store.")] = None,
    study: Annotated[str | None, typer.Option(help="Which study of the store; default: all.")] = None,
    json_path: JsonOption = None,
) -> None:
    """Write report.html, figures (PNG and PDF) and CSV from a store."""
    console = console_for(json_path)
    check_json(json_path)
    path = _store_path(store)
    found = stored_studies(path, study=study)
    base = output or path.with_suffix("")
    folders = [base] if len(found) == 1 else [base / results.plan.name for results in found]
    summaries = [_present(results, folder, console=console) for results, folder in zip(found, folders, strict=True)]
    give_json(json_path, summaries[0] if len(summaries) == 1 else {"studies": summaries})
    for results in found:
        _exit_if_failed(results)


app.command()(bench)
app.command()(theory)
app.command("diagnose")(diagnose_command)


def _run(
    study: Study,
    path: Path,
    *,
    console: Console,
    device: str,
    workers: int | None,
    fleet_size: int | None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> StudyResults:
    num_workers = default_workers(device) if workers is None else workers
    with RunProgress(console) as progress:
        return run_study(
            study,
            store=path,
            device=device,
            workers=num_workers,
            fleet_size=fleet_size,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
        )


def _present(results: StudyResults, folder: Path, *, console: Console, start: float | None = None) -> dict[str, Any]:
    """Write every file of a report, print tables, verdicts and where to look; return the summary."""
    analysis = analyse(results)
    seconds = None if start is None else time.perf_counter() - start
    files = write_report(analysis, folder, seconds=seconds)
    _print_results(analysis, console)
    console.print(f"\n[bold]Where to look[/] in {folder}/", highlight=False)
    console.print(f"  {files.page.name}: everything in one page, works offline")
    formats = " and ".join(sorted({f.suffix.lstrip(".").upper() for f in files.figures}, reverse=True))
    console.print(f"  figures ({formats}): {', '.join(sorted({f.stem for f in files.figures}))}", highlight=False)
    numbers = sorted(file.name for file in (*files.tables, files.summary))
    console.print(f"  {', '.join(numbers)}: the same as numbers", highlight=False)
    seconds = None if start is None else time.perf_counter() - start
    if seconds is not None:
        console.print(f"  {results.plan.name}.sqlite: every run; this call took {seconds:.0f} s", highlight=False)
    return study_summary(analysis, seconds=seconds)


def _print_results(analysis: Analysis, console: Console) -> None:
    for sweep in analysis.sweeps:
        console.print()
        console.print(optima_table(sweep))
    if analysis.verdicts:
        console.print("\n[bold]Verdicts[/], computed from these runs")
    lines = Table.grid(padding=(0, 2))
    for verdict in analysis.verdicts:
        mark = "[green]holds[/]" if verdict.holds else "[red]does not hold[/]"
        lines.add_row(mark, f"{escaped(verdict.claim)}\n[dim]{escaped(verdict.evidence)}[/]")
    console.print(lines, highlight=False)


def _exit_if_failed(results: StudyResults) -> None:
    failed = results.counts()["failed"]
    if failed:
        own = all_runs(results.plan.sweeps, results.by_key)
        raise _failed(failed, {r.error for k, r in results.by_key.items() if k in own and r.error})


def _failed(num: int, reasons: set[str]) -> typer.Exit:
    """Say that runs failed and why, and return what ends the command."""
    sentence = f"[bold red]{num} run{'s' * (num > 1)} failed[/] and {'is' if num == 1 else 'are'} tried again"
    errors().print(f"{sentence} by the next run: {escaped('; '.join(sorted(reasons)))}")
    return typer.Exit(EXIT_FAILED_RUNS)


def _store_path(reference: str) -> Path:
    """Return the store that is meant: by its path, its folder, or a study whose store lies here."""
    path = Path(reference)
    if not path.exists() and reference in STUDIES:
        path = next(
            (p for p in (Path(reference) / f"{reference}.sqlite", _default_store(reference)) if p.exists()), path
        )
    elif not path.exists() or path.suffix == ".toml":
        path = _default_store(study_name(reference)) if ":" in reference or path.suffix == ".toml" else path
    elif path.is_dir():
        stores = sorted(path.glob("*.sqlite"))
        if len(stores) != 1:
            raise StoreError(f"{path} is a folder with {len(stores)} stores in it; name one file")
        path = stores[0]
    return path


def _default_store(name: str) -> Path:
    return Path(f"{name}.sqlite")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
    handler = RichHandler(console=errors(), show_time=False, show_path=False, show_level=False)
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
