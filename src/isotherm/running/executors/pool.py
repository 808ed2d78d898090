"""Fleets in worker processes on the CPU, one per core with one thread each.

Small matmuls gain little from threads and lose much where cores are shared; a process per core keeps every core busy.
On Linux workers are forked and share the data with this process; elsewhere they are started afresh, each with a copy.
They write nothing but checkpoints: results are sent to the one process that holds the store.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from isotherm.core.checks import is_whole
from isotherm.core.machine import can_fork
from isotherm.core.records import RunSpec
from isotherm.errors import UserError
from isotherm.running.executors.dispatch import Dispatcher, Event
from isotherm.running.executors.fleet_queue import Job
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.packing import PackedTasks
from isotherm.running.executors.remote import outcome_of
from isotherm.running.store import StoredRun
from isotherm.tasks.seeding import cuda_is_in_use
from isotherm.tasks.task import Task

logger = logging.getLogger("isotherm")

# Workers in a row that end before they have said a word: nobody would ever train.
MOST_STILLBORN = 3
_PR_SET_PDEATHSIG = 1  # of prctl, in Linux' headers
_EARLIER_BY = 300  # thousandths of the memory by which a worker seems larger to Linux than it is


class PoolExecutor:
    """Trains fleets in worker processes on this machine; `contract.Executor` says what that includes.

    Args:
        tasks: by (data_id, model_id), as the specs name them.
        options: of the fleets.
        num_workers: number of processes.
        start_method: "fork" or "spawn"; by default what suits the system.
    """

    def __init__(
        self,
        tasks: Mapping[tuple[str, str], Task],
        options: FleetOptions | None = None,
        *,
        num_workers: int,
        start_method: str | None = None,
    ) -> None:
        options = options or FleetOptions()
        if not is_whole(num_workers) or num_workers < 1:
            raise UserError(f"workers={num_workers} is not a positive whole number; use at most one worker per core")
        start_method = start_method or ("fork" if can_fork() else "spawn")
        if start_method == "fork" and cuda_is_in_use():
            raise UserError(
                f"workers={num_workers}: this process has used CUDA, so workers cannot be forked from it; "
                "use workers=1, or run from a fresh process"
            )
        self._planner = LocalExecutor(tasks, options, device="cpu", num_workers=num_workers)
        self._processes = _Processes(
            multiprocessing.get_context(start_method), PackedTasks(tasks), options, num=num_workers
        )
        self._dispatcher = Dispatcher(self._processes, options, failed=self._planner.failed)

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield the finished runs of every fleet as soon as it is done; the longest fleets start first.

        Raises:
            StoppedFleet: the deadline stopped fleets; no other is in training any more.
        """
        return self._dispatcher.run(self._planner.fleets(specs))  # in order of rising work; taken from the end

    @property
    def workers(self) -> list[BaseProcess]:
        """The processes."""
        return [worker.process for worker in self._processes.workers]

    def close(self) -> None:
        """End the workers; of a fleet in training only its checkpoint is left."""
        self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(eq=False, slots=True)
class _Worker:
    """A process, this side of its pipe, and what it is doing."""

    process: BaseProcess
    connection: Connection
    job: Job | None = None
    has_spoken: bool = False


