"""What the process that writes a store is doing: a small file beside the store, for whoever watches.

The store holds finished runs alone. The file says which runs are in training, how far they are and how fast it goes.
It is removed when training ends; after a kill it stays, and tells by its process that nobody trains any more. Nothing
depends on it: where it cannot be written, training goes on without.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isotherm.core.json import json_line
from isotherm.core.records import CurvePoint, RunSpec
from isotherm.core.run_keys import cell_id
from isotherm.running.executors.fleet_times import work_of_fleet
from isotherm.running.store import StoredRun
from isotherm.sweep.rounds import Round

SECONDS_BETWEEN = 1.0
MOST_BYTES = 16 * 2**20  # a larger file is none of ours
MOST_RUNS = 5_000  # that are told of one by one
# A process of another machine cannot be looked up; after this long without a word it counts as ended.
SILENT_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInTraining:
    """A run that is being trained: what identifies its cell (`cell_id`), and its curve so far."""

    cell: str
    curve: tuple[CurvePoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What a file says: one process that trains, at the time `told_at`.

    `work` is done of `total_work` in this process, in the units of `work_of`; `running` has every run in
    training by key.
    """

    process: int
    host: str
    num_workers: int
    started_at: float
    told_at: float
    round: str
    num_runs: int
    num_done: int
    work: float
    total_work: float
    running: dict[str, RunInTraining] = field(default_factory=dict)

    @property
    def work_per_second(self) -> float | None:
        """The speed since training began; None before there is any."""
        seconds = self.told_at - self.started_at
        return self.work / seconds if seconds > 0 and self.work > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """The time that the round still needs at this speed; None before a fiftieth of it is done."""
        speed = self.work_per_second
        if speed is None or self.work < 0.02 * self.total_work:
            return None
        return max(0.0, (self.total_work - self.work) / speed)

    @property
    def runs_per_minute(self) -> float | None:
        """Runs stored per minute since training began."""
        seconds = self.told_at - self.started_at
        return 60.0 * self.num_done / seconds if seconds > 0 and self.num_done else None

    def is_alive(self, now: float) -> bool:
        """Tell whether the process still runs, as far as can be known from here."""
        if self.host != socket.gethostname():
            return now - self.told_at < SILENT_SECONDS
        if self.process <= 0:
            return False
        try:
            os.kill(self.process, 0)  # sends nothing
        except PermissionError:  # it is somebody else's
            return True
        except (OSError, OverflowError):
            return False
        return True


class Heartbeat:
    """Writes the file; a context manager, since the file ends with training.

    Args:
        store: path of the store.
        num_workers: processes that train.
        seconds: least time between two writes.
        clock: returns the time.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        num_workers: int = 1,
        seconds: float = SECONDS_BETWEEN,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = heartbeat_path(store)
        self._seconds, self._clock = seconds, clock
        self._num_workers = num_workers
        self._started_at = clock()
        self._written_at = -math.inf
        self._round = "starting"
        self._num_runs = self._num_done = 0
        self._work = self._total_work = 0.0
        self._running: dict[str, tuple[str, list[CurvePoint]]] = {}

    def __enter__(self) -> Self:
        self._tell(now=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def round_started(self, round_: Round) -> None:
        """Note the runs of a round."""
        self._round, self._running = str(round_), {}
        self._num_runs += len(round_.specs)
        self._total_work = self._work + work_of_fleet(round_.specs)
        self._tell(now=True)

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        """Note that these runs are in training."""
        if len(self._running) < MOST_RUNS:
            self._running.update({spec.key: (cell_id(spec).hex(), []) for spec in specs})
        self._tell()

    def advanced(self, work: float) -> None:
        """Note work that is done."""
        self._work += work
        self._tell()

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """Note a point of a run's curve."""
        known = self._running.get(spec.key)
        if known is not None:
            known[1].append(point)
        self._tell()

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        """Note that runs are in the store."""
        self._num_done += len(runs)
        for run in runs:
            self._running.pop(run.spec.key, None)
        self._tell()

    def noted(self, sentence: str) -> None:
        """Leave it to others."""

    def _tell(self, *, now: bool = False) -> None:
        time_ = self._clock()
        if not now and 0 <= time_ - self._written_at < self._seconds:
            return
        self._written_at = time_
        with contextlib.suppress(OSError):  # a full disk is the store's to report
            temporary = self.path.with_name(f"{self.path.name}.tmp")
            temporary.write_text(json_line(self._content(time_)))
            os.replace(temporary, self.path)

    def _content(self, now: float) -> dict[str, Any]:
        running = {
            key: [cell, [[p.step, p.test_loss, p.test_metric] for p in points]]
            for key, (cell, points) in self._running.items()
        }
        return {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "num_workers": self._num_workers,
            "started_at": self._started_at,
            "told_at": now,
            "round": self._round,
            "num_runs": self._num_runs,
            "num_done": self._num_done,
            "work": self._work,
            "total_work": self._total_work,
            "running": running,
        }


def heartbeat_path(store: str | os.PathLike[str]) -> Path:
    """Return where a store's file lies.

    >>> heartbeat_path("runs/mine.sqlite").as_posix()
    'runs/mine.sqlite.training'
    """
    file = Path(store)
    return file.with_name(f"{file.name}.training")


def read_training(store: str | os.PathLike[str]) -> Training | None:
    """Return what the process that writes a store is doing; None where no file says so, or one that cannot be read."""
    path = heartbeat_path(store)
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        content = json.loads(path.read_text())
        running = {str(key): _run(*values) for key, values in content.pop("running").items()}
        numbers = {name: float(content[name]) for name in ("started_at", "told_at", "work", "total_work")}
        counts = {name: int(content[name]) for name in ("process", "num_workers", "num_runs", "num_done")}
        return Training(
            process=counts["process"],
            host=str(content["host"]),
            num_workers=counts["num_workers"],
            started_at=numbers["started_at"],
            told_at=numbers["told_at"],
            round=str(content["round"]),
            num_runs=counts["num_runs"],
            num_done=counts["num_done"],
            work=numbers["work"],
            total_work=numbers["total_work"],
            running=running,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _run(cell: Any, points: Sequence[Any]) -> RunInTraining:
    return RunInTraining(cell=str(cell), curve=tuple(map(_point, points)))


def _point(values: Sequence[Any]) -> CurvePoint:
    step, loss, metric = values
    return CurvePoint(step=int(step), test_loss=_number(loss), test_metric=_number(metric))


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
