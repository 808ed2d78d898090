"""Fleets as jobs of a Slurm cluster, by submitit: the fleets of a round are one job array.

Every fleet is a job, which places the task and compiles its program anew, so a fleet should take minutes: choose its
size accordingly, or start Ray inside one allocation. Jobs and this process speak through a folder on a disk that they
share: the tasks are written there once, a job notes its progress there, and returns its results through submitit.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from isotherm.core.json import exact_json
from isotherm.core.records import RunSpec
from isotherm.errors import UserError
from isotherm.running.executors.dispatch import Dispatcher, Event
from isotherm.running.executors.fleet_queue import Job
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.packing import TaskFile, write_tasks
from isotherm.running.executors.remote import RemoteTrainer
from isotherm.running.store import StoredRun
from isotherm.tasks.task import Task

# Fleets that wait in Slurm's queue or are in training; clusters limit the length of arrays, mostly to 1,001.
MOST_QUEUED = 500
# Between two notes of a job's progress, and between two looks at whether it is asked to stop: soon after it has begun,
# then ever less often.
FIRST_NOTE_SECONDS, NOTE_SECONDS = 0.5, 5.0
_LONGER = 1.25
# How long a file system of several machines may take to show the results of a job that has ended.
RESULT_SECONDS = 15.0


class SlurmExecutor:
    """Trains fleets as Slurm jobs; `contract.Executor` says what that includes.

    Args:
        tasks: by (data_id, model_id), as the specs name them.
        options: of the fleets.
        folder: where jobs and this process meet; on a disk that all machines share.
        device: "cpu" or "cuda".
        num_workers: jobs that run at the same time; by default as many as Slurm lets.
        parameters: of submitit's `SlurmExecutor`, such as partition or time.
        cluster: "slurm", or "local" for jobs that are processes of this machine.
    """

    def __init__(
        self,
        tasks: Mapping[tuple[str, str], Task],
        options: FleetOptions | None = None,
        *,
        folder: Path,
        device: str = "cpu",
        num_workers: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        cluster: str = "slurm",
    ) -> None:
        options = options or FleetOptions()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if device == "cuda" and options.fleet_size is None and not torch.cuda.is_available():
            raise UserError(
                "this machine has no GPU, so it cannot tell how many runs fit into one: give --fleet-size, in Python "
                "fleet_size=; `isotherm plan` on a machine with a GPU says what would be chosen"
            )
        self._planner = LocalExecutor(tasks, options, device=torch.device(device))
        submit = _submitter(folder, cluster=cluster, parallelism=num_workers, parameters=parameters or {})
        results_take = 0.0 if cluster == "local" else RESULT_SECONDS
        self._jobs = _Jobs(
            submit, write_tasks(tasks, folder), options, folder=folder, device=device, results_take=results_take
        )
        self._dispatcher = Dispatcher(self._jobs, options, failed=self._planner.failed)

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield the finished runs of every fleet as soon as it is done; the longest fleets start first.

        Raises:
            StoppedFleet: the deadline stopped fleets; no other is in training any more.
        """
        return self._dispatcher.run(self._planner.fleets(specs))

    def close(self) -> None:
        """Cancel the jobs; of a fleet in training only its checkpoint is left."""
        self._jobs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _submitter(folder: Path, *, cluster: str, parallelism: int | None, parameters: Mapping[str, Any]) -> Any:
    """Return submitit's executor, which knows the parameters of a job."""
    try:
        import submitit
    except ImportError as error:
        raise UserError("the slurm executor needs submitit; install it with pip install 'isotherm[slurm]'") from error
    try:
        executor = submitit.AutoExecutor(folder=folder / "jobs" / "%j", cluster=cluster)
        limit = {} if parallelism is None else {"slurm_array_parallelism": parallelism}
        executor.update_parameters(name="isotherm", **limit, **{f"slurm_{k}": v for k, v in parameters.items()})
    except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
        raise UserError(
            f"jobs cannot be submitted: {str(error).strip().partition(chr(10))[0]}; start this on a login node of a "
            "Slurm cluster, with --slurm KEY=VALUE for parameters that submitit knows, such as partition=gpu"
        ) from error
    return executor


# -- in the job -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetJob:
    """What a job is told: a fleet, where the tasks are, and where to note its progress.

    Args:
        ends_at: when training has to end, by the clock on the wall, which is the one that machines share.
    """

    specs: tuple[RunSpec, ...]
    tasks: TaskFile
    options: FleetOptions
    device: str
    stop: Path
    progress: Path
    ends_at: float

    def __call__(self) -> tuple[Any, Any]:
        """Train the fleet and return what to report of it."""
        trainer = RemoteTrainer(self.tasks.read(), self.options, device=self.device)
        is_over = threading.Event()
        notes = threading.Thread(target=self._note, args=(trainer, is_over), daemon=True)
        notes.start()
        try:
            kind, content, _ = trainer.train(self.specs, self.ends_at - time.time())
        finally:
            is_over.set()
            notes.join()
        return kind, content

    def _note(self, trainer: RemoteTrainer, is_over: threading.Event) -> None:
        num, seconds = 0, FIRST_NOTE_SECONDS
        while not is_over.wait(seconds):
            seconds = min(_LONGER * seconds, NOTE_SECONDS)
            if self.stop.exists():
                trainer.stop()
            num += sum(content[1] for kind, content in trainer.news() if kind == "steps")
            with contextlib.suppress(OSError):
                temporary = self.progress.with_suffix(".tmp")
                temporary.write_text(exact_json({"updates": num}))
                os.replace(temporary, self.progress)


