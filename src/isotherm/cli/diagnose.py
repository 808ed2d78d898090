"""`isotherm diagnose`: a recommendation from minutes of short runs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.cell_options import require_one_rate
from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, escaped, give_json, print_notes, print_written, stopped
from isotherm.cli.options import DataOption, DeviceOption, JsonOption, SeedOption, TaskArgument, WorkersOption
from isotherm.cli.schedule_options import ScheduleOptions
from isotherm.core.rates import tidy
from isotherm.core.temperature import bare_learning_rate
from isotherm.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from isotherm.diagnose.diagnosis import Diagnosis
    from isotherm.diagnose.options import DiagnoseOptions
    from isotherm.tasks.task import Task

NOW = "Your current settings"


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnoseCommandOptions:
    """The options of `isotherm diagnose`."""

    task: TaskArgument
    epochs: Annotated[
        float | None,
        typer.Option(
            "--epochs",
            metavar="E",
            help="Epochs of the training you will do. This or --steps is required.",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Updates of the training you will do, at any batch size."),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            metavar="B",
            min=1,
            rich_help_panel=NOW,
            help="Batch size; for a language model, the number of streams.",
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate",
            metavar="RATE",
            rich_help_panel=NOW,
            help="Learning rate you pass to your optimiser; needs --batch-size.",
        ),
    ] = None
    effective_learning_rate: Annotated[
        float | None,
        typer.Option(
            "--effective-learning-rate",
            metavar="RATE",
            rich_help_panel=NOW,
            help="The same as learning rate / (1 - momentum); give one of both.",
        ),
    ] = None
    momentum: Annotated[
        float,
        typer.Option(
            "--momentum",
            metavar="M",
            rich_help_panel=NOW,
            help="Momentum you use or want; plain SGD is always tried too.",
        ),
    ] = 0.9
    minutes: Annotated[float, typer.Option("--minutes", metavar="MINUTES", help="Time to spend, approximately.")] = 5.0
    batch_sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--batch-sizes",
            metavar="B,B,...",
            help="Batch sizes of the short grids; repeatable; default: three that suit the task.",
        ),
    ] = None
    seed: SeedOption = 0
    data: DataOption = None
    device: DeviceOption = "cpu"
    workers: WorkersOption = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the report here; default: <task>_diagnosis.html."),
    ] = None
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False
    schedule_options: ScheduleOptions = field(default_factory=ScheduleOptions)
    json_path: JsonOption = None


@command(DiagnoseCommandOptions)
def diagnose(options: DiagnoseCommandOptions) -> None:
    """Recommend a learning rate and batch size for the training you will do, within minutes, from short runs."""
    from isotherm.cli.show.diagnosis import print_diagnosis
    from isotherm.report.diagnosis.page import write_diagnosis
    from isotherm.report.files import file_stem
    from isotherm.tasks.load import load_task

    console = console_for(options.json_path)
    check_json(options.json_path)
    _check_output(options.output, no_report=options.no_report)
    settings = _settings(options)
    task = load_task(options.task, data=options.data)
    page = None if options.no_report else options.output or Path(f"{file_stem(task.name)}_diagnosis.html")
    print_notes(task.notes, console)
    found = _diagnosed(task, settings, console)
    print_diagnosis(found, console)
    give_json(options.json_path, found.to_json())
    if page is not None:
        write_diagnosis(found, page)
    print_written((page, options.json_path), console)


def _settings(options: DiagnoseCommandOptions) -> DiagnoseOptions:
    """Return what the diagnosis takes; refuses what makes no sense before data are read."""
    from isotherm.diagnose.options import DiagnoseOptions
    from isotherm.engine.placed_task import checked_device
    from isotherm.running.executors.choice import default_workers

    sizes = _parsed_sizes(options.batch_sizes or [])
    device, workers = options.device, options.workers
    if workers not in (None, 1) and checked_device(device).type != "cpu":
        raise UserError(f"--workers {workers}: worker processes train on the CPU, not on {device!r}; leave it out")
    checked_device(device)
    if (options.epochs is None) == (options.steps is None):
        given = "neither was" if options.epochs is None else "both were"
        raise UserError(
            "the best learning rate depends on how long you will train; give --epochs (e.g. --epochs 30) or --steps "
            f"(e.g. --steps 10000); {given} given"
        )
    require_one_rate(options.learning_rate, options.effective_learning_rate)
    for name in ("learning_rate", "effective_learning_rate"):
        if getattr(options, name) is not None and options.batch_size is None:
            option = "--" + name.replace("_", "-")
            raise UserError(f"{option} needs the batch size it is used with; give --batch-size too")
    return DiagnoseOptions(
        epochs=options.epochs,
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=_learning_rate(options),
        momentum=options.momentum,
        schedule=options.schedule_options.made(),
        minutes=options.minutes,
        batch_sizes=sizes,
        seed=options.seed,
        device=device,
        workers=default_workers(device) if workers is None else workers,
    )


def _learning_rate(options: DiagnoseCommandOptions) -> float | None:
    """Return the learning rate in use, as an optimiser gets it."""
    if options.effective_learning_rate is None:
        return options.learning_rate
    return tidy(bare_learning_rate(options.effective_learning_rate, momentum=options.momentum))


def _diagnosed(task: Task, options: DiagnoseOptions, console: Console) -> Diagnosis:
    """Diagnose with a line that says what is being done: a live one on a terminal, one per stage in a log."""
    from isotherm.diagnose.procedure import diagnose

    with console.status("") as status:

        def on_stage(line: str) -> None:
            if console.is_terminal:
                status.update(escaped(line))
            else:
                console.print(escaped(line), highlight=False)

        try:
            return diagnose(task, options, on_stage=on_stage)
        except KeyboardInterrupt as error:
            raise stopped("Nothing was written; a diagnosis starts from the beginning.") from error


def _check_output(path: Path | None, *, no_report: bool) -> None:
    """Refuse a report that cannot be written before minutes are spent."""
    from isotherm.report.files import require_writable

    if no_report and path is not None:
        raise UserError(f"--output {path} and --no-report are both given; leave one out")
    if no_report:
        return
    if path is not None and path.is_dir():
        raise UserError(f"--output {path}: it is a folder; name the HTML file")
    if path is not None and require_writable(path):  # a device such as /dev/null
        return
    page = Path.cwd() / (path or "report.html")  # whatever the task's name is
    folder = next(parent for parent in page.parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"the report cannot be written to {folder}: {error.strerror}; choose another folder with --output, or skip "
            "it with --no-report"
        ) from error


def _parsed_sizes(given: Sequence[str]) -> tuple[int, ...] | None:
    """Return batch sizes from texts such as "8,32"; None where there are none.

    >>> _parsed_sizes(["8,32", "128"]), _parsed_sizes([])
    ((8, 32, 128), None)
    """
    if not given:
        return None
    try:
        return tuple(int(part) for text in given for part in text.split(","))
    except ValueError as error:
        raise UserError(
            f"--batch-sizes {' '.join(given)}: these are not whole numbers; write e.g. --batch-sizes 8,32,128"
        ) from error