class _Processes:
    """The workers of a pool, for the dispatcher; one that has ended is replaced."""

    def __init__(self, context: BaseContext, tasks: PackedTasks, options: FleetOptions, *, num: int) -> None:
        self._context, self._tasks, self._options = context, tasks, options
        self._stop = _SharedFlag(context)
        self._num_stillborn = 0
        self.workers: list[_Worker] = []
        for _ in range(num):
            self.workers.append(self._started())

    def _started(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        # Inherited by a fork: while they were open there, the death of this process would go unnoticed.
        others = [*(worker.connection for worker in self.workers), ours] if _forks(self._context) else []
        options = replace(self._options.for_worker(), deadline=replace(self._options.deadline, stop=self._stop))
        arguments = (theirs, others, os.getpid(), self._tasks, options)
        process = self._context.Process(target=_work, args=arguments, daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        return _Worker(process, ours)

    # -- what the dispatcher asks for -----------------------------------------------------------------------------

    def has_room(self) -> bool:
        return any(worker.job is None for worker in self.workers)

    def start(self, job: Job) -> None:
        worker = next(worker for worker in self.workers if worker.job is None)
        worker.job = job
        with contextlib.suppress(OSError):  # it has ended: its pipe says so next
            worker.connection.send(job.specs)

    def events(self, timeout: float) -> Iterator[Event]:
        by_connection = {worker.connection: worker for worker in self.workers}
        for connection in wait(list(by_connection), timeout):
            assert isinstance(connection, Connection)
            if (event := self._heard(by_connection[connection])) is not None:
                yield event

    def _heard(self, worker: _Worker) -> Event | None:
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):
            return self._died(worker)
        worker.has_spoken, self._num_stillborn = True, 0
        job = worker.job
        if job is None:  # it has just said that it is there, or warns before its first fleet
            return Event(Job(specs=[]), "warning", content) if kind == "warning" else None
        if kind in ("done", "stopped", "error"):
            worker.job = None
        if kind == "lost":  # by its own account; it ends
            self._replace(worker)
        return None if kind == "ready" else Event(job, kind, content)

    def _died(self, worker: _Worker) -> Event | None:
        worker.process.join(timeout=5.0)
        code, job = worker.process.exitcode, worker.job
        self._num_stillborn += not worker.has_spoken
        if self._num_stillborn > MOST_STILLBORN:
            raise UserError(
                f"worker processes end as soon as they are started (exit code {code}); the stored runs are intact: "
                "use --workers 1, which trains in one process"
            )
        self._replace(worker)
        if job is None:
            return None
        if not worker.has_spoken:
            return Event(job, "unstarted")
        return Event(job, "lost", f"its worker process ended ({_exit_text(code)})")

    def _replace(self, worker: _Worker) -> None:
        _kill(worker)
        self.workers.remove(worker)
        self.workers.append(self._started())

    def end(self, job: Job) -> None:
        self._replace(next(worker for worker in self.workers if worker.job is job))

    def stop(self) -> None:
        self._stop.set()

    def place(self, job: Job) -> str:
        worker = next(worker for worker in self.workers if worker.job is job)
        return f"process {worker.process.pid}"

    def close(self) -> None:
        """End all workers at once."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            _kill(worker)
        self.workers.clear()


def _kill(worker: _Worker) -> None:
    """End a worker, whatever it is doing; its checkpoint is whole at any moment."""
    worker.process.kill()
    worker.process.join()
    worker.connection.close()


def _exit_text(code: int | None) -> str:
    """Return an exit code in words.

    >>> _exit_text(-9), _exit_text(-11), _exit_text(3)
    ('killed by SIGKILL, often because memory ran out', 'killed by SIGSEGV', 'exit code 3')
    """
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + (", often because memory ran out" if -code == signal.SIGKILL else "")


def _forks(context: BaseContext) -> bool:
    return context.get_start_method() == "fork"


class _SharedFlag:
    """A flag that this process sets and its workers see."""

    def __init__(self, context: BaseContext) -> None:
        self._value = context.RawValue("b", 0)

    def set(self) -> None:
        self._value.value = 1

    def is_set(self) -> bool:
        return bool(self._value.value)


# -- in the worker --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sender:
    """The worker's end of the pipe, for several threads."""

    connection: Connection
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, kind: str, content: Any) -> None:
        with self.lock:
            self.connection.send((kind, content))


class _Forwarder(logging.Handler):
    """Sends a worker's log lines to the parent."""

    def __init__(self, send: _Sender) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        self._send("warning", (getattr(record, "kind", record.getMessage()), record.getMessage()))


def _work(
    connection: Connection, others: Sequence[Connection], parent: int, tasks: PackedTasks, options: FleetOptions
) -> None:
    """Train fleets until the parent closes its end."""
    for name in ("SIGINT", "SIGHUP"):  # a terminal sends them to the whole group; the parent decides
        if (number := getattr(signal, name, None)) is not None:  # not every system has both
            signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler is inherited by a fork
    end_with_parent(parent)
    end_before_parent()
    for other in others:
        other.close()
    send = _Sender(connection)
    logger.handlers[:] = [_Forwarder(send)]
    logger.propagate = False
    keep_one_thread()
    sending = replace(
        options,
        on_steps=lambda batch_size, num: send("steps", (batch_size, num)),
        on_evaluation=lambda spec, point: send("evaluation", (spec, point)),
    )
    executor = LocalExecutor(tasks.tasks, sending, device="cpu")
    try:
        send("ready", None)
        while True:
            kind, content = outcome_of(executor, connection.recv())
            send(kind, content)
            if kind == "lost":
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def end_with_parent(parent: int) -> None:
    """Let this process end when the one that started it does, whatever it is doing then."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_before_parent() -> None:
    """Let Linux end this process before the one that holds the store, where the machine's memory runs out."""
    file = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):  # other systems have no such file
        file.write_text(str(min(1_000, int(file.read_text()) + _EARLIER_BY)))


def keep_one_thread() -> None:
    """Compute with one thread, whatever a model asks for.

    A forked process has none of the threads of OpenMP that its parent had, and waits for them forever once more than
    one is asked for.
    """
    torch.set_num_threads(1)

    def refused(nthreads: int) -> None:
        if nthreads != 1:
            text = f"torch.set_num_threads({nthreads}) has no effect in a worker, which computes with one thread"
            logger.warning("%s; use --workers 1 to train in one process with PyTorch's threads", text)

    torch.set_num_threads = refused
