"""Short runs on a known landscape, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from cases import blobs_task
from isotherm.core.statistics import Floats
from isotherm.diagnose.short_runs import ShortGridSpec
from isotherm.tasks.task import Task

INITIAL = 2.3
Landscape = Callable[[ShortGridSpec, float, int], float]


class FakeRuns:
    """Stands in for `ShortRuns`: a loss for every batch size, length, rate and seed; the metric is minus the loss.

    Refuses to tell what was not trained.
    """

    def __init__(self, landscape: Landscape, clock: FakeTime | None = None) -> None:
        self._landscape, self._clock = landscape, clock
        self.trained: dict[tuple[int, float, int, float, int], float] = {}
        self.calls: list[int] = []
        self.task: Task = blobs_task()
        self.tasks, self.num_workers, self.num_examples = (self.task,), 1, 0

    def train(self, grid_specs: Sequence[ShortGridSpec]) -> float:
        new = {
            (grid_spec.batch_size, grid_spec.momentum, grid_spec.num_steps, rate, seed): self._landscape(
                grid_spec, rate, seed
            )
            for grid_spec in grid_specs
            for rate in grid_spec.rates
            for seed in range(grid_spec.num_seeds)
        }
        added = new.keys() - self.trained.keys()
        num = len(added)
        self.num_examples += sum(size * steps for size, _, steps, _, _ in added)
        self.trained.update(new)
        self.calls.append(num)
        if self._clock is not None:
            self._clock.time += num
        return float(num)

    def losses(self, grid_spec: ShortGridSpec, *, on: str | None = None) -> Floats:
        return np.array(
            [
                [
                    self.trained[grid_spec.batch_size, grid_spec.momentum, grid_spec.num_steps, rate, seed]
                    for seed in range(grid_spec.num_seeds)
                ]
                for rate in grid_spec.rates
            ]
        )

    def scores(self, grid_spec: ShortGridSpec) -> Floats:
        return -self.losses(grid_spec)


class FakeTime:
    """A clock that moves by a second with every run."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def noise(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
    return float(np.random.default_rng([grid_spec.batch_size, round(1e6 * rate) % 2**40, seed]).normal())


def stable_until(limit: float, *, spread: float = 0.1) -> Landscape:
    """Return losses that fall with the learning rate up to a limit, which differs a little by seed."""

    def loss(grid_spec: ShortGridSpec, rate: float, seed: int) -> float:
        own = limit * 2.0 ** (spread * noise(grid_spec, 1.0, seed))
        return (
            math.inf if rate > own else INITIAL - 2.0 * min(1.0, 8 * rate / limit) + 0.01 * noise(grid_spec, rate, seed)
        )

    return loss
