"""What a fleet costs outside its training on Ray: actors whose fleets only sleep, on one machine.

Run:     python benchmarks/ray_overhead.py --repeats 3 --json benchmarks/results/ray_overhead.json
Cost:    about four minutes, nearly all of it asleep
Expect:  under 5 % of fleets of 10 s

The actors' time is compared with the time that their fleets slept; starting Ray and the actors is told apart. Fleets of
more than one length (`--seconds 0.5 2`) show whether what a fleet costs grows with its length.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotherm.bench.machine import commit, machine
from isotherm.core.budget import Budget
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.ray import RayExecutor
from isotherm.running.executors.remote import RemoteTrainer
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task

RUNS_PER_FLEET = 28
GOAL_SECONDS = 10.0  # of a fleet, of which the goal speaks


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


def repeated(*, repeats: int, workers: int, num_fleets: int, seconds: float, num_examples: int) -> dict[str, Any]:
    """Return several measurements of fleets of one length, each with Ray started anew, and what they say together."""
    rows = []
    for _ in range(repeats):
        row = measured(workers=workers, num_fleets=num_fleets, seconds=seconds, num_examples=num_examples)
        rows.append({**row, "load": os.getloadavg()[0]})
        print(
            f"{num_fleets} fleets of {seconds:g} s on {workers} actors: {row['wall']:.2f} s, start "
            f"{row['start']:.1f} s, {1e3 * row['per_fleet']:.1f} ms per fleet outside training",
            flush=True,
        )
    typical = statistics.median(row["per_fleet"] for row in rows)
    return {
        "seconds": seconds,
        "fleets": num_fleets,
        "workers": workers,
        "examples": num_examples,
        "n": repeats,
        "per_fleet_median": typical,
        "share_of_these_fleets": typical / (typical + seconds),
        "share_of_fleets_of_10_s_if_it_stays": typical / (typical + GOAL_SECONDS),
        "measurements": rows,
    }


def main() -> None:
    """Measure, print a line for each measurement, and write them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.5])
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    content: dict[str, Any] = {"commit": commit(), "machine": machine("cpu"), "lengths": []}
    for seconds in given.seconds:
        found = repeated(
            repeats=given.repeats,
            workers=given.workers,
            num_fleets=given.fleets,
            seconds=seconds,
            num_examples=given.examples,
        )
        content["lengths"].append(found)
        print(
            f"median of {found['n']}: {1e3 * found['per_fleet_median']:.1f} ms, "
            f"{100 * found['share_of_these_fleets']:.2f} % of fleets of {seconds:g} s; of fleets of "
            f"{GOAL_SECONDS:g} s that would be {100 * found['share_of_fleets_of_10_s_if_it_stays']:.2f} %",
            flush=True,
        )
        if given.json is not None:
            given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
