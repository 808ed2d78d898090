"""A worker on another machine: what it keeps between fleets, and what it reports of one."""

from __future__ import annotations

import logging
import math
import platform
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from isotherm.core.records import CurvePoint, RunSpec
from isotherm.engine.deadline import Deadline, StopFlag
from isotherm.errors import UserError
from isotherm.running.executors.fleet_times import StoppedFleet
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.packing import PackedTasks
from isotherm.version import __version__

logger = logging.getLogger("isotherm")

# What a worker reports along the way: (kind, content) as in `dispatch.Event`.
News = list[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Countdown(Deadline):
    """A deadline of which another machine says how far away it is: clocks of machines differ."""

    ends: list[float] = field(default_factory=lambda: [math.inf])

    def start(self, seconds: float) -> None:
        """Note how many seconds are left now."""
        self.ends[0] = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Time left; negative afterwards."""
        if self.stop is not None and self.stop.is_set():
            return -math.inf
        return self.ends[0] - time.monotonic()


def outcome_of(executor: LocalExecutor, fleet: Sequence[RunSpec]) -> tuple[Any, Any]:
    """Train a fleet in a worker and return what to report of it.

    Where memory ran out with a single run, the worker is at its end, whoever has filled it: another one tries.
    """
    try:
        runs = executor.run_one_fleet(fleet)
    except UserError as error:
        return "error", error
    except StoppedFleet as stop:
        return "stopped", stop
    if executor.is_out_of_memory:
        return "lost", next(run.result.error for run in runs if run.result.error)
    return "done", runs


class RemoteTrainer:
    """Trains fleets of known tasks; placed tasks, checks and compiled programs stay between them.

    Methods may be called from several threads, `train` from one at a time.

    Args:
        tasks: what is trained.
        options: of the fleets, without listeners.
        device: "cpu" or "cuda".
        num_sharing: workers that share the memory.
    """

    def __init__(self, tasks: PackedTasks, options: FleetOptions, *, device: str, num_sharing: int = 1) -> None:
        self._lock = threading.Lock()
        self._news: News = []
        self._steps: dict[int, int] = {}
        self._flag = StopFlag()
        self._countdown = Countdown(stop=self._flag)
        checkpoints = options.checkpoints
        if checkpoints is not None and not checkpoints.path.parent.is_dir():  # no disk that the machines share
            checkpoints = None
        listening = replace(
            options,
            checkpoints=checkpoints,
            deadline=self._countdown,
            on_steps=self._on_steps,
            on_evaluation=self._on_evaluation,
        )
        logger.addHandler(_Collector(self._add))
        self._executor = LocalExecutor(tasks.tasks, listening, device=device, num_workers=num_sharing)

    def about(self) -> dict[str, str]:
        """Return where this worker is, and the versions that its numbers depend on."""
        return {"host": platform.node(), **versions()}

    def fleets(self, specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
        """Return the runs in fleets that suit this machine."""
        return self._executor.fleets(specs)

    def train(self, specs: Sequence[RunSpec], seconds_left: float) -> tuple[Any, Any, News]:
        """Train a fleet; return what to report of it, and the last news."""
        self._countdown.start(seconds_left)
        kind, content = outcome_of(self._executor, list(specs))
        return kind, content, self.news()

    def news(self) -> News:
        """Return what has happened since this was asked last."""
        with self._lock:
            news, self._news = self._news, []
            steps, self._steps = self._steps, {}
        return [("steps", pair) for pair in steps.items()] + news

    def stop(self) -> None:
        """Let the fleet in training write a checkpoint and end."""
        self._flag.set()

    def _on_steps(self, batch_size: int, num: int) -> None:
        with self._lock:
            self._steps[batch_size] = self._steps.get(batch_size, 0) + num

    def _on_evaluation(self, spec: RunSpec, point: CurvePoint) -> None:
        self._add(("evaluation", (spec, point)))

    def _add(self, what: tuple[str, Any]) -> None:
        with self._lock:
            self._news.append(what)


def versions() -> dict[str, str]:
    """Return the versions that the numbers of this process depend on."""
    return {"isotherm": __version__, "torch": str(torch.__version__)}


class _Collector(logging.Handler):
    """Keeps a worker's log lines for whoever asks."""

    def __init__(self, add: Any) -> None:
        super().__init__(logging.WARNING)
        self._add = add

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self._add(("warning", (getattr(record, "kind", record.getMessage()), record.getMessage())))
