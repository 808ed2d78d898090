"""`isotherm run`: a study, or one cell of a task."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.cell_options import CellOptions
from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, escaped, give_json, print_notes
from isotherm.cli.options import (
    ComputeOptions,
    DataOption,
    ExecutorOptions,
    JsonOption,
    MinutesOption,
    ResolutionOption,
    TrackOption,
)
from isotherm.core.launch import TORCHRUN, check_launch, follows
from isotherm.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """The options of `isotherm run`."""

    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="A built-in study, a TOML file, or module:function.")
    ] = None
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="FILE", help="Store of the runs; default: <study>.sqlite or <task>.sqlite."),
    ] = None
    data: DataOption = None
    resolution: ResolutionOption = None
    compute: ComputeOptions
    executor: ExecutorOptions
    max_extensions: Annotated[
        int | None,
        typer.Option(
            "--max-extensions",
            metavar="N",
            help="How often a grid is extended at its ends; default: the study's value.",
        ),
    ] = None
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option(
            "--checkpoint-seconds",
            metavar="SECONDS",
            help="Time between checkpoints of a fleet; default: 60; 'inf' for none.",
        ),
    ] = None
    minutes: MinutesOption = None
    track: TrackOption = None
    json_path: JsonOption = None
    cell: CellOptions


@command(RunOptions)
def run(options: RunOptions) -> None:
    """Run what is missing of a study, or of one cell with --task. Ctrl-C and kill are safe: run it again to resume."""
    start = time.perf_counter()  # before anything large is imported
    check_json(options.json_path)
    _check_kind(options)
    _check_trackers(options)
    check_launch(options.executor.executor)
    console = console_for(options.json_path)
    if follows(options.executor.executor):  # another process prints, writes and tells trackers
        console.quiet = True
        options = dataclasses.replace(options, track=None)
    if options.cell.task is not None:
        _run_cell(options, console, start)
    else:
        _run_study(options, console, start)


def _check_kind(options: RunOptions) -> None:
    """Refuse what is neither a study nor a cell, or both."""
    study, cell, workers = options.study, options.cell, options.compute.workers
    remedy = "give STUDY for a study, or --task, --batch-size, --learning-rate and --steps for one cell"
    if study is not None and cell.task is not None:
        raise UserError(f"the study {study!r} and --task {cell.task} are both given; {remedy}")
    if study is not None and (given := [name for name in cell.given() if name != "--seeds"]):
        raise UserError(
            f"{given[0]} applies only with --task; a study sets its own value: leave it out, or change it there"
        )
    if study is not None:
        return
    if cell.task is None:
        raise UserError(f"neither a study nor --task is given; {remedy}")
    if options.resolution is not None:
        raise UserError("--resolution applies to a study; one cell has one learning rate: leave it out")
    cell.check()
    given = options.executor.given()
    if options.executor.executor == TORCHRUN:
        given.remove("--executor")
    if given:
        raise UserError(f"{given[0]}: one cell trains in this process, all seeds as a fleet; leave it out")
    if options.max_extensions is not None:
        raise UserError("--max-extensions applies only to a study: one cell has no grid; leave it out")
    if workers not in (None, 1):
        raise UserError(f"--workers {workers}: one cell trains in one process, all seeds as a fleet; leave it out")


def _check_trackers(options: RunOptions) -> None:
    """Refuse a tracker that cannot be told, before anything is trained."""
    if options.track:
        from isotherm.running.trackers.tracking import check_tracker

        for name in options.track:
            check_tracker(name)


def _run_study(options: RunOptions, console: Console, start: float) -> None:
    from isotherm.analysis.analysis import analyse
    from isotherm.cli.show.left import exit_if_out_of_time, part_content, print_part
    from isotherm.cli.show.study import exit_if_failed, print_results
    from isotherm.cli.stores import default_store, run_command
    from isotherm.cli.training import minutes_left, train_study, with_num_seeds
    from isotherm.report.study.summary import study_summary
    from isotherm.studies.load import load_study

    assert options.study is not None
    study = load_study(options.study, data=options.data, resolution=options.resolution)
    if options.cell.num_seeds is not None:
        study = with_num_seeds(study, options.cell.num_seeds, console)
    if options.max_extensions is not None:
        sweeps = (dataclasses.replace(sweep, max_extensions=options.max_extensions) for sweep in study.sweeps)
        study = dataclasses.replace(study, sweeps=tuple(sweeps))
    print_notes((note for sweep in study.sweeps for note in sweep.task.notes), console)
    store = options.store or default_store(study.name)
    results = train_study(
        study,
        store,
        compute=options.compute,
        executor=options.executor,
        console=console,
        checkpoint_seconds=_checkpoint_seconds(options),
        minutes=minutes_left(options.minutes, since=start),
        track=options.track,
    )
    if options.executor.part is not None:
        print_part(options.executor.part, results.next_round(), store=store, console=console)
        give_json(options.json_path, part_content(options.executor.part, results.next_round()))
        exit_if_failed(results)
        return
    exit_if_out_of_time(results.next_round(), store=store, json_path=options.json_path, console=console)
    analysis = analyse(results, run=run_command(options.study, study.name, store))
    print_results(analysis, console)
    _print_store(store, console)
    give_json(options.json_path, study_summary(analysis, seconds=time.perf_counter() - start))
    exit_if_failed(results)


def _run_cell(options: RunOptions, console: Console, start: float) -> None:
    from isotherm.cli.cell import default_store, prepare_cell, run_cell
    from isotherm.cli.progress import CellProgress
    from isotherm.cli.show.cell import cell_summary, print_cell, stored_sentence
    from isotherm.cli.show.left import exit_if_out_of_time
    from isotherm.cli.show.study import failed_runs
    from isotherm.cli.training import minutes_left, tracked
    from isotherm.core.records import Outcome
    from isotherm.engine.placed_task import checked_device
    from isotherm.running.progress import Several
    from isotherm.tasks.load import load_task

    assert options.cell.task is not None
    checked_device(options.compute.device)  # before data are read
    task = load_task(options.cell.task, data=options.data).with_options(**options.cell.task_options())
    cell = prepare_cell(task, options.cell.settings(), device=options.compute.device)
    store = options.store or default_store(task)
    console.print(cell.line(), highlight=False, markup=False, soft_wrap=not console.is_terminal)
    print_notes(cell.notes, console)

    def on_stored(seeds: list[int]) -> None:
        if seeds:
            console.print(escaped(stored_sentence(seeds, store)), highlight=False)

    trackers = tracked(options.track, study=cell.study.name, store=store)
    with trackers as others, CellProgress(console, metric=cell.plan.metric) as bar:
        results = run_cell(
            cell,
            store,
            fleet_size=options.compute.fleet_size,
            micro_batch_size=options.compute.micro_batch_size,
            checkpoint_seconds=_checkpoint_seconds(options),
            minutes=minutes_left(options.minutes, since=start),
            executor=options.executor.executor,
            progress=Several(bar, *others),
            on_stored=on_stored,
        )
    exit_if_out_of_time(results.left, store=store, json_path=options.json_path, console=console)
    print_cell(results, console)
    _print_store(store, console)
    give_json(options.json_path, cell_summary(results, store=store, seconds=time.perf_counter() - start))
    if failed := results.count(Outcome.FAILED):
        raise failed_runs(failed, {run.result.error for run in results.runs if run.result.error})


def _checkpoint_seconds(options: RunOptions) -> float:
    from isotherm.running.runner import CHECKPOINT_SECONDS

    return CHECKPOINT_SECONDS if options.checkpoint_seconds is None else options.checkpoint_seconds


def _print_store(store: Path, console: Console) -> None:
    console.print(
        f"\nStore: {escaped(str(store))}. Report: isotherm report {escaped(str(store))}",
        highlight=False,
        soft_wrap=True,
    )
