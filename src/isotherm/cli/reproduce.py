"""`isotherm reproduce`: a figure or table of the paper by name."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, errors, escaped, give_json
from isotherm.cli.options import (
    ComputeOptions,
    DataOption,
    FleetSizeOption,
    JsonOption,
    MicroBatchSizeOption,
    MinutesOption,
    ResolutionOption,
    WorkersOption,
)
from isotherm.errors import OutOfTimeError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from isotherm.report.paper.finding import Finding
    from isotherm.studies.paper.definition import PaperObject, Scale
    from isotherm.sweep.rounds import Round
    from isotherm.sweep.study import Study

LIST, ALL, EXPORT = "list", "all", "export"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproduceOptions:
    """The options of `isotherm reproduce`."""

    what: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="An object: figure1 to figure10, table1 to table7, x1; or all, list, export."
        ),
    ]
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="SCALE",
            help="Run smoke (seconds), laptop (minutes), gpu (up to an hour) or paper (its own sizes).",
        ),
    ] = "laptop"
    store: Annotated[
        Path | None, typer.Option("--store", metavar="FILE", help="Store of the runs; default: paper_<scale>.sqlite.")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder of figures and tables; default: <id>_<scale>."),
    ] = None
    commit: Annotated[
        str | None, typer.Option("--commit", metavar="HASH", help="The commit that trained what 'export' writes.")
    ] = None
    results: Annotated[
        Path, typer.Option("--results", metavar="FOLDER", help="Folder of earlier rows that 'list' names.")
    ] = Path("results")
    data: DataOption = None
    num_seeds: Annotated[
        int | None, typer.Option("--seeds", metavar="N", min=1, help="Runs per learning rate; default: the scale's.")
    ] = None
    resolution: ResolutionOption = None
    max_extensions: Annotated[
        int | None,
        typer.Option("--max-extensions", metavar="N", help="How often a grid is extended; default: the scale's."),
    ] = None
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="Train on cpu or cuda; default: cuda for gpu and paper."),
    ] = None
    workers: WorkersOption = None
    fleet_size: FleetSizeOption = None
    micro_batch_size: MicroBatchSizeOption = None
    minutes: MinutesOption = None
    json_path: JsonOption = None


@command(ReproduceOptions)
def reproduce(options: ReproduceOptions) -> None:
    """Run a figure or table of the paper, and show it beside the published numbers; 'list' names them all."""
    check_json(options.json_path)
    console = console_for(options.json_path)
    if options.what == LIST:
        _list(options, console)
    elif options.what == EXPORT:
        _export(options, console)
    else:
        _run(options, console)


def _list(options: ReproduceOptions, console: Console) -> None:
    from isotherm.cli.show.paper import list_content, print_list
    from isotherm.report.paper.page import NEAREST_FIRST
    from isotherm.studies.paper.registry import objects
    from isotherm.studies.paper.shipped import records_in, stored_records
    from isotherm.studies.paper.single_cells import cells_in

    stores = sorted(Path().glob("paper_*.sqlite")) if options.store is None else [options.store]
    records = [*records_in(options.results), *(record for path in stores for record in stored_records(path))]
    records.sort(key=lambda record: NEAREST_FIRST.index(record.scale))
    cells = cells_in(options.results)
    print_list(objects().values(), records, cells, console)
    give_json(options.json_path, list_content(objects().values(), records, cells))


def _export(options: ReproduceOptions, console: Console) -> None:
    """Write the runs of a store into a file for the folder of earlier rows."""
    from isotherm.report.files import write_atomically
    from isotherm.studies.paper.shipped import export, export_bytes

    if options.store is None or options.output is None or options.commit is None:
        raise UserError(
            "export needs a store, a file and the commit that trained it; give e.g. --store paper_laptop.sqlite "
            "--output results/laptop/laptop.json.gz --commit $(git rev-parse --short HEAD)"
        )
    content = export(options.store, commit=options.commit)
    path = write_atomically(options.output, export_bytes(content, options.output))
    console.print(
        f"{content['num_runs']:,} runs of {len(content['studies'])} studies written to {path}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _run(options: ReproduceOptions, console: Console) -> None:
    from isotherm.cli.show.left import exit_if_out_of_time, exit_with_objects_left, objects_left_content
    from isotherm.cli.show.paper import print_finding
    from isotherm.report.paper.finding import Finding
    from isotherm.report.paper.folder import summary, write_object
    from isotherm.studies.paper.registry import find, find_scale, objects

    start = time.perf_counter()
    scale = find_scale(options.scale)
    wanted = list(objects().values()) if options.what == ALL else [find(options.what)]
    store = options.store or Path(f"paper_{scale}.sqlite")
    compute = _compute(options, scale, wanted)
    _check_store(store)
    num_before = _num_stored(store)
    summaries: list[dict[str, Any]] = []
    refused: list[str] = []
    left: dict[str, Round | None] = {}
    for one in wanted:
        try:
            finding = _reproduced(one, scale, options, compute=compute, store=store, console=console, start=start)
        except OutOfTimeError:
            if options.what != ALL or not (left or _num_stored(store) > num_before):
                raise
            left[one.identifier] = None
            continue
        except UserError as error:
            if options.what != ALL:
                raise
            refused.append(str(error))
            continue
        if not isinstance(finding, Finding):
            if options.what != ALL:
                exit_if_out_of_time(finding, store=store, json_path=options.json_path, console=console)
            left[one.identifier] = finding
            continue
        files = write_object(finding, _folder(one, scale, options))
        print_finding(finding, files, console)
        summaries.append(summary(finding))
    content = {**objects_left_content(left), "refused": refused, "objects": summaries}
    give_json(options.json_path, content if options.what == ALL else summaries[0])
    for sentence in refused:
        errors().print(f"[bold red]refused:[/] {escaped(sentence)}", highlight=False, soft_wrap=True)
    exit_with_objects_left(left, store=store, console=console)
    if refused:
        raise UserError(f"{len(refused)} of {len(wanted)} objects were refused, for the reasons above")
    _exit_if_failed(wanted, scale, store)


def _folder(wanted: PaperObject, scale: Scale, options: ReproduceOptions) -> Path:
    """Return where the files of an object go; where all are run, each has a folder in one."""
    base = options.output or Path(f"{options.what if options.what == ALL else wanted.identifier}_{scale}")
    return base / wanted.identifier if options.what == ALL else base


def _reproduced(
    wanted: PaperObject,
    scale: Scale,
    options: ReproduceOptions,
    *,
    compute: ComputeOptions,
    store: Path,
    console: Console,
    start: float,
) -> Finding | Round:
    """Run what is missing of an object and return what its results say; what is left where time was up."""
    from isotherm.cli.training import minutes_left, train_study, with_num_seeds
    from isotherm.report.paper.finding import find

    if not wanted.scales[scale].settings:
        return find(wanted, scale, None)
    minutes_left(options.minutes, since=start)  # before data are loaded for nothing
    study = _changed(wanted.study(scale, data=options.data), options)
    if options.num_seeds is not None:
        study = with_num_seeds(study, options.num_seeds, console)
    left = minutes_left(options.minutes, since=start)
    results = train_study(study, store, compute=compute, console=console, minutes=left)
    if (missing := results.next_round()) is not None:
        return missing
    return find(wanted, scale, results, origin=str(store), run=_command(wanted, scale, options))


def _command(wanted: PaperObject, scale: Scale, options: ReproduceOptions) -> list[str]:
    from isotherm.studies.paper.judged import command as words

    place = [] if options.store is None else ["--store", str(options.store)]
    device = [] if options.device is None else ["--device", options.device]
    return [*words(wanted, scale), *place, *device]


def _changed(study: Study, options: ReproduceOptions) -> Study:
    """Return the study with what the options change in every sweep, except the number of seeds."""
    from typing import cast, get_args

    from isotherm.core.checks import require_choice
    from isotherm.sweep.plan import Resolution

    changes: dict[str, Any] = {}
    if options.max_extensions is not None:
        changes["max_extensions"] = options.max_extensions
    if options.resolution is not None:
        require_choice("resolution", options.resolution, get_args(Resolution))
        changes["resolution"] = cast(Resolution, options.resolution)
    return dataclasses.replace(study, sweeps=tuple(dataclasses.replace(s, **changes) for s in study.sweeps))


def _compute(options: ReproduceOptions, scale: Scale, wanted: Sequence[PaperObject]) -> ComputeOptions:
    """Return where to train: on a GPU at the scales made for one; refuses one that is not there."""
    from isotherm.engine.placed_task import checked_device
    from isotherm.studies.paper.definition import Scale

    is_large = scale in (Scale.GPU, Scale.PAPER) and any(one.scales[scale].settings for one in wanted)
    device = options.device or ("cuda" if is_large else "cpu")
    try:
        checked_device(device)
    except UserError as error:
        if options.device is not None:
            raise
        raise UserError(
            f"the scale {scale} trains on a GPU, and PyTorch sees none here; use --scale laptop, or --device cpu to "
            "train it on the CPU all the same"
        ) from error
    return ComputeOptions(
        device=device,
        workers=options.workers,
        fleet_size=options.fleet_size,
        micro_batch_size=options.micro_batch_size,
    )


def _check_store(path: Path) -> None:
    """Refuse a store that holds other studies alone; the quickstart's runs are shared by objects of the paper."""
    from isotherm.running.store import Store
    from isotherm.studies import STUDIES
    from isotherm.studies.paper.shipped import object_named

    if not path.exists():
        return
    with Store.read(path) as store:
        names = list(store.studies())
    if names and not any(object_named(name) or name in STUDIES for name in names):
        raise UserError(
            f"the store {path} holds the study {names[0]!r} and nothing of the paper; name another file with --store"
        )


def _num_stored(path: Path) -> int:
    """Return how many runs a store holds."""
    from isotherm.running.store import Store

    if not path.exists():
        return 0
    with Store.read(path) as store:
        return len(store.results())


def _exit_if_failed(wanted: Sequence[PaperObject], scale: Scale, store: Path) -> None:
    """End the command with its own exit code where runs failed."""
    from isotherm.cli.show.study import exit_if_failed
    from isotherm.studies.paper.shipped import stored_records

    if not store.exists():
        return
    for record in stored_records(store):
        if record.wanted in wanted and record.scale is scale:
            exit_if_failed(record.results)
