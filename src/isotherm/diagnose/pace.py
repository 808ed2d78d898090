"""How fast this machine trains: a fleet is timed over a few updates and stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from isotherm.diagnose.short_runs import Clock, ShortGridSpec, ShortRuns
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.running.timing import Enough, FleetTimer, Lap

_SPEED_STEPS, _SPEED_WINDOW = 4_999, 8
# Fewest updates for timing a fleet: one window to warm up and one that counts.
TIMED_STEPS = 2 * _SPEED_WINDOW
# Runs timed together for planning.
RUNS_OF_A_FLEET = 8
# Fleets of a short diagnosis, and as much time again for training.
STARTS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How fast runs train in this process.

    Args:
        overhead: seconds before a fleet's first update and for its final evaluation.
        speed: training examples (tokens, for sequences) per second of all runs together.
    """

    overhead: float
    speed: float

    def seconds(self, num_examples: float) -> float:
        """Return the time of a fleet that trains on this many examples in all."""
        return self.overhead + num_examples / self.speed


def measure_pace(
    runs: ShortRuns, grid_spec: ShortGridSpec, *, num_runs: int, seconds: float, clock: Clock | None = None
) -> Pace | None:
    """Time a fleet over at least 8 updates, which is then stopped; None if time is up before."""
    before = runs.now()
    placed = place_task(runs.task, precision=runs.task.precision, device=runs.device)
    # Long enough that the fleet does not finish meanwhile, short enough that nothing is compiled for it.
    specs = [
        runs.spec(replace(grid_spec, num_steps=_SPEED_STEPS), rate=1e-6 * (1 + k), seed=0) for k in range(num_runs)
    ]
    laps: list[Lap] = []

    def on_lap(lap: Lap) -> None:
        laps.append(lap)  # the first traces and warms up
        is_late = len(laps) == 1 and clock is not None and clock.left <= 0
        if is_late or (len(laps) > 1 and sum(lap.seconds for lap in laps[1:]) >= seconds):
            raise Enough

    start = runs.now()
    has_window = FleetTimer(placed, specs, updates_per_window=_SPEED_WINDOW, clock=runs.now).run(on_lap)
    assert has_window, "the runs ended before the time window did"
    if len(laps) == 1:
        return None
    speed = sum(lap.run_updates for lap in laps[1:]) / sum(lap.seconds for lap in laps[1:])
    examples = speed * grid_spec.batch_size * (runs.task.unroll or 1)
    # An evaluation is a forward pass over all data, about a third of an update on them.
    evaluation = num_runs * sum(len(y) for _, y in runs.task.splits.values()) / (3 * examples)
    return Pace(overhead=start - before + laps[0].seconds + evaluation, speed=examples)


def measure_paces(
    runs: ShortRuns,
    sizes: Sequence[int],
    *,
    momentum: float,
    needed: Callable[[Mapping[int, Pace]], float],
    clock: Clock,
) -> dict[int, Pace]:
    """Return the speed of fleets at every batch size, from small to large.

    Args:
        runs: of the task.
        sizes: batch sizes.
        momentum: of the fleets.
        needed: returns the seconds that short runs take at least, given paces of all batch sizes.
        clock: the time.

    Raises:
        UserError: the time is too short; the error names how much would be enough, if that is known.
    """
    found: dict[int, Pace] = {}
    for size in sorted(set(sizes)):
        # Spending half of the time on timing is too much.
        if found and clock.spent + _to_time(runs, size, found) > clock.seconds / 2:
            _refuse(runs, sizes, found, needed=needed, clock=clock)
        spec = ShortGridSpec(batch_size=size, momentum=momentum, num_steps=1, rates=(), num_seeds=1)
        pace = measure_pace(runs, spec, num_runs=RUNS_OF_A_FLEET, seconds=0.1, clock=clock)
        if pace is None:
            _refuse(runs, sizes, found, needed=needed, clock=clock)
        else:
            found[size] = pace
    # The first fleet of a process also loads what all of them use.
    least = min(pace.overhead for pace in found.values())
    found = {size: replace(pace, overhead=min(pace.overhead, 2 * least)) for size, pace in found.items()}
    if _total(runs, sizes, found, needed=needed, clock=clock) > clock.seconds:
        _refuse(runs, sizes, found, needed=needed, clock=clock)
    return found


def _to_time(runs: ShortRuns, size: int, paces: Mapping[int, Pace]) -> float:
    """Return the seconds to time a fleet, if it is no slower per example than the largest batch so far."""
    return paces[max(paces)].seconds(TIMED_STEPS * RUNS_OF_A_FLEET * size * (runs.task.unroll or 1))


def _total(
    runs: ShortRuns,
    sizes: Sequence[int],
    paces: Mapping[int, Pace],
    *,
    needed: Callable[[Mapping[int, Pace]], float],
    clock: Clock,
) -> float:
    """Return the seconds of timing and of the shortest diagnosis.

    A batch size that was not timed is assumed as fast per example as the largest one that was.
    """
    timing = clock.spent + sum(_to_time(runs, size, paces) for size in set(sizes) if size not in paces)
    return 1.5 * timing + needed({size: paces.get(size, paces[max(paces)]) for size in sizes})


def _refuse(
    runs: ShortRuns,
    sizes: Sequence[int],
    paces: Mapping[int, Pace],
    *,
    needed: Callable[[Mapping[int, Pace]], float],
    clock: Clock,
) -> NoReturn:
    """Say that the time is too short, and how much would be enough if that is known.

    Raises:
        UserError: always.
    """
    # A tenth more, to be safe. Without any timing, only the duration of one start is known: there are a few dozen
    # starts, and training takes as long again.
    seconds = 1.1 * _total(runs, sizes, paces, needed=needed, clock=clock) if paces else STARTS * clock.spent
    raise UserError(
        f"task {runs.task.name!r}: minutes={clock.seconds / 60:.3g} is too short on this machine; give "
        f"at least {math.ceil(seconds / 6) / 10:g}, or smaller batch_sizes than {sorted(set(sizes))}"
    )
