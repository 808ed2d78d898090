"""A time by which training has to end, and what is left of a fleet that it ends.

A fleet with a checkpoint is saved and goes on from there in a later call. Runs that are trained one at a time have no
checkpoints: one that would not be done in time is not started, and one that is not done in time starts over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from isotherm.core.records import RunResult

# Kept for what comes after training: writing a checkpoint, storing results.
RESERVED_FRACTION = 0.02
MOST_RESERVED_SECONDS = 10.0


class OutOfTime(BaseException):
    """The deadline ends a fleet; passes through handlers of the module's errors.

    Args:
        results: of the fleet's first runs, which are done.
        is_saved: the fleet goes on from a checkpoint in a later call.
    """

    def __init__(self, *, results: Sequence[RunResult] = (), is_saved: bool = False) -> None:
        super().__init__("out of time")
        self.results, self.is_saved = tuple(results), is_saved


class Flag(Protocol):
    """Something that is set or not, such as a `StopFlag` or a `threading.Event`."""

    def is_set(self) -> bool:
        """Tell whether it is set."""


class StopFlag:
    """Set by whoever wants training to end early; a plain attribute, so a signal handler may set it."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Ask training to end."""
        self._is_set = True

    def is_set(self) -> bool:
        """Tell whether training is asked to end."""
        return self._is_set


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """When training has to end: at a time by `time.monotonic`, which worker processes share, or once a flag is set."""

    at: float = math.inf
    stop: Flag | None = None

    @classmethod
    def after(cls, seconds: float, *, stop: Flag | None = None) -> Self:
        """Return the deadline of somebody who has so many seconds from now on; a little of it is reserved."""
        reserved = min(MOST_RESERVED_SECONDS, RESERVED_FRACTION * seconds)
        return cls(at=time.monotonic() + seconds - reserved, stop=stop)

    @property
    def seconds_left(self) -> float:
        """Time left; negative afterwards."""
        if self.stop is not None and self.stop.is_set():
            return -math.inf
        return self.at - time.monotonic()

    def check(self) -> None:
        """Raise `OutOfTime` if no time is left."""
        if self.seconds_left <= 0:
            raise OutOfTime


class Laps:
    """Tells, after every lap, whether another one fits in before a deadline.

    The first lap may compile; it counts only until there is a second one.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._last = time.monotonic()
        self._num = 0
        self._longest = 0.0

    def another_fits(self, *, reserved: float) -> bool:
        """Note the end of a lap; return whether one as long as the longest so far ends in time."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self._num += 1
        self._longest = seconds if self._num <= 2 else max(self._longest, seconds)
        return self._deadline.seconds_left > self._longest + reserved


def train_in_turn(runs: Iterable[Callable[[], RunResult]], deadline: Deadline) -> list[RunResult]:
    """Train runs one after another and return their results.

    Raises:
        OutOfTime: a run was not done in time, or the next would not be, going by the longest so far; with the results
            of those that are done.
    """
    results: list[RunResult] = []
    longest = 0.0
    for run in runs:
        if deadline.seconds_left <= longest:
            raise OutOfTime(results=results)
        start = time.monotonic()
        try:
            results.append(run())
        except OutOfTime:
            raise OutOfTime(results=results) from None
        longest = max(longest, time.monotonic() - start)
    return results
