"""Run what is missing of a study into a store, round by round, and say how it goes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from isotherm.errors import UserError
from isotherm.executors.local import LocalExecutor, work_of
from isotherm.executors.pool import PoolExecutor, can_fork, num_cores
from isotherm.protocol import next_round
from isotherm.records import CurvePoint, Outcome, RunResult, RunSpec
from isotherm.results import Results, StudyResults
from isotherm.store import Store
from isotherm.study import Study
from isotherm.sweep import Sweep
from isotherm.tasks import Task, check_model


class Progress(Protocol):
    """What a run tells while it goes on."""

    def round_started(self, specs: Sequence[RunSpec], *, round_: int) -> None:
        """A round of the protocol begins with these runs; round 0 are the base grids, later ones extensions."""

    def advanced(self, work: float) -> None:
        """So much work was done, in the units of `work_of`."""

    def looked(self, spec: RunSpec, point: CurvePoint) -> None:
        """A run's test set was looked at along the way."""

    def runs_done(self, results: Sequence[RunResult]) -> None:
        """A fleet's runs are in the store."""


@dataclass(frozen=True, slots=True)
class Silent:
    """Says nothing."""

    def round_started(self, specs: Sequence[RunSpec], *, round_: int) -> None:
        """Say nothing."""

    def advanced(self, work: float) -> None:
        """Say nothing."""

    def looked(self, spec: RunSpec, point: CurvePoint) -> None:
        """Say nothing."""

    def runs_done(self, results: Sequence[RunResult]) -> None:
        """Say nothing."""


def run(
    sweep: Sweep,
    *,
    store: str | Path | Store | None = None,
    device: str = "cpu",
    workers: int = 1,
    fleet_size: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run what is missing of a sweep and return all its results.

    Args:
        sweep: what to run.
        store: a path or an open store; runs it holds already are not repeated. None keeps results in memory.
        device: "cpu" or "cuda".
        workers: processes to train in, on the CPU; 1 trains in this one, with PyTorch's threads.
        fleet_size: runs per fleet; by default as many as pay.
        progress: told how it goes.
    """
    study = Study.of(sweep)
    results = run_study(study, store=store, device=device, workers=workers, fleet_size=fleet_size, progress=progress)
    return results.sweeps[0]


def run_study(
    study: Study,
    *,
    store: str | Path | Store | None = None,
    device: str = "cpu",
    workers: int = 1,
    fleet_size: int | None = None,
    progress: Progress | None = None,
) -> StudyResults:
    """Run what is missing of a study and return all its results; arguments as for `run`."""
    told = progress or Silent()
    tasks = checked_tasks(study)
    plan = study.plan()

    def on_steps(batch_size: int, num_updates: int) -> None:
        told.advanced(work_of(batch_size, num_updates))

    listeners: dict[str, Any] = {"on_steps": on_steps, "on_look": told.looked}
    # Workers are forked before the store is opened, so that none of them holds its lock.
    with contextlib.ExitStack() as stack:
        executor: LocalExecutor | PoolExecutor
        if workers == 1:
            executor = LocalExecutor(tasks, device=device, fleet_size=fleet_size, **listeners)
        else:
            _check_pool(device)
            executor = PoolExecutor(tasks, num_workers=workers, fleet_size=fleet_size, **listeners)
            stack.enter_context(executor)
        if isinstance(store, Store):
            opened = store
        else:
            opened = stack.enter_context(Store.in_memory() if store is None else Store.write(store))
        opened.put_study(plan.name, plan.to_json())
        results = opened.results()
        failed: set[str] = set()  # tried in this call; tried again by the next one
        while (found := next_round(plan.sweeps, results, skip=failed))[1]:
            round_, specs = found
            told.round_started(specs, round_=round_)
            for fleet in executor.run(specs):
                opened.put(fleet)
                results.update({stored.spec.key: stored.result for stored in fleet})
                failed.update(s.spec.key for s in fleet if s.result.outcome is Outcome.FAILED)
                told.runs_done([stored.result for stored in fleet])
        return StudyResults(plan=plan, by_key=results)


def default_workers(device: str) -> int:
    """Return how many processes suit a device: one per core on a CPU where they can be forked, else this one."""
    return num_cores() if device == "cpu" and can_fork() else 1


def _check_pool(device: str) -> None:
    if device != "cpu" or not can_fork():
        raise UserError(
            f"several workers were asked for on {device!r} ({sys.platform}); they train on the CPU, on Linux: "
            "use workers=1 here"
        )


def checked_tasks(study: Study) -> dict[tuple[str, str], Task]:
    """Return the study's tasks by identity, each built and tried on a few examples.

    Nothing has been stored yet when this refuses.
    """
    batch_sizes: dict[int, list[int]] = {}
    for sweep in study.sweeps:
        batch_sizes.setdefault(id(sweep.task), []).extend(sweep.batch_sizes)
    tasks: dict[tuple[str, str], Task] = {}
    for sweep in study.sweeps:
        if id(sweep.task) in batch_sizes:
            check_model(sweep.task, batch_sizes.pop(id(sweep.task)))
        task = sweep.prepared_task
        tasks[task.data_id, task.model_id] = task
    return tasks
