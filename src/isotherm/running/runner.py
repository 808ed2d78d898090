"""Run what is missing of a study into a store, round by round, and report progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.core.checks import require_positive
from isotherm.core.records import Outcome, RunResult
from isotherm.engine.deadline import Deadline
from isotherm.errors import UserError
from isotherm.running.executors.checkpoints import CheckpointFolder
from isotherm.running.executors.fleet_times import StoppedFleet, work_of
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.pool import PoolExecutor, can_fork, num_cores
from isotherm.running.heartbeat import Heartbeat
from isotherm.running.progress import Progress, Several
from isotherm.running.store import Store, StoredRun
from isotherm.running.store_file import checked_path
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import Results, StudyResults
from isotherm.sweep.rounds import Round, missing_runs, next_round
from isotherm.sweep.study import PreparedStudy, Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.matrices import check_matrices
from isotherm.tasks.model_check import check_model
from isotherm.tasks.task import Task

# Time between checkpoints of a fleet; shorter fleets have none.
CHECKPOINT_SECONDS = 60.0


def run(
    sweep: Sweep,
    *,
    store: str | Path | Store | None = None,
    device: str = "cpu",
    workers: int = 1,
    fleet_size: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    minutes: float | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run what is missing of a sweep and return all its results.

    Args:
        sweep: what to run.
        store: a path or an open store; runs already in it are not repeated. None keeps results in memory.
        device: "cpu" or "cuda".
        workers: processes that train on the CPU; 1 trains in this process with PyTorch's threads.
        fleet_size: runs per fleet; chosen automatically by default.
        checkpoint_seconds: time between checkpoints of a fleet, from which a killed run resumes; inf for none.
        minutes: time from now on; by default as long as it takes. Nothing is started that can neither finish nor be
            checkpointed in it, and what is stored by then is returned: the same call goes on from there.
        progress: receives progress reports.
    """
    results = run_study(
        Study.of(sweep),
        store=store,
        device=device,
        workers=workers,
        fleet_size=fleet_size,
        checkpoint_seconds=checkpoint_seconds,
        minutes=minutes,
        progress=progress,
    )
    return results.sweeps[0]


def run_study(
    study: Study,
    *,
    store: str | Path | Store | None = None,
    device: str = "cpu",
    workers: int = 1,
    fleet_size: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    minutes: float | None = None,
    progress: Progress | None = None,
) -> StudyResults:
    """Run what is missing of a study and return all its results; arguments as for `run`."""
    told = Several(progress)
    deadline = _deadline(minutes)
    checkpoints = _checkpoints_of(store, seconds=checkpoint_seconds)
    prepared = prepared_study(study)
    plan = prepared.plan

    def on_steps(batch_size: int, num_updates: int) -> None:
        told.advanced(work_of(batch_size, num_updates))

    options = FleetOptions(
        fleet_size=fleet_size,
        checkpoints=checkpoints,
        deadline=deadline,
        on_fleet=told.fleet_started,
        on_steps=on_steps,
        on_evaluation=told.evaluated,
    )
    # Workers are forked before the store is opened, so that none of them holds its lock.
    with contextlib.ExitStack() as stack:
        executor: LocalExecutor | PoolExecutor
        if workers == 1:
            executor = LocalExecutor(prepared.tasks, options, device=device)
        else:
            _check_pool(device)
            executor = PoolExecutor(prepared.tasks, options, num_workers=workers)
            stack.enter_context(executor)
        if isinstance(store, Store):
            opened = store
        else:
            opened = stack.enter_context(Store.in_memory() if store is None else Store.write(store))
        if not opened.is_in_memory:
            told.add(stack.enter_context(Heartbeat(opened.path, num_workers=workers)))
        if num := opened.num_unidentified():
            told.noted(earlier_runs(num))
        for identity in prepared.identities.values():
            opened.put_identity(identity)
        opened.put_study(plan.name, plan.to_json())
        results = opened.results()
        if checkpoints is not None and checkpoints.path.is_dir():
            checkpoints.clean(_wanted_keys(opened, results))
        training = _Training(plan=plan, store=opened, checkpoints=checkpoints, told=told, results=results)
        training.run(executor, minutes=minutes)
        if checkpoints is not None:
            checkpoints.remove_if_empty()
        return StudyResults(plan=plan, by_key=results, provenance=opened.provenance())


