"""Run what is missing of a study into a store, round by round, and report progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.core.checks import require_positive
from isotherm.core.records import Outcome, RunResult
from isotherm.core.run_table import RunTable
from isotherm.core.views import view
from isotherm.engine.deadline import Deadline, Flag
from isotherm.engine.placed_task import check_precision
from isotherm.errors import OutOfTimeError, UserError
from isotherm.running.executors.checkpoints import CheckpointFolder
from isotherm.running.executors.choice import ExecutorChoice
from isotherm.running.executors.contract import Executor
from isotherm.running.executors.fleet_times import StoppedFleet, work_of
from isotherm.running.executors.options import FleetOptions
from isotherm.running.heartbeat import Heartbeat
from isotherm.running.parts import Part, runs_of
from isotherm.running.plans import damage_note, put_plan
from isotherm.running.progress import Progress, Several
from isotherm.running.stopping import Stopping
from isotherm.running.store import Store, StoredRun
from isotherm.running.store_file import checked_path
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import Results, StudyResults
from isotherm.sweep.rounds import Round, missing_runs, next_round
from isotherm.sweep.study import PreparedStudy, Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.matrices import check_matrices
from isotherm.tasks.model_check import check_model
from isotherm.tasks.process_settings import settings_kept
from isotherm.tasks.task import Task

# Time between checkpoints of a fleet; shorter fleets have none.
CHECKPOINT_SECONDS = 60.0


def run(
    sweep: Sweep,
    *,
    store: str | Path | Store | None = None,
    device: str = "cpu",
    workers: int | None = None,
    fleet_size: int | None = None,
    micro_batch_size: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    minutes: float | None = None,
    executor: str | ExecutorChoice | None = None,
    run_timeout: float | None = None,
    part: Part | None = None,
    known: Sequence[str | Path] = (),
    progress: Progress | bool | None = True,
) -> Results:
    """Run what is missing of a sweep and return all its results.

    Args:
        sweep: what to run.
        store: a path or an open store; runs already in it are not repeated. None keeps results in memory.
        device: "cpu" or "cuda".
        workers: processes that train; 1, the default without an executor, trains in this process with PyTorch's
            threads.
        fleet_size: runs per fleet; chosen automatically by default.
        micro_batch_size: most examples of an update that are computed at once; gradients of larger batches are summed
            over micro-batches. By default, as many as memory holds.
        checkpoint_seconds: time between checkpoints of a fleet, from which a killed run resumes; inf for none.
        minutes: time from now on; by default as long as it takes. Nothing is started that can neither finish nor be
            checkpointed in it, and what is stored by then is returned: the same call goes on from there.
        executor: "local" in this process, "pool" in processes on this machine, which is the default for several
            workers, "ray", "slurm", or "torchrun", where torchrun's processes share every run and all but the first end
            here with it; or an `ExecutorChoice`, which says more.
        run_timeout: minutes without an update after which a worker is ended and its fleet tried again, and then its
            runs one by one; by default a fleet without progress is only warned of.
        part: the share of every round that this call runs; others run the rest into stores of their own.
        known: stores whose results count as known, such as those of all parts so far, merged.
        progress: receives progress reports; by default they are shown in a terminal and in a notebook, with False
            nowhere.
    """
    results = run_study(
        Study.of(sweep),
        store=store,
        device=device,
        workers=workers,
        fleet_size=fleet_size,
        micro_batch_size=micro_batch_size,
        checkpoint_seconds=checkpoint_seconds,
        minutes=minutes,
        executor=executor,
        run_timeout=run_timeout,
        part=part,
        known=known,
        progress=progress,
    )
    return results.sweeps[0]


def run_study(
    study: Study,
    *,
    store: str | Path | Store | None = None,
    device: str = "cpu",
    workers: int | None = None,
    fleet_size: int | None = None,
    micro_batch_size: int | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    minutes: float | None = None,
    executor: str | ExecutorChoice | None = None,
    run_timeout: float | None = None,
    part: Part | None = None,
    known: Sequence[str | Path] = (),
    progress: Progress | bool | None = True,
) -> StudyResults:
    """Run what is missing of a study and return all its results; arguments as for `run`.

    Raises:
        Stopped: a signal asked for it; what was finished is stored, and the same call goes on from there.
    """
    told = Several(None if isinstance(progress, bool) else progress)
    stopping = Stopping()
    deadline = _deadline(minutes, stopping.flag)
    store = _fixed(store)
    checkpoints = _checkpoints_of(store, seconds=checkpoint_seconds)
    choice = executor
    if not isinstance(choice, ExecutorChoice):
        choice = ExecutorChoice(name=choice, device=device, workers=workers)
    with working_folder_kept(), contextlib.ExitStack() as stack:
        prepared = prepared_study(study)
        plan = prepared.plan
        for sweep in plan.sweeps:
            check_precision(sweep.precision, choice.device)

        def on_steps(batch_size: int, num_updates: int) -> None:
            told.advanced(work_of(batch_size, num_updates))

        options = FleetOptions(
            fleet_size=fleet_size,
            micro_batch_size=micro_batch_size,
            checkpoints=checkpoints,
            deadline=deadline,
            run_timeout=None if run_timeout is None else 60.0 * run_timeout,
            on_fleet=told.fleet_started,
            on_steps=on_steps,
            on_evaluation=told.evaluated,
        )
        # Workers are forked before the store is opened, so that none of them holds its lock.
        workforce = stack.enter_context(choice.executor(prepared.tasks, options, folder=_jobs_folder(store)))
        if progress is True:
            told.add(stack.enter_context(view("progress")()))
        if isinstance(store, Store):
            opened = store
        else:
            opened = stack.enter_context(Store.in_memory() if store is None else Store.write(store))
        if not opened.is_in_memory:
            told.add(stack.enter_context(Heartbeat(opened.path, num_workers=choice.workers or 1)))
        if num := opened.num_unidentified():
            told.noted(earlier_runs(num))
        for identity in prepared.identities.values():
            opened.put_identity(identity)
        saved = checkpoints.saved_runs() if checkpoints is not None else frozenset()
        for note in (damage_note(opened, prepared.tasks), put_plan(opened, plan, saved=saved)):
            if note is not None:
                told.noted(note)
        results = opened.table(prepared.tasks)
        done = set(results) - results.failed_keys() if known else set()
        results.add((spec, result) for spec, result in runs_of(known) if spec.key not in done)
        if checkpoints is not None and checkpoints.path.is_dir():
            checkpoints.clean(_wanted_keys(opened, results))
        training = _Training(plan=plan, store=opened, checkpoints=checkpoints, told=told, results=results, part=part)
        with stopping:
            training.run(workforce, minutes=minutes, stopping=stopping)
        if checkpoints is not None:
            checkpoints.remove_if_empty()
        opened.check_file()
        return StudyResults(plan=plan, by_key=results.everything() if opened.is_in_memory else results)


@dataclass(kw_only=True, slots=True)
class _Training:
    """The rounds of one call, whose results are added to `results` and to the store."""

    plan: StudyPlan
    store: Store
    checkpoints: CheckpointFolder | None
    told: Progress
    results: RunTable
    part: Part | None = None
    failed: set[str] = field(default_factory=set)  # tried in this call; tried again by the next one
    num_stored: int = 0

    def run(self, executor: Executor, *, minutes: float | None, stopping: Stopping) -> None:
        """Train until nothing is missing, time is up, or a signal asks for an end."""
        while (round_ := self.next_round()) is not None:
            self.told.round_started(round_)
            try:
                for fleet in executor.run(round_.specs):
                    self.keep(fleet)
            except StoppedFleet as stop:
                self.keep(stop.done)
                stopping.raise_if_asked()
                if not self.num_stored and not stop.is_saved:
                    raise _too_short(minutes, round_) from None
                return

    def next_round(self) -> Round | None:
        """Return what is to be run next; of a part, its share of the round, and None once that is done."""
        found = next_round(self.plan.sweeps, self.results, skip=self.failed)
        return found if found is None or self.part is None else self.part.of_round(found)

    def keep(self, fleet: Sequence[StoredRun]) -> None:
        """Store the results of a fleet."""
        if not fleet:
            return
        self.store.put(fleet)
        if self.checkpoints is not None:  # only now: a kill before this line loses nothing; what failed is tried again
            self.checkpoints.forget({s.spec.key for s in fleet if s.result.outcome is not Outcome.FAILED})
        self.results.add((stored.spec, stored.result) for stored in fleet)
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


def _jobs_folder(store: Path | Store | None) -> Path | None:
    """Return where the jobs of a cluster and this process meet: beside the store."""
    if store is None or (isinstance(store, Store) and store.is_in_memory):
        return None
    file = Path(store.path if isinstance(store, Store) else store).absolute()
    return file.with_name(f"{file.name}.slurm")


def _fixed(store: str | Path | Store | None) -> Path | Store | None:
    """Return a store whose path means the same whatever folder a model changes to."""
    return store if store is None or isinstance(store, Store) else checked_path(store).absolute()


@contextlib.contextmanager
def working_folder_kept() -> Iterator[None]:
    """Return to the present folder afterwards, wherever a user's code has gone."""
    folder = os.getcwd()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it may have been removed
            os.chdir(folder)


