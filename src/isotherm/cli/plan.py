"""`isotherm plan`: what a study would cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, give_json, print_notes
from isotherm.cli.options import ComputeOptions, DataOption, JsonOption, StoreOption, StudyArgument

if TYPE_CHECKING:
    from isotherm.core.records import RunResult


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """The options of `isotherm plan`."""

    study: StudyArgument
    store: StoreOption = None
    data: DataOption = None
    compute: ComputeOptions
    json_path: JsonOption = None


@command(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Show what a study would run and how long that would take. Times a few updates; stores nothing."""
    from isotherm.cli.show.plan import plan_content, print_plan
    from isotherm.cli.stores import default_store
    from isotherm.running.cost import estimate
    from isotherm.running.runner import default_workers
    from isotherm.studies.load import load_study

    console = console_for(options.json_path)
    check_json(options.json_path)
    study, compute = load_study(options.study, data=options.data), options.compute
    print_notes((note for sweep in study.sweeps for note in sweep.task.notes), console)
    store = options.store or default_store(study.name)
    with console.status("timing a few updates at every batch size"):
        cost = estimate(
            study,
            _stored(store),
            device=compute.device,
            workers=compute.workers or default_workers(compute.device),
            fleet_size=compute.fleet_size,
        )
    print_plan(study.name, cost, store=store, console=console)
    give_json(options.json_path, plan_content(study.name, cost))


def _stored(path: Path) -> dict[str, RunResult]:
    from isotherm.running.store import Store

    if not path.exists():
        return {}
    with Store.read(path) as store:
        return store.results()