@dataclass(kw_only=True, slots=True)
class _Training:
    """The rounds of one call, whose results are added to `results` and to the store."""

    plan: StudyPlan
    store: Store
    checkpoints: CheckpointFolder | None
    told: Progress
    results: dict[str, RunResult]
    failed: set[str] = field(default_factory=set)  # tried in this call; tried again by the next one
    num_stored: int = 0

    def run(self, executor: LocalExecutor | PoolExecutor, *, minutes: float | None) -> None:
        """Train until nothing is missing, or time is up."""
        while (round_ := next_round(self.plan.sweeps, self.results, skip=self.failed)) is not None:
            self.told.round_started(round_)
            try:
                for fleet in executor.run(round_.specs):
                    self.keep(fleet)
            except StoppedFleet as stop:
                self.keep(stop.done)
                if not self.num_stored and not stop.is_saved:
                    raise _too_short(minutes, round_) from None
                return

    def keep(self, fleet: Sequence[StoredRun]) -> None:
        """Store the results of a fleet."""
        if not fleet:
            return
        self.store.put(fleet)
        if self.checkpoints is not None:  # only now: a kill before this line loses nothing
            self.checkpoints.forget({stored.spec.key for stored in fleet})
        self.results.update({stored.spec.key: stored.result for stored in fleet})
        self.failed.update(s.spec.key for s in fleet if s.result.outcome is Outcome.FAILED)
        self.num_stored += len(fleet)
        self.told.runs_done(fleet)


def earlier_runs(num: int) -> str:
    """Return the sentence about runs that an earlier Isotherm stored.

    >>> earlier_runs(1)
    '1 run was stored by an earlier version with different keys; it is kept and reported but not reused'
    """
    runs, kept = ("run was", "it is") if num == 1 else ("runs were", "they are")
    return f"{num:,} {runs} stored by an earlier version with different keys; {kept} kept and reported but not reused"


def _checkpoints_of(store: str | Path | Store | None, *, seconds: float) -> CheckpointFolder | None:
    """Return where fleets are saved; nowhere if the results are not on disk either."""
    if not seconds > 0:
        raise UserError(
            f"checkpoint_seconds={seconds} is not a positive number of seconds; use e.g. 60, or inf for no checkpoints"
        )
    if store is None or (isinstance(store, Store) and store.is_in_memory):
        return None
    return CheckpointFolder.beside(store.path if isinstance(store, Store) else checked_path(store), seconds=seconds)


def _deadline(minutes: float | None) -> Deadline:
    if minutes is None:
        return Deadline()
    require_positive("minutes", minutes)
    return Deadline.after(60.0 * minutes)


def _too_short(minutes: float | None, round_: Round) -> UserError:
    """Return the error of a call that would come to nothing however often it is repeated."""
    spec = round_.specs[0]
    return UserError(
        f"{minutes:g} minutes are too short for one cell: nothing could be finished or saved in a checkpoint, where a "
        f"run is {spec.num_steps:,} updates at B={spec.batch_size}; nothing is lost: give more minutes"
    )


def _wanted_keys(store: Store, results: Mapping[str, RunResult]) -> set[str]:
    """Return the keys of all runs that the next round of any study of the store needs."""
    plans = [StudyPlan.from_json(content) for content in store.studies().values()]
    return {spec.key for plan in plans for spec in missing_runs(plan.sweeps, results)}


def default_workers(device: str) -> int:
    """Return how many processes suit a device: one per core on a CPU where they can be forked, else this one."""
    return num_cores() if device == "cpu" and can_fork() else 1


def _check_pool(device: str) -> None:
    if device != "cpu" or not can_fork():
        raise UserError(
            f"several workers were asked for on {device!r} ({sys.platform}); they train on the CPU, on Linux: "
            "use workers=1 here"
        )


def prepared_study(study: Study) -> PreparedStudy:
    """Return the study with its models tried on a few examples and its tasks identified.

    Nothing has been stored yet when this refuses.
    """
    if not isinstance(study, Study):
        remedy = "run one with isotherm.run(sweep)" if isinstance(study, Sweep) else "give an isotherm.Study"
        raise UserError(f"study is {type(study).__name__}; {remedy}")
    batch_sizes: dict[int, list[int]] = {}
    tasks: dict[int, Task] = {}
    for sweep in study.sweeps:
        tasks[id(sweep.task)] = sweep.task
        batch_sizes.setdefault(id(sweep.task), []).extend(sweep.batch_sizes)
    for key, task in tasks.items():
        check_model(task, batch_sizes[key])
    for sweep in study.sweeps:
        check_matrices(sweep.task, sweep.methods)
    return study.prepare()
