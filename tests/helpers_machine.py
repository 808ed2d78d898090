"""A machine whose time is reckoned: short runs, curvature and noise have a price and take no real time.

Everything a diagnosis spends time on is replaced by its price: fleets, and measurements at a point of training. What it
plans by is left as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.core.statistics import Interval
from isotherm.diagnose import probes, short_runs
from isotherm.running import timing
from isotherm.running.store import StoredRun

TEMPERATURE, LIMIT = 1 / 64, {0.0: 3.0, 0.9: 12.0}
INITIAL, PROGRESS = 1.1, 0.8  # loss before and after training


@dataclass(kw_only=True)
class Machine:
    """Prices in seconds, and a clock that goes on by them.

    Args:
        start_up: of a fleet.
        update: of a fleet, whatever its size.
        example: that an update of one run goes through.
        product: of the Hessian with a vector, in examples.
        pace: by which factor everything takes longer, given the time.
        first_look: by which factor the fleets that are only timed take longer.
        guess: by which factor the sharpness at the start is wrong.
    """

    start_up: float
    update: float
    example: float
    product: float = 3.0
    pace: Callable[[float], float] = lambda _: 1.0
    first_look: float = 1.0
    guess: float = 1.0
    time: float = 0.0

    def __call__(self) -> float:
        return self.time

    def work(self, seconds: float) -> None:
        """Let time pass, in pieces that notice when the pace changes."""
        piece = max(seconds / 64, 1e-9)
        for _ in range(64):
            self.time += piece * self.pace(self.time)

    def fleet(self, num_runs: int, batch_size: int, num_steps: int, *, factor: float = 1.0) -> None:
        """Train a fleet."""
        self.work(factor * (self.start_up + num_steps * (self.update + num_runs * batch_size * self.example)))

    # -- what stands in for the engine ----------------------------------------------------------------------------

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all that takes time in a diagnosis take that of this machine."""
        machine = self

        class Executor:
            def __init__(self, tasks: Mapping[Any, Any], *, device: str) -> None:
                pass

            def run(self, specs: Sequence[RunSpec]) -> Iterator[list[StoredRun]]:
                for (size, steps), fleet in itertools.groupby(specs, key=lambda s: (s.batch_size, s.num_steps)):
                    members = list(fleet)
                    machine.fleet(len(members), size, steps)
                    yield [StoredRun(spec=s, result=result_of(s), provenance={}) for s in members]

        monkeypatch.setattr(short_runs, "LocalExecutor", Executor)
        monkeypatch.setattr(short_runs, "run_fleet", self._trained)
        monkeypatch.setattr(timing, "run_fleet", self._timed)
        monkeypatch.setattr(probes, "noise_scale_of_task", self._noise)
        monkeypatch.setattr(probes.Prober, "_hessian", self._hessian)
        monkeypatch.setattr(probes, "sampled_sharpness", self._sharpness)

    def _timed(
        self,
        _placed: Any,
        specs: Sequence[RunSpec],
        *,
        on_steps: Callable[[int], None],
        updates_per_window: int,
        **_: Any,
    ) -> None:
        self.work(self.first_look * self.start_up)
        while True:
            update = self.update + len(specs) * specs[0].batch_size * self.example
            self.work(self.first_look * updates_per_window * update)
            on_steps(updates_per_window * len(specs))

    def _trained(self, _placed: Any, specs: Sequence[RunSpec], *, on_trained: Callable[..., None]) -> None:
        self.fleet(len(specs), specs[0].batch_size, specs[0].num_steps)
        on_trained(0, {"none": torch.ones(1)})

    def _noise(self, _task: Any, *, measurement: Any, **_: Any) -> Any:
        examples = measurement.num_draws * (measurement.small_batch_size + measurement.large_batch_size)
        self.work(measurement.num_draws * self.update + examples * self.example)
        return SimpleNamespace(gradient_noise_scale=Interval(estimate=64.0, low=32.0, high=128.0))

    def _hessian(self, _parameters: Any, *, num_examples: int) -> Any:
        def product(vector: Tensor) -> Tensor:
            self.work(self.update + self.product * num_examples * self.example)
            return vector

        return SimpleNamespace(gradient=lambda: torch.ones(1), product=product, num_examples=num_examples)

    def _sharpness(self, hessian: Any, *, num_blocks: int, **_: Any) -> Any:
        for _ in range(15 * (num_blocks + 2)):
            hessian.product(torch.ones(1))
        found = 2 / LIMIT[0.0] * self.guess
        return SimpleNamespace(of_all=found, interval=Interval(estimate=found, low=found / 2, high=2 * found))


def result_of(spec: RunSpec) -> RunResult:
    """Return losses and accuracies that are best at T B; above the limit runs diverge."""
    rate, limit = spec.effective_learning_rate, LIMIT[spec.momentum]
    if rate > limit:
        return RunResult(outcome=Outcome.DIVERGED, divergence_step=spec.num_steps)
    away = math.log2(rate / (TEMPERATURE * spec.batch_size))
    luck = float(np.random.default_rng([spec.batch_size, round(1e6 * rate) % 2**40, spec.seed]).normal())
    return RunResult(
        outcome=Outcome.FINISHED,
        train_loss=INITIAL - PROGRESS * min(1.0, 8 * rate / limit),
        validation_loss=0.8 + 0.05 * away**2 + 0.01 * luck,
        validation_metric=0.8 - 0.02 * away**2 + 0.004 * luck,
    )
