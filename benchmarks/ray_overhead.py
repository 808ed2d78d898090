"""What a fleet costs outside its training on Ray: actors whose fleets only sleep, on one machine.

    python benchmarks/ray_overhead.py --workers 2 --fleets 200 --seconds 0.1

The actors' time is compared with the time that their fleets slept; starting Ray and the actors is told apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from isotherm.core.budget import Budget
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.ray import RayExecutor
from isotherm.running.executors.remote import RemoteTrainer
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task

RUNS_PER_FLEET = 28


class SleepingTrainer(RemoteTrainer):
    """Sleeps instead of training; everything else is as usual."""

    seconds = 0.1

    def train(self, specs: Sequence[RunSpec], seconds_left: float) -> tuple[Any, Any, Any]:
        """Return made-up rows of the usual size."""
        time.sleep(self.seconds)
        result = RunResult(outcome=Outcome.FINISHED, test_loss=1.0, test_metric=0.5, train_loss=1.0, l2_penalty=0.0)
        provenance = {"isotherm": "", "torch": "", "device": "", "seconds_per_run": 0.1, "fleet_size": len(specs)}
        return "done", [StoredRun(spec=spec, result=result, provenance=provenance) for spec in specs], self.news()


def sweep_of(num_fleets: int, num_examples: int) -> Sweep:
    """Return a sweep with so many fleets of the usual size."""
    x, y = torch.zeros(num_examples, 100), torch.zeros(num_examples, dtype=torch.int64)
    task = Task(name="nothing", model=lambda: nn.Linear(100, 2), train=(x, y), test=(x[:100], y[:100]))
    rates = [0.001 * (1 + index) for index in range(num_fleets)]
    return Sweep(
        task=task,
        batch_sizes=[8],
        effective_learning_rates=rates,
        budget=Budget.steps(10),
        num_seeds=RUNS_PER_FLEET,
        num_kept=1,
        tune_on="test",
    )


def measured(*, workers: int, num_fleets: int, seconds: float, num_examples: int) -> dict[str, float]:
    """Return the seconds of the start and of a fleet outside its training."""
    sweep = sweep_of(num_fleets, num_examples)
    prepared = sweep.prepared_task
    identity = prepared.identify()
    plan = sweep.plan()
    (axes,) = plan.grids()
    specs = [
        plan.run_spec(axes, effective_learning_rate=rate, seed=seed)
        for rate in plan.base_learning_rates(axes)
        for seed in plan.seeds
    ]
    trainer = type("Trainer", (SleepingTrainer,), {"seconds": seconds})
    start = time.perf_counter()
    options = FleetOptions(fleet_size=RUNS_PER_FLEET)
    tasks = {identity.ids: prepared}
    with RayExecutor(tasks, options, num_workers=workers, trainer=trainer) as executor, Store.in_memory() as store:
        warm = [dataclasses.replace(spec, seed=10_000 + spec.seed) for spec in specs[: workers * RUNS_PER_FLEET]]
        for fleet in executor.run(warm):
            store.put(fleet)
        while any(actor.about is None for actor in executor._actors.actors):
            list(executor._actors.events(0.1))
        begin = time.perf_counter()
        for fleet in executor.run(specs):
            store.put(fleet)
        wall = time.perf_counter() - begin
    slept = num_fleets * seconds / workers
    return {"start": begin - start, "wall": wall, "per_fleet": (wall - slept) * workers / num_fleets}


def main() -> None:
    """Measure and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--examples", type=int, default=100_000)
    given = parser.parse_args()
    found = measured(workers=given.workers, num_fleets=given.fleets, seconds=given.seconds, num_examples=given.examples)
    share = found["per_fleet"] / (found["per_fleet"] + 10.0)
    print(
        f"{given.fleets} fleets of {given.seconds:g} s on {given.workers} actors: {found['wall']:.2f} s, start "
        f"{found['start']:.1f} s, {1e3 * found['per_fleet']:.1f} ms per fleet outside training; of fleets of 10 s that "
        f"would be {100 * share:.2f} %"
    )


if __name__ == "__main__":
    main()
