"""The speed of fleets: counted while they train, which is then broken off."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from isotherm.bench.workloads import MOMENTUM, Work
from isotherm.core.records import Precision, RunSpec
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.pool import PoolExecutor
from isotherm.running.runner import default_workers
from isotherm.tasks.builtin import made_task
from isotherm.tasks.task import Task

Clock = Callable[[], float]
# Handed the speed of the last window (None before the first), returns the seconds of the next one, None to end.
Turn = Callable[[float | None], float | None]

# So many that a fleet is compiled where that pays, and does not end while it is timed.
NUM_STEPS = 10_000_000
# Updates of every run between two looks at the clock.
ROUND = 64
# Messages of every worker that pass before a window, and that it has at least.
WARM_MESSAGES, WINDOW_MESSAGES = 2, 5


class _Enough(Exception):
    """What was to be measured is measured."""


class _Refusal(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


@contextlib.contextmanager
def refusing_warnings() -> Iterator[None]:
    """Within this context a warning of the engine is an error: something else than the fleet would be timed."""
    logger, refusal = logging.getLogger("isotherm"), _Refusal(logging.WARNING)
    logger.addHandler(refusal)
    try:
        yield
    finally:
        logger.removeHandler(refusal)


def spec_of(
    task: Task,
    *,
    batch_size: int,
    num_steps: int,
    rate: float,
    seed: int,
    precision: Precision,
    l2: float | None = None,
) -> RunSpec:
    """Return a run of a made-up task."""
    return RunSpec(
        task=task.name,
        data_id="made",
        model_id="made",
        batch_size=batch_size,
        num_steps=num_steps,
        effective_learning_rate=rate,
        momentum=MOMENTUM,
        gamma=2.0,
        l2=task.l2 if l2 is None else l2,
        l2_scope=task.l2_scope,
        clip_norm=task.clip_norm,
        precision=precision,
        num_evaluations=1,
        seed=seed,
    )


def specs_of(work: Work, task: Task) -> list[RunSpec]:
    """Return the runs of a work."""
    return [
        spec_of(
            task,
            batch_size=work.batch_size,
            num_steps=NUM_STEPS,
            rate=work.rate * 2.0**-place,
            seed=seed,
            precision=work.precision,
            l2=work.l2,
        )
        for seed in range(work.num_seeds)
        for place in range(work.num_rates)
    ]


def time_fleet(placed: PlacedTask, specs: Sequence[RunSpec], turn: Turn, *, clock: Clock = time.perf_counter) -> None:
    """Train a fleet in this process and tell its run-updates per second in one window after another.

    The first round compiles and records, the one after every call of `turn` warms up; neither counts. While `turn` does
    not return, the fleet rests.
    """
    run_fleet(placed, specs, on_steps=_Windows(turn, num_runs=len(specs), clock=clock))


class _Windows:
    """Listens to a fleet's updates and cuts them into windows."""

    def __init__(self, turn: Turn, *, num_runs: int, clock: Clock) -> None:
        self._turn, self._clock = turn, clock
        self._round = ROUND * num_runs
        self._pending = self._num = 0
        self._start: float | None = None
        self._seconds: float | None = None

    def __call__(self, num: int) -> None:
        self._pending += num
        if self._pending < self._round:
            return
        now, self._num, self._pending = self._clock(), self._num + self._pending, 0
        if self._seconds is None:
            self._ask(None)
        elif self._start is None:
            self._start, self._num = now, 0
        elif now - self._start >= self._seconds:
            self._ask(self._num / (now - self._start))

    def _ask(self, speed: float | None) -> None:
        self._start = None
        self._seconds = self._turn(speed)
        if self._seconds is None:
            raise _Enough


def fleet_speeds(placed: PlacedTask, specs: Sequence[RunSpec], *, repeats: int, seconds: float) -> list[float]:
    """Return run-updates per second in several windows of a fleet's training, which is then broken off."""
    found: list[float] = []

    def turn(speed: float | None) -> float | None:
        if speed is not None:
            found.append(speed)
        return seconds if len(found) < repeats else None

    with contextlib.suppress(_Enough):
        time_fleet(placed, specs, turn)
    return found


class Staircase:
    """Run-updates as several workers tell of them, each at its own pace, and the speed in a window of them.

    The speed is the slope of the straight line through (time, run-updates so far): a window from message to message
    would be wrong by up to one message of every worker.

    Args:
        num_workers: how many tell.
        seconds: how long the window is at least.
        clock: what time it is.
    """

    def __init__(self, *, num_workers: int, seconds: float, clock: Clock = time.perf_counter) -> None:
        self._num_workers, self._seconds, self._clock = num_workers, seconds, clock
        self._num_messages = self._total = 0
        self._points: list[tuple[float, int]] = []

    def told(self, num: int) -> bool:
        """Take a message; return whether the window is complete."""
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
    """Return run-updates per second in one window of a pool of workers, started for it and ended after it.

    Fleets are as large as `isotherm run` makes them, but no larger than it takes to keep every worker busy.
    """
    tasks = {("made", "made"): task}
    fitting = LocalExecutor(tasks).default_fleet_size(specs[0])
    size = min(fitting, math.ceil(len(specs) / num_workers))
    stairs = Staircase(num_workers=num_workers, seconds=seconds, clock=clock)

    def on_steps(_batch_size: int, num: int) -> None:
        if stairs.told(num):
            raise _Enough

    with contextlib.suppress(_Enough):
        with PoolExecutor(tasks, num_workers=num_workers, fleet_size=size, on_steps=on_steps) as pool:
            for _ in pool.run(specs):
                pass
        raise RuntimeError("the fleets ended before the window did")
    return stairs.speed


def ours(work: Work, turn: Turn) -> None:
    """Train a work as `isotherm run` would: on a CPU in one worker per core, on a GPU as one fleet."""
    task = made_task(work.task)
    specs = specs_of(work, task)
    num_workers = default_workers(work.device)
    with refusing_warnings(), contextlib.suppress(_Enough):
        if num_workers == 1:
            if work.device == "cpu":
                specs = specs[: LocalExecutor({("made", "made"): task}).default_fleet_size(specs[0])]
            time_fleet(place_task(task, precision=work.precision, device=work.device), specs, turn)
            raise RuntimeError("the fleet ended before the window did")
        _load_tracing()
        num_workers = min(num_workers, len(specs))
        speed = None
        while (seconds := turn(speed)) is not None:
            speed = pool_speed(task, specs, num_workers=num_workers, seconds=seconds)


def _load_tracing() -> None:
    """Import what tracing needs before workers are forked, so that not every one of them does; takes no gradient."""
    make_fx(torch.func.vmap(torch.neg))(torch.zeros(1, 1))
