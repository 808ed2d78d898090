"""Fleets in worker processes on the CPU, one per core with one thread each.

Small matmuls gain little from threads and lose much where cores are shared; a process per core keeps every core busy.
Workers are forked, so a user's model builder may be a lambda or a closure. They write nothing but checkpoints: results
are sent to the one process that holds the store.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

import torch

from isotherm.core.checks import is_whole
from isotherm.core.records import RunSpec
from isotherm.errors import UserError
from isotherm.running.executors.fleet_times import StoppedFleet
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.store import StoredRun
from isotherm.tasks.seeding import cuda_is_in_use
from isotherm.tasks.task import Task

logger = logging.getLogger("isotherm")


def can_fork() -> bool:
    """Tell whether workers can be forked here: only on Linux."""
    return sys.platform == "linux"


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PoolExecutor:
    """Like `LocalExecutor`, but with worker processes; a context manager, since the workers must end.

    Args:
        tasks: by (data_id, model_id), as the specs name them.
        options: of the fleets.
        num_workers: number of processes.
    """

    def __init__(
        self, tasks: Mapping[tuple[str, str], Task], options: FleetOptions | None = None, *, num_workers: int
    ) -> None:
        options = options or FleetOptions()
        if not is_whole(num_workers) or num_workers < 1:
            raise UserError(f"workers={num_workers} is not a positive whole number; use at most one worker per core")
        if cuda_is_in_use():
            raise UserError(
                f"workers={num_workers}: this process has used CUDA, so workers cannot be forked from it; "
                "use workers=1, or run from a fresh process"
            )
        self._planner = LocalExecutor(tasks, options, device="cpu", num_workers=num_workers)
        self._listeners: dict[str, Callable[..., None]] = {
            "steps": options.on_steps,
            "evaluation": options.on_evaluation,
        }
        self._on_fleet = options.on_fleet
        self._workers: dict[Connection, BaseProcess] = {}
        self._logged: set[str] = set()
        context = multiprocessing.get_context("fork")
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            others = [*self._workers, ours]
            arguments = (theirs, others, tasks, options)
            worker = context.Process(target=_work, args=arguments, daemon=True)
            worker.start()
            theirs.close()
            self._workers[ours] = worker

    def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
        """Yield the finished runs of every fleet as soon as it is done; the longest fleets start first.

        Raises:
            StoppedFleet: the deadline stopped fleets; no other is in training any more.
        """
        waiting = self._planner.fleets(specs)  # in order of rising work; taken from the end
        busy: set[Connection] = set()
        idle = list(self._workers)
        stops: list[StoppedFleet] = []
        while waiting or busy:
            while waiting and idle:
                connection = idle.pop()
                fleet = waiting.pop()
                self._on_fleet(fleet)
                self._send(connection, fleet)
                busy.add(connection)
            for connection in [c for c in wait(list(busy)) if isinstance(c, Connection)]:
                kind, content = self._receive(connection)
                if kind in self._listeners:
                    self._listeners[kind](*content)
                    continue
                if kind == "warning":
                    self._log(*content)
                    continue
                busy.remove(connection)
                idle.append(connection)
                if kind == "error":
                    raise content
                if kind == "stopped":
                    stops.append(content)
                    waiting.clear()
                    continue
                yield content
        if stops:
            raise StoppedFleet([run for s in stops for run in s.done], is_saved=any(s.is_saved for s in stops))

    def _log(self, kind: str, text: str) -> None:
        """Log a worker's line, unless another worker has said the same or something of its kind."""
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("%s", text)

    def close(self) -> None:
        """End the workers; of a fleet in training only its checkpoint is left."""
        for connection, worker in self._workers.items():
            connection.close()
            worker.terminate()
            worker.join()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, connection: Connection, fleet: list[RunSpec]) -> None:
        try:
            connection.send(fleet)
        except OSError as error:
            raise self._died(connection) from error

    def _receive(self, connection: Connection) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = connection.recv()
        except (EOFError, OSError) as error:
            raise self._died(connection) from error
        return message

    def _died(self, connection: Connection) -> UserError:
        worker = self._workers[connection]
        worker.join(timeout=5.0)
        return UserError(
            f"a worker process ended unexpectedly (exit code {worker.exitcode}; -9 often means that memory ran out); "
            "the stored runs are intact: run again with a smaller --fleet-size or fewer --workers"
        )


class _Forwarder(logging.Handler):
    """Sends a worker's log lines to the parent."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        self._connection.send(("warning", (getattr(record, "kind", record.getMessage()), record.getMessage())))


def _work(
    connection: Connection,
    others: Sequence[Connection],
    tasks: Mapping[tuple[str, str], Task],
    options: FleetOptions,
) -> None:
    """Train fleets until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    for other in others:  # inherited from the parent: while they are open here, its death would go unnoticed
        other.close()
    torch.set_num_threads(1)
    logger.handlers[:] = [_Forwarder(connection)]
    logger.propagate = False
    sending = replace(
        options,
        on_steps=lambda batch_size, num: connection.send(("steps", (batch_size, num))),
        on_evaluation=lambda spec, point: connection.send(("evaluation", (spec, point))),
    )
    executor = LocalExecutor(tasks, sending, device="cpu")
    try:
        while True:
            fleet = connection.recv()
            try:
                message: tuple[str, Any] = ("done", executor.run_one_fleet(fleet))
            except UserError as error:
                message = ("error", error)
            except StoppedFleet as stop:
                message = ("stopped", stop)
            connection.send(message)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
