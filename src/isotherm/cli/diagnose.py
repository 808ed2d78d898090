"""`isotherm diagnose`: minutes of short runs, and one answer with its uncertainty."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from isotherm.cli.common import (
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
from isotherm.diagnose import Diagnosis, diagnose
from isotherm.engine.placed_task import checked_device
from isotherm.errors import UserError
from isotherm.report.diagnosis.page import write_diagnosis
from isotherm.report.diagnosis.text import (
    RANGE_SIGN,
    TextTable,
    answer_sentences,
    boundaries_table,
    choices_table,
    cost_sentence,
    current_sentence,
    headline,
    isotherm_sentence,
    probes_table,
    stability_table,
)
from isotherm.report.files import file_stem
from isotherm.running.runner import default_workers
from isotherm.studies.load import load_task
from isotherm.tasks.task import Task

NOW = "What you use now"
HEADER_WIDTH = 9  # headers wrap so that columns stay as narrow as their numbers

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="A built-in task, or module:function.")]
BatchSizeOption = Annotated[
    int | None, typer.Option(min=1, rich_help_panel=NOW, help="Examples, or streams, per update.")
]
RateOption = Annotated[
    float | None,
    typer.Option("--learning-rate", rich_help_panel=NOW, help="As your optimiser gets it; with --batch-size."),
]
MomentumOption = Annotated[
    float, typer.Option(rich_help_panel=NOW, help="Heavy ball, used or wanted; plain SGD is looked at in any case.")
]
MinutesOption = Annotated[float, typer.Option(help="How long it may take, about.")]
SizesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--batch-sizes", metavar="B,B,…", help="Of the short grids; may be repeated. Default: three that suit the task."
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Of all random numbers.")]
DeviceOption = Annotated[str, typer.Option(help="Where to train: cpu or cuda.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Processes on the CPU; default: one per core.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="The report, an HTML file; default: <task>_diagnosis.html here.")
]
NoReportOption = Annotated[bool, typer.Option("--no-report", help="Write no report.")]


@guarded
def diagnose_command(
    task: TaskArgument,
    batch_size: BatchSizeOption = None,
    learning_rate: RateOption = None,
    momentum: MomentumOption = 0.9,
    minutes: MinutesOption = 5.0,
    batch_sizes: SizesOption = None,
    seed: SeedOption = 0,
    data: DataOption = None,
    device: DeviceOption = "cpu",
    workers: WorkersOption = None,
    output: OutputOption = None,
    no_report: NoReportOption = False,
    json_path: JsonOption = None,
) -> None:
    """Find learning rate, batch size and regime of a task in minutes, by short runs, curvature and gradient noise."""
    console = console_for(json_path)
    check_json(json_path)
    _check_output(output, no_report=no_report)
    sizes = _parsed_sizes(batch_sizes or [])
    place = checked_device(device)  # before data are read
    if workers not in (None, 1) and place.type != "cpu":
        raise UserError(f"--workers {workers}: processes train on the CPU, not on {device!r}; leave it out")
    loaded = load_task(task, data=data)
    page = None if no_report else output or Path(f"{file_stem(loaded.name)}_diagnosis.html")
    for note in dict.fromkeys(loaded.notes):
        console.print(f"note: {escaped(note)}", highlight=False)
    found = _diagnosed(
        loaded,
        console,
        batch_size=batch_size,
        learning_rate=learning_rate,
        momentum=momentum,
        minutes=minutes,
        batch_sizes=sizes,
        seed=seed,
        device=device,
        workers=default_workers(device) if workers is None else workers,
    )
    _print(found, console)
    give_json(json_path, found.to_json())
    if page is not None:
        write_diagnosis(found, page)
    for path in (page, json_path):
        if path not in (None, Path("-")):
            console.print(f"Written to {escaped(str(path))}", highlight=False, soft_wrap=True)


def _diagnosed(task: Task, console: Console, **settings: Any) -> Diagnosis:
    """Diagnose with a line that says what is being done: a live one on a terminal, one for every stage in a log."""
    with console.status("") as status:

        def on_stage(line: str) -> None:
            if console.is_terminal:
                status.update(escaped(line))
            else:
                console.print(escaped(line), highlight=False)

        try:
            return diagnose(task, **settings, on_stage=on_stage)
        except KeyboardInterrupt as error:
            errors().print("[bold]stopped.[/] Nothing was written; a diagnosis starts from the beginning.")
            raise typer.Exit(EXIT_INTERRUPTED) from error


def _check_output(path: Path | None, *, no_report: bool) -> None:
    """Refuse a report that cannot be written before minutes are spent."""
    if no_report and path is not None:
        raise UserError(f"--output {path} and --no-report are both given; leave one out")
    if no_report:
        return
    if path is not None and path.is_dir():
        raise UserError(f"--output {path}: it is a folder; name the HTML file")
    page = Path.cwd() / (path or "report.html")  # whatever the task's name is
    folder = next(parent for parent in page.parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"the report cannot be written to {folder}: {error.strerror}; choose another place with --output, or leave "
            "it out with --no-report"
        ) from error


def _parsed_sizes(given: Sequence[str]) -> list[int] | None:
    """Return batch sizes from texts such as "8,32"; None where there are none.

    >>> _parsed_sizes(["8,32", "128"]), _parsed_sizes([])
    ([8, 32, 128], None)
    """
    if not given:
        return None
    try:
        return [int(part) for text in given for part in text.split(",")]
    except ValueError as error:
        raise UserError(
            f"--batch-sizes {' '.join(given)}: these are not whole numbers; write e.g. --batch-sizes 8,32,128"
        ) from error


# -- what is printed ------------------------------------------------------------------------------------------------


def _print(found: Diagnosis, console: Console) -> None:
    _print_answer(found, console)
    if (current := current_sentence(found)) is not None:
        _print_lines(console, "Your setting", [current])
    for table in (choices_table(found), boundaries_table(found)):
        _print_table(table, console)
    _print_sentences(console, [found.agreement, isotherm_sentence(found)])
    for table in (stability_table(found), probes_table(found)):
        _print_table(table, console)
    if found.expectations:
        _print_lines(console, "What to expect", found.expectations)
    if found.missing and found.choice is not None:
        _print_lines(console, "[yellow]Missing[/]", found.missing)
    console.print()
    _print_sentences(console, [cost_sentence(found)])


def _print_answer(found: Diagnosis, console: Console) -> None:
    console.print(f"\n{escaped(found.task)}", highlight=False)
    if found.choice is not None:
        console.print(f"[bold green]{escaped(headline(found))}[/]", highlight=False)
        _print_items(console, answer_sentences(found))
        return
    console.print(f"[bold red]{escaped(headline(found))}.[/] Missing:", highlight=False)
    _print_items(console, found.missing)


def _print_lines(console: Console, title: str, sentences: Sequence[str]) -> None:
    console.print(f"\n[bold]{title}[/]", highlight=False)
    _print_items(console, sentences)


def _print_items(console: Console, sentences: Sequence[str]) -> None:
    lines = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        lines.add_row(" ", escaped(sentence))
    console.print(lines, highlight=False)


def _print_sentences(console: Console, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        console.print(escaped(sentence), highlight=False)


def _print_table(content: TextTable, console: Console) -> None:
    """Print a table unless it is empty; where the terminal is narrow, limits of an interval stand below each other."""
    if not content.rows:
        return
    table = _table(content, width=console.width)
    needed = console.measure(table, options=console.options.update(max_width=10 * console.width)).minimum
    if needed > console.width:
        table = _table(content, width=console.width, range_sign=f"{RANGE_SIGN}\n")
    console.print()
    console.print(table, highlight=False)


def _table(content: TextTable, *, width: int, range_sign: str = RANGE_SIGN) -> Table:
    table = Table(
        title=escaped(content.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        min_width=min(len(content.title), width),  # a title on one line
    )
    for name in content.columns:
        header = "\n".join(textwrap.wrap(name, HEADER_WIDTH, break_long_words=False))
        table.add_column(escaped(header), justify="left" if name in content.words else "right", overflow="fold")
    for place, row in enumerate(content.rows):
        cells = [cell.partition("\n") for cell in row]
        shown = [
            f"{escaped(value)}{gap}[dim]{escaped(limits.replace(RANGE_SIGN, range_sign))}[/]"
            for value, gap, limits in cells
        ]
        table.add_row(*shown, style="bold" if place == content.marked else None)
    return table
