"""How long fleets take: the one clock of cost estimates, benchmarks and diagnoses.

A fleet is trained for real and stopped once enough is known. It is timed in laps: a lap is one window of updates of all
runs that are trained at the same time.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isotherm.core.records import RunSpec
from isotherm.engine.fleet import run_fleet
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import PlacedTask
from isotherm.engine.stack.plan import UPDATES_PER_WINDOW
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.pool import PoolExecutor
from isotherm.tasks.task import Task

Clock = Callable[[], float]
# Handed the speed of the last time window (None before the first), returns the seconds of the next one, None to stop.
Turn = Callable[[float | None], float | None]

# Of this thread: nanoseconds that it ran and that it waited, and how often it ran.
_SCHEDULED = Path("/proc/thread-self/schedstat")

# Messages of every worker that pass before a time window, and that it has at least.
WARM_MESSAGES, WINDOW_MESSAGES = 2, 5


def waited_seconds() -> float | None:
    """Return the seconds for which this thread was ready to compute and other programs had the processor.

    None where the system does not tell: everywhere but on Linux.
    """
    try:
        return int(_SCHEDULED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def own_seconds() -> float:
    """Return the time without what this thread waited for the processor; reading, sleeping and a GPU's work count."""
    while True:
        waited, now = waited_seconds() or 0.0, time.perf_counter()
        if (waited_seconds() or 0.0) == waited:  # else this thread lost the processor between the two readings
            return now - waited


class Enough(Exception):
    """Raised by a listener to stop a fleet that is only timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """One window of updates.

    Args:
        seconds: since the end of the lap or evaluation before.
        num_runs: runs that are trained at the same time: all of a fleet, or one where they are trained one by one.
        num_updates: of each of them.
    """

    seconds: float
    num_runs: int
    num_updates: float

    @property
    def run_updates(self) -> float:
        """Updates of all these runs together."""
        return self.num_runs * self.num_updates


class LapListener:
    """Listens to a fleet and cuts its progress into laps and evaluations.

    Args:
        num_runs: runs of the fleet.
        updates_per_window: updates of a run that make a lap.
        has_own_streams: the fleet's runs report one after another, but are trained at the same time.
        on_lap: told every lap.
        on_evaluation: told the seconds of every evaluation of the runs that are trained at the same time.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        *,
        num_runs: int,
        updates_per_window: int,
        has_own_streams: bool,
        on_lap: Callable[[Lap], None],
        on_evaluation: Callable[[float], None],
        clock: Clock,
    ) -> None:
        self._num_runs, self._updates_per_window = num_runs, updates_per_window
        self._has_own_streams = has_own_streams
        self._on_lap, self._on_evaluation, self._clock = on_lap, on_evaluation, clock
        self._last = clock()
        self._num_together = 0  # not known before the first update
        self._run_updates = 0
        self._lap_seconds = self._evaluation_seconds = 0.0

    def updated(self, num: int) -> None:
        """Note that `num` run-updates were made."""
        self._lap_seconds += self._elapsed()
        self._run_updates += num
        if not self._num_together:
            self._num_together = 1 if self._is_one_by_one(num) else self._num_runs
        updates_of_lap = 1 if self._num_together < self._num_runs else self._updates_per_window
        if self._run_updates < self._num_together * updates_of_lap:
            return
        num_updates = self._run_updates / self._num_together
        lap = Lap(seconds=self._lap_seconds, num_runs=self._num_together, num_updates=num_updates)
        self._lap_seconds, self._run_updates = 0.0, 0
        self._on_lap(lap)

    def evaluated(self, index: int) -> None:
        """Note that a run was evaluated."""
        self._evaluation_seconds += self._elapsed()
        if index < self._num_together - 1:  # on streams of their own, runs are evaluated one after another
            return
        seconds, self._evaluation_seconds = self._evaluation_seconds, 0.0
        self._on_evaluation(seconds)

    def _is_one_by_one(self, num: int) -> bool:
        """Tell whether runs are trained one after another; then every single update is reported."""
        return num == 1 and not self._has_own_streams

    def _elapsed(self) -> float:
        before, self._last = self._last, self._clock()
        return self._last - before


