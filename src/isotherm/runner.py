"""Run what is missing of a study into a store, round by round, and say how it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from isotherm.executors.local import LocalExecutor
from isotherm.protocol import missing_runs
from isotherm.records import Outcome, RunResult, RunSpec
from isotherm.results import Results, StudyResults
from isotherm.store import Store
from isotherm.study import Study
from isotherm.sweep import Sweep
from isotherm.tasks import Task, check_model

# Fixed cost of an update in examples: for the estimate of the time left, nothing else.
EXAMPLES_PER_UPDATE = 40


class Progress(Protocol):
    """What a run tells while it goes on."""

    def round_started(self, specs: Sequence[RunSpec], *, round_: int) -> None:
        """A round of the protocol begins with these runs; round 0 are the base grids, later ones extensions."""

    def advanced(self, work: float) -> None:
        """So much work was done, in the units of `work_of`."""

    def runs_done(self, results: Sequence[RunResult]) -> None:
        """A fleet's runs are in the store."""


@dataclass(frozen=True, slots=True)
class Silent:
    """Says nothing."""

    def round_started(self, specs: Sequence[RunSpec], *, round_: int) -> None:
        """Say nothing."""

    def advanced(self, work: float) -> None:
        """Say nothing."""

    def runs_done(self, results: Sequence[RunResult]) -> None:
        """Say nothing."""


def work_of(batch_size: int, num_updates: int) -> float:
    """Return the work of so many updates: examples, and a fixed cost per update.

    >>> work_of(60, 10)
    1000
    """
    return num_updates * (batch_size + EXAMPLES_PER_UPDATE)


def run(
    sweep: Sweep,
    *,
    store: str | Store | None = None,
    device: str = "cpu",
    fleet_size: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run what is missing of a sweep and return all its results.

    Args:
        sweep: what to run.
        store: a path or an open store; runs it holds already are not repeated. None keeps results in memory.
        device: "cpu" or "cuda".
        fleet_size: runs per fleet; by default as many as pay.
        progress: told how it goes.
    """
    results = run_study(
        Study.of(sweep), store=store, device=device, fleet_size=fleet_size, progress=progress or Silent()
    )
    return results.sweeps[0]


def run_study(
    study: Study,
    *,
    store: str | Store | None = None,
    device: str = "cpu",
    fleet_size: int | None = None,
    progress: Progress | None = None,
) -> StudyResults:
    """Run what is missing of a study and return all its results; arguments as for `run`."""
    progress = progress or Silent()
    tasks = checked_tasks(study)
    executor = LocalExecutor(
        tasks,
        device=device,
        fleet_size=fleet_size,
        on_steps=lambda batch_size, num: progress.advanced(work_of(batch_size, num)),
    )
    plan = study.plan()
    opened = store if isinstance(store, Store) else Store.in_memory() if store is None else Store.write(store)
    try:
        opened.put_study(plan.name, plan.to_json())
        results = opened.results()
        failed: set[str] = set()  # tried in this call; tried again by the next one
        round_ = 0
        while specs := missing_runs(plan.sweeps, results, skip=failed):
            progress.round_started(specs, round_=round_)
            for fleet in executor.run(specs):
                opened.put(fleet)
                results.update({stored.spec.key: stored.result for stored in fleet})
                failed.update(s.spec.key for s in fleet if s.result.outcome is Outcome.FAILED)
                progress.runs_done([stored.result for stored in fleet])
            round_ += 1
        return StudyResults(plan=plan, by_key=results)
    finally:
        if not isinstance(store, Store):
            opened.close()


def checked_tasks(study: Study) -> dict[tuple[str, str], Task]:
    """Return the study's tasks by identity, each built and tried on a few examples.

    Nothing has been stored yet when this refuses.
    """
    tasks: dict[tuple[str, str], Task] = {}
    seen: set[int] = set()
    for sweep in study.sweeps:
        if id(sweep.task) not in seen:
            check_model(sweep.task)
            seen.add(id(sweep.task))
        task = sweep.prepared_task
        tasks[task.data_id, task.model_id] = task
    return tasks
