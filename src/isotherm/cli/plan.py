"""`isotherm plan`: what a study would cost, and what it could see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, give_json, print_notes
from isotherm.cli.options import ComputeOptions, DataOption, JsonOption, ResolutionOption, StoreOption, StudyArgument

if TYPE_CHECKING:
    from isotherm.sweep.results import StudyResults
    from isotherm.sweep.study import Study


DifferenceOption = Annotated[
    float | None,
    typer.Option(
        "--difference",
        metavar="D",
        help="Seeds needed to show a difference of D between batch sizes; points for an accuracy.",
    ),
]
NoiseOption = Annotated[
    float | None,
    typer.Option(
        "--noise",
        metavar="S",
        help="Standard deviation between seeds, points for an accuracy; default: of stored runs.",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """The options of `isotherm plan`."""

    study: StudyArgument
    store: StoreOption = None
    data: DataOption = None
    resolution: ResolutionOption = None
    compute: ComputeOptions
    json_path: JsonOption = None
    difference: DifferenceOption = None
    noise: NoiseOption = None


@command(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Show what a study would run, how long that would take, and what it could see.

    Times a few updates; stores nothing.
    """
    from isotherm.analysis.sweep_power import power
    from isotherm.cli.show.plan import later_notes, plan_content, print_plan
    from isotherm.cli.show.power import power_content, print_power
    from isotherm.cli.stores import default_store
    from isotherm.running.cost import estimate
    from isotherm.running.executors.choice import default_workers
    from isotherm.studies.load import load_study

    console = console_for(options.json_path)
    check_json(options.json_path)
    study, compute = load_study(options.study, data=options.data, resolution=options.resolution), options.compute
    print_notes((note for sweep in study.sweeps for note in sweep.task.notes), console)
    store = options.store or default_store(study.name)
    earlier = _earlier(store)
    found = power(study, results=earlier, noise=options.noise, difference=options.difference)
    with console.status("timing a few updates at every batch size"):
        cost = estimate(
            study,
            {} if earlier is None else earlier.by_key,
            device=compute.device,
            workers=compute.workers or default_workers(compute.device),
            fleet_size=compute.fleet_size,
            micro_batch_size=compute.micro_batch_size,
        )
    print_plan(study.name, cost, store=store, console=console)
    print_notes(later_notes(study), console)
    print_power(found, _test_sets(study), console=console)
    give_json(options.json_path, {**plan_content(study.name, cost), "power": power_content(found)})


def _earlier(path: Path) -> StudyResults | None:
    """Return everything in a store as the results of one study; None where there is no store."""
    from isotherm.running.store import Store
    from isotherm.sweep.plan import StudyPlan
    from isotherm.sweep.results import StudyResults

    if not path.exists():
        return None
    with Store.read(path) as store:
        plans = [StudyPlan.from_json(content) for content in store.studies().values()]
        sweeps = tuple(sweep for plan in plans for sweep in plan.sweeps)
        return StudyResults(plan=StudyPlan(name=path.stem, question="", sweeps=sweeps), by_key=store.results())


def _test_sets(study: Study) -> list[int]:
    """Return the sizes of the test sets whose results are accuracies."""
    tasks = [sweep.task for sweep in study.sweeps]
    return sorted({len(task.test[1]) for task in tasks if task.metric_definition.name == "accuracy"})