class FleetTimer:
    """Trains a fleet in this process and times it.

    Args:
        placed: the task on a device.
        specs: the runs; they must be longer than what is timed.
        checks: results of earlier checks of the task.
        updates_per_window: updates of a lap.
        micro_batch_size: examples of an update that are computed at once; all by default.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        placed: PlacedTask,
        specs: Sequence[RunSpec],
        *,
        checks: FleetChecks | None = None,
        updates_per_window: int = UPDATES_PER_WINDOW,
        micro_batch_size: int | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._placed, self._specs, self._clock = placed, specs, clock
        self._checks = FleetChecks() if checks is None else checks
        self._updates_per_window, self._micro_batch_size = updates_per_window, micro_batch_size

    def run(self, on_lap: Callable[[Lap], None], *, on_evaluation: Callable[[float], None] = lambda _: None) -> bool:
        """Train until a listener raises `Enough`; return False if the fleet ended before."""
        listener = LapListener(
            num_runs=len(self._specs),
            updates_per_window=self._updates_per_window,
            has_own_streams=self._checks.wants_own_streams(self._placed, self._specs[0].batch_size),
            on_lap=on_lap,
            on_evaluation=on_evaluation,
            clock=self._clock,
        )
        try:
            run_fleet(
                self._placed,
                self._specs,
                on_steps=listener.updated,
                on_evaluation=lambda index, _: listener.evaluated(index),
                checks=self._checks,
                updates_per_window=self._updates_per_window,
                micro_batch_size=self._micro_batch_size,
            )
        except Enough:
            return True
        return False

    def speeds_in_turn(self, turn: Turn) -> None:
        """Tell the fleet's run-updates per second in one time window after another.

        The first lap compiles and records, the one after every call of `turn` warms up; neither counts. While `turn`
        does not return, the fleet rests.
        """
        if not self.run(_TimeWindows(turn)):
            raise RuntimeError("the fleet ended before the time window did")

    def speeds(self, *, repeats: int, seconds: float) -> list[float]:
        """Return run-updates per second in several time windows of `seconds` seconds."""
        found: list[float] = []

        def turn(speed: float | None) -> float | None:
            if speed is not None:
                found.append(speed)
            return seconds if len(found) < repeats else None

        self.speeds_in_turn(turn)
        return found


class _TimeWindows:
    """Joins laps into time windows that are as long as asked for."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._wanted: float | None = None
        self._is_warm = False
        self._seconds = self._run_updates = 0.0

    def __call__(self, lap: Lap) -> None:
        if self._wanted is None:
            self._ask(None)
        elif not self._is_warm:
            self._is_warm = True
        else:
            self._seconds += lap.seconds
            self._run_updates += lap.run_updates
            if self._seconds >= self._wanted:
                self._ask(self._run_updates / self._seconds)

    def _ask(self, speed: float | None) -> None:
        self._is_warm, self._seconds, self._run_updates = False, 0.0, 0.0
        self._wanted = self._turn(speed)
        if self._wanted is None:
            raise Enough


class Staircase:
    """Run-updates as several workers report them, each at its own pace, and the speed in a time window of them.

    The speed is the slope of the straight line through (time, run-updates so far): a window from message to message
    would be wrong by up to one message of every worker.

    Args:
        num_workers: how many report.
        seconds: least length of the time window.
        clock: returns the time in seconds.
    """

    def __init__(self, *, num_workers: int, seconds: float, clock: Clock = time.perf_counter) -> None:
        self._num_workers, self._seconds, self._clock = num_workers, seconds, clock
        self._num_messages = self._total = 0
        self._points: list[tuple[float, int]] = []

    def told(self, num: int) -> bool:
        """Note a message of a worker; return whether the time window is complete."""
        self._num_messages += 1
        self._total += num
        if self._num_messages <= WARM_MESSAGES * self._num_workers:
            return False
        self._points.append((self._clock(), self._total))
        elapsed = self._points[-1][0] - self._points[0][0]
        return len(self._points) > WINDOW_MESSAGES * self._num_workers and elapsed >= self._seconds

    @property
    def speed(self) -> float:
        """Run-updates per second."""
        times, totals = zip(*self._points, strict=True)
        return float(statistics.linear_regression(times, totals).slope)


def pool_speed(
    task: Task, specs: Sequence[RunSpec], *, num_workers: int, seconds: float, clock: Clock = time.perf_counter
) -> float:
    """Return run-updates per second in one time window of a pool of workers, started for it and ended after it.

    Fleets are as large as `isotherm run` makes them, but no larger than it takes to keep every worker busy.
    """
    tasks = {(specs[0].data_id, specs[0].model_id): task}
    fitting = LocalExecutor(tasks).default_fleet_size(specs[0])
    size = min(fitting, math.ceil(len(specs) / num_workers))
    stairs = Staircase(num_workers=num_workers, seconds=seconds, clock=clock)

    def on_steps(_batch_size: int, num: int) -> None:
        if stairs.told(num):
            raise Enough

    with contextlib.suppress(Enough):
        with PoolExecutor(tasks, FleetOptions(fleet_size=size, on_steps=on_steps), num_workers=num_workers) as pool:
            for _ in pool.run(specs):
                pass
        raise RuntimeError("the fleets ended before the time window did")
    return stairs.speed