def _deadline(minutes: float | None, stop: Flag | None = None) -> Deadline:
    if minutes is None:
        return Deadline(stop=stop)
    require_positive("minutes", minutes)
    return Deadline.after(60.0 * minutes, stop=stop)


def _too_short(minutes: float | None, round_: Round) -> OutOfTimeError:
    """Return the error of a call that would come to nothing however often it is repeated."""
    spec = round_.specs[0]
    assert minutes is not None
    return OutOfTimeError(
        f"{time_words(minutes)} are too short for one cell: nothing could be finished or saved in a checkpoint, where "
        f"a run is {spec.num_steps:,} updates at B={spec.batch_size}; nothing is lost: give more minutes"
    )


def time_words(minutes: float) -> str:
    """Return a limit as it is told: what is left of a longer one has many digits.

    >>> time_words(0.5), time_words(125.0), time_words(0.0228824)
    ('0.5 minutes', '125 minutes', '1.4 seconds')
    """
    return f"{60 * minutes:.2g} seconds" if minutes < 0.1 else f"{round(minutes, 1):g} minutes"


def _wanted_keys(store: Store, results: Mapping[str, RunResult]) -> set[str]:
    """Return the keys of all runs that the next round of any study of the store needs."""
    plans = [StudyPlan.from_json(content) for content in store.studies().values()]
    return {spec.key for plan in plans for spec in missing_runs(plan.sweeps, results)}


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
        with settings_kept(f"task {task.name!r}"):
            check_model(task, batch_sizes[key])
    with settings_kept("a model of this study"):
        for sweep in study.sweeps:
            check_matrices(sweep.task, sweep.methods)
        return study.prepare()
