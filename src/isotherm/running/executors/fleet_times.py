"""How long the fleets of an executor take, and whether another one may start before a deadline."""

from __future__ import annotations

import time
from collections.abc import Sequence

from isotherm.core.records import RunSpec
from isotherm.engine.deadline import Deadline
from isotherm.running.store import StoredRun

# Fixed cost of an update in examples, for the order of fleets and the estimate of the time left.
EXAMPLES_PER_UPDATE = 40


def work_of(batch_size: int, num_updates: int) -> int:
    """Return the work of `num_updates` updates in examples, with a fixed cost per update.

    >>> work_of(60, 10)
    1000
    """
    return num_updates * (batch_size + EXAMPLES_PER_UPDATE)


def work_of_fleet(specs: Sequence[RunSpec]) -> int:
    """Return the work of all updates of a fleet."""
    return sum(work_of(s.batch_size, s.num_steps) for s in specs)


class StoppedFleet(Exception):
    """A deadline stopped a fleet, or let it not start.

    Args:
        done: the runs of it that are done.
        is_saved: the fleet goes on from a checkpoint in a later call.
    """

    def __init__(self, done: Sequence[StoredRun] = (), is_saved: bool = False) -> None:
        super().__init__(done, is_saved)  # in this order, so that it can be sent to another process
        self.done, self.is_saved = list(done), is_saved


class FleetTimes:
    """Times the fleets of one executor, one at a time, and lets none start that would come to nothing.

    A fleet with checkpoints needs time to start up, going by the slowest start so far. A fleet without has to be done
    in time, going by the slowest one so far. The first fleet always starts if there is any time.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._start = 0.0
        self._is_starting = False
        self._longest_start = 0.0
        self._seconds_per_work = 0.0

    def start(self, specs: Sequence[RunSpec], *, is_saved: bool) -> None:
        """Note that a fleet starts.

        Raises:
            StoppedFleet: there is no time for it.
        """
        needed = self._longest_start if is_saved else self._seconds_per_work * work_of_fleet(specs)
        if self._deadline.seconds_left <= needed:
            raise StoppedFleet
        self._start, self._is_starting = time.monotonic(), True

    def first_update(self) -> None:
        """Note that the fleet makes updates; again and again is no harm."""
        if self._is_starting:
            self._is_starting = False
            self._longest_start = max(self._longest_start, time.monotonic() - self._start)

    def finish(self, specs: Sequence[RunSpec]) -> None:
        """Note that a fleet is done."""
        pace = (time.monotonic() - self._start) / work_of_fleet(specs)
        self._seconds_per_work = max(self._seconds_per_work, pace)
