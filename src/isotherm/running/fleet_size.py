"""How many runs to train together on a CPU: as many as an estimate says, or, where it is not safe, what a timing says.

Many small matmuls gain from company whatever their sizes. Convolutions, recurrent layers and attention need not: as a
fleet they may be slower than one run after another. So the first updates of a fleet and of a run by itself are timed,
where the runs are long enough for it to pay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from isotherm.core.records import RunSpec
from isotherm.engine.dropout import run_keys
from isotherm.engine.fleet import run_fleet
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import PlacedTask
from isotherm.tasks.raised import suppressed
from isotherm.tasks.seeding import initial_model

Clock = Callable[[], float]

logger = logging.getLogger("isotherm")

# Layers whose fleets are faster than their runs one by one, at any size that was tried (docs/performance.md).
_SAFE = (
    nn.Sequential,
    nn.Linear,
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Softplus,
    nn.BatchNorm1d,
    nn.LayerNorm,
)
# Of a run: below, timing would cost more than a wrong size.
SHORTEST_RUN = 5.0
# Of an update of one run: above, a run alone keeps a core busy and a fleet gains nothing.
LONGEST_UPDATE = 1.0
# Of an update of the fleet that is timed.
LONGEST_OF_FLEET = 0.4
# Laps, after the one that prepares, of which the quickest counts, and their updates.
NUM_LAPS, UPDATES_PER_LAP = 3, 2
# So small that no run diverges.
_LEARNING_RATE = 1e-9
# How much longer an update takes than its forward pass, roughly.
_BACKWARD = 3.0


def is_safe(placed: PlacedTask) -> bool:
    """Tell whether a fleet of this task is known to be faster than its runs one by one."""
    return all(type(part) in _SAFE for part in initial_model(placed.build, seed=0).modules())


def faster_size(
    placed: PlacedTask, spec: RunSpec, size: int, *, num_threads: int | None = None, clock: Clock | None = None
) -> int:
    """Return how many runs to train together: `size` or fewer, or one by one where that is faster.

    Args:
        placed: the task on a CPU.
        spec: one of the runs.
        size: what memory and an estimate allow.
        num_threads: of the process that will train them; those of this process by default.
        clock: returns the time in seconds; by default the processor's for one thread, which no other program changes.
    """
    if size < 2 or is_safe(placed):
        return size
    with _threads(num_threads):
        clock = clock or (time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
        update = _BACKWARD * _seconds_of_forward(placed, spec, clock)
        if update * spec.num_steps < SHORTEST_RUN:
            return size
        if update > LONGEST_UPDATE:
            return 1
        fewer = min(size, max(2, math.floor(LONGEST_OF_FLEET / update)))
        alone, together = (seconds_per_update(placed, spec, num, clock=clock) for num in (1, fewer))
    if alone is None or together is None:  # it will be trained one by one, and the engine says why
        return size
    gain = fewer * alone / together
    where = f"(timed, B = {spec.batch_size})"
    logger.info("a fleet of %d is %.2g times as fast as its runs one by one %s", fewer, gain, where)
    return fewer if gain > 1.0 else 1


def seconds_per_update(
    placed: PlacedTask, spec: RunSpec, num_runs: int, *, clock: Clock = time.perf_counter
) -> float | None:
    """Return the seconds of an update of a fleet: the quickest of a few laps; None if it cannot be trained as one."""
    num_steps = max(spec.num_steps, (NUM_LAPS + 2) * UPDATES_PER_LAP)
    changes: dict[str, Any] = {"num_steps": num_steps, "num_evaluations": 0, "effective_learning_rate": _LEARNING_RATE}
    specs = [dataclasses.replace(spec, **changes, seed=seed) for seed in range(num_runs)]
    times: list[float] = []
    checks = _Quiet()

    def on_steps(_num: int) -> None:
        times.append(clock())
        if checks.are_one_by_one(spec.batch_size) or len(times) > NUM_LAPS:
            raise _Enough

    with suppressed():  # of the module: training says what is wrong, in better words
        run_fleet(placed, specs, on_steps=on_steps, checks=checks, updates_per_window=UPDATES_PER_LAP)
    if checks.are_one_by_one(spec.batch_size) or len(times) < 2:
        return None
    return min(after - before for before, after in itertools.pairwise(times)) / UPDATES_PER_LAP


def _seconds_of_forward(placed: PlacedTask, spec: RunSpec, clock: Clock) -> float:
    """Return the seconds of the second of two forward passes; 0 for a module that raises an error."""
    with suppressed(), torch.no_grad():
        model = placed.model(seed=0, batch_size=spec.batch_size).train()
        index = placed.order(seed=0, batch_size=spec.batch_size).block(0, 1)[0]
        keys, step = run_keys(0).to(placed.device), torch.zeros((), dtype=torch.int64, device=placed.device)
        for _ in range(2):
            batch, start = placed.batch(index, seed=0, step=0), clock()
            placed.training_loss(model, *batch, keys, step)
        return clock() - start
    return 0.0


class _Enough(Exception):
    """Stops a fleet that is only timed."""


class _Quiet(FleetChecks):
    """Checks that log nothing: what there is to say is said when runs are trained."""

    def say_once(self, kind: str, sentence: str) -> None:
        """Say nothing."""

    def has_said(self, kind: str) -> bool:
        """Keep the engine from timing what it would say."""
        return True


@contextlib.contextmanager
def _threads(num: int | None) -> Iterator[None]:
    """Within this context PyTorch computes with so many threads; with as many as before if there is no number."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if num is None else num)
    try:
        yield
    finally:
        torch.set_num_threads(before)