# -- in the driver --------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Submitted:
    """A fleet in Slurm's hands."""

    job: Job
    handle: Any
    progress: Path
    told: int = 0
    ended_at: float | None = None  # without results so far


class _Jobs:
    """The jobs of a cluster, for the dispatcher.

    Args:
        submit: submitit's executor.
        tasks: as they were written for the jobs.
        options: of the fleets.
        folder: where jobs and this process meet.
        device: "cpu" or "cuda".
        results_take: seconds until the results of a job that has ended can be seen here.
    """

    def __init__(
        self, submit: Any, tasks: TaskFile, options: FleetOptions, *, folder: Path, device: str, results_take: float
    ) -> None:
        self._submit, self._tasks, self._options = submit, tasks, options
        self._folder, self._device, self._results_take = folder, device, results_take
        self._stop = folder / f"stop-{os.getpid()}-{time.time_ns()}"
        self._new: list[Job] = []
        self._submitted: list[_Submitted] = []
        self._num = 0

    def has_room(self) -> bool:
        return len(self._new) + len(self._submitted) < MOST_QUEUED

    def start(self, job: Job) -> None:
        self._new.append(job)

    def _submit_new(self) -> None:
        """Submit what was started since the last look as one array."""
        jobs, self._new = self._new, []
        told = [self._fleet_job(job) for job in jobs]
        handles = self._submit.map_array(_train, told) if told else []
        self._submitted += [_Submitted(j, h, t.progress) for j, h, t in zip(jobs, handles, told, strict=True)]

    def _fleet_job(self, job: Job) -> FleetJob:
        self._num += 1
        left = self._options.deadline.seconds_left
        return FleetJob(
            specs=tuple(job.specs),
            tasks=self._tasks,
            options=self._options.for_worker(),
            device=self._device,
            stop=self._stop,
            progress=self._stop.with_name(f"{self._stop.name.replace('stop', 'progress')}-{self._num}"),
            ends_at=time.time() + left if math.isfinite(left) else left,
        )

    def events(self, timeout: float) -> Iterator[Event]:
        self._submit_new()
        time.sleep(timeout)
        for one in list(self._submitted):
            if not one.handle.done():
                yield from self._progress(one)
            elif self._is_over(one):
                self._submitted.remove(one)
                yield from self._ended(one)

    def _is_over(self, one: _Submitted) -> bool:
        """Tell whether a job that has ended has results, or will have none; other jobs are heard meanwhile."""
        one.ended_at = one.ended_at or time.monotonic()
        return one.handle.paths.result_pickle.exists() or time.monotonic() >= one.ended_at + self._results_take

    def _ended(self, one: _Submitted) -> Iterator[Event]:
        one.progress.unlink(missing_ok=True)
        if not one.handle.paths.result_pickle.exists():
            how = f"ended without results{_last_words(one.handle)}"
            yield Event(one.job, "lost", f"its Slurm job {one.handle.job_id} {how}")
            return
        try:
            kind, content = one.handle.result()
        except Exception as error:  # whatever submitit raises for a job that was killed, or that raised
            yield Event(one.job, "lost", f"its Slurm job {one.handle.job_id} ended ({_reason(error)})")
            return
        if kind == "done":
            first = one.job.specs[0]
            total = sum(run.spec.num_steps for run in content)
            yield Event(one.job, "steps", (first.batch_size, total - one.told))
            yield from (Event(one.job, "evaluation", (run.spec, p)) for run in content for p in run.result.curve)
        yield Event(one.job, kind, content)

    def _progress(self, one: _Submitted) -> Iterator[Event]:
        """Tell of updates since the last look; that a job still waits in the queue is no lack of progress."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            num = int(json.loads(one.progress.read_text())["updates"])
            if num > one.told:
                new, one.told = num - one.told, num
                yield Event(one.job, "steps", (one.job.specs[0].batch_size, new))
                return
        if one.handle.state == "PENDING":
            yield Event(one.job, "steps", (one.job.specs[0].batch_size, 0))

    def end(self, job: Job) -> None:
        one = next(one for one in self._submitted if one.job is job)
        self._submitted.remove(one)
        one.handle.cancel(check=False)

    def stop(self) -> None:
        self._stop.touch()
        for one in [one for one in self._submitted if one.handle.state == "PENDING"]:
            one.handle.cancel(check=False)

    def place(self, job: Job) -> str:
        return next((f"Slurm job {one.handle.job_id}" for one in self._submitted if one.job is job), "not submitted")

    def close(self) -> None:
        """Cancel all jobs."""
        for one in self._submitted:
            one.handle.cancel(check=False)
            one.progress.unlink(missing_ok=True)
        self._submitted.clear()
        self._stop.unlink(missing_ok=True)


def _train(job: FleetJob) -> tuple[Any, Any]:
    return job()


def _reason(error: Exception) -> str:
    """Return the first line of what submitit says about a job."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("-")]
    return (lines or [type(error).__name__])[0][:300]


def _last_words(handle: Any) -> str:
    """Return what a job wrote to its standard error last, to go on a sentence; Slurm writes there of lost memory."""
    with contextlib.suppress(OSError, UnicodeError):
        lines = [line.strip() for line in str(handle.stderr() or "").splitlines() if line.strip()]
        return f" ({lines[-1][:300]})" if lines else ""
    return ""
