"""Stores of many runs: how long it takes to open one, to show its status, to write a report and to resume.

Run:     python benchmarks/store_scale.py --folder FOLDER --json benchmarks/results/store_scale.json
Cost:    about ten minutes for a million runs, most of it to make the store; 3 GB of disk
Expect:  a million runs of one study: open under 2 s, status under 2 s, report under 10 s, imports included

The rows are made up, with plausible landscapes, and put through `Store.put` like those of any sweep. A store holds one
study: ten batch sizes, two momenta and 25 learning rates, with as many seeds as it takes. Every measurement is a
process of its own, from its start to its end, imports included; processor time counts no waiting for other programs,
and memory is the most that one process held: a report has as many as there are cores, which share most of it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import isotherm as it
from isotherm.bench.machine import commit, machine
from isotherm.core.records import CurvePoint, Outcome, RunResult, RunSpec
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.study import Study

BATCH_SIZES = tuple(2**k for k in range(1, 11))
MOMENTA = (0.0, 0.9)
RATES = tuple(it.powers_of_two(-12, 12))
NUM_CELLS = len(BATCH_SIZES) * len(MOMENTA) * len(RATES)
NUM_EVALUATIONS = 5
NUM_STEPS = 2
RUNS_PER_PUT = 10_000
REPEATS = 1
LEFT_OUT = 7  # runs that are missing, to be found by whoever resumes


def study(
    num_seeds: int,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    rates: Sequence[float] = RATES,
    momenta: Sequence[float] = MOMENTA,
) -> Study:
    """Return the study: a tiny model and two updates, so that the few missing runs are trained at once."""
    generator, num = torch.Generator().manual_seed(0), max(2_048, *batch_sizes)
    x, y = torch.randn(num, 4, generator=generator), torch.randint(0, 2, (num,), generator=generator)
    sweep = it.Sweep(
        name="many",
        task=it.Task(name="tiny", model=_model, train=(x, y), test=(x, y), loss="cross_entropy", metric="accuracy"),
        batch_sizes=batch_sizes,
        effective_learning_rates=rates,
        budget=it.Budget.steps(NUM_STEPS),
        momentum=momenta,
        num_seeds=num_seeds,
        num_kept=max(1, round(0.8 * num_seeds)),
        num_evaluations=NUM_EVALUATIONS,
        tune_on="test",
        resolution="paper",
        max_extensions=0,
    )
    return Study(name="many", sweeps=(sweep,))


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2))


def make_store(path: Path, made: Study) -> tuple[float, int]:
    """Write the store; return the seconds that it took and how many runs it holds."""
    prepared = made.prepare()
    start, total = time.perf_counter(), 0
    with Store.write(path) as store:
        for identity in prepared.identities.values():
            store.put_identity(identity)
        store.put_study(prepared.plan.name, prepared.plan.to_json())
        for runs in _batches(prepared.plan):
            store.put(runs)
            total += len(runs)
    return time.perf_counter() - start, total


def _batches(plan: StudyPlan) -> Iterator[list[StoredRun]]:
    sweep, batch, left_out = plan.sweeps[0], [], LEFT_OUT
    generator = np.random.default_rng(0)
    for axes in sweep.grids():
        for rate in sweep.base_learning_rates(axes):
            noise = generator.standard_normal((len(sweep.seeds), 2))
            for seed, draw in zip(sweep.seeds, noise.tolist(), strict=True):
                if left_out and seed == sweep.seeds[-1]:
                    left_out -= 1
                    continue
                spec = sweep.run_spec(axes, effective_learning_rate=rate, seed=seed)
                batch.append(made_up(spec, draw))
                if len(batch) == RUNS_PER_PUT:
                    yield batch
                    batch = []
    yield batch


_PROVENANCE = {"isotherm": "0", "torch": "0", "device": "cpu: made up", "seconds_per_run": 0.1, "fleet_size": 28}


def made_up(spec: RunSpec, draw: Sequence[float]) -> StoredRun:
    """Return a run that was not trained; `draw` are two numbers of its noise."""
    return StoredRun(spec=spec, result=_result(spec, draw), provenance=_PROVENANCE)


def _result(spec: RunSpec, draw: Sequence[float]) -> RunResult:
    """Return a made-up result: a parabola in log learning rate around an optimum with a kink at B = 128."""
    optimum = min(math.log2(spec.batch_size), 7.0) - 8.0 + (1.0 if spec.momentum else 0.0)
    away = math.log2(spec.effective_learning_rate) - optimum
    if away > 3:
        return RunResult(outcome=Outcome.DIVERGED, divergence_step=1)
    accuracy = min(1.0, max(0.0, 0.8 - 0.02 * away**2 + 0.01 * draw[0]))
    loss = 0.5 + 0.05 * (away + 0.5) ** 2 + 0.01 * draw[1]
    curve = tuple(CurvePoint(step=k, test_loss=loss, test_metric=accuracy) for k in range(1, NUM_EVALUATIONS + 1))
    return RunResult(
        outcome=Outcome.FINISHED,
        train_loss_running=loss,
        last_batch_loss=loss,
        train_loss=loss,
        train_metric=accuracy,
        l2_penalty=0.001,
        weight_norm_squared=4.0,
        test_loss=loss + 0.1,
        test_metric=accuracy,
        curve=curve,
    )


# -- measuring ------------------------------------------------------------------------------------------------------

_OPEN = """
from isotherm.running.store import Store
with Store.read({path!r}) as store:
    print(sum(store.counts().values()))
"""
_MISSING = """
from isotherm.running.stored import open_results
print(len(open_results({path!r}).next_round().specs))
"""


def measure(path: Path, folder: Path) -> dict[str, Any]:
    """Return seconds (the median of a few, and all) and MiB of every way to look at a store."""
    isotherm = [sys.executable, "-m", "isotherm"]
    commands = {
        "open": [sys.executable, "-c", _OPEN.format(path=str(path))],
        "missing": [sys.executable, "-c", _MISSING.format(path=str(path))],
        "status": [*isotherm, "status", str(path)],
        "report": [*isotherm, "report", str(path), "--output", str(folder / "report")],
    }
    return {name: _measured(words) for name, words in commands.items()}


def _measured(words: list[str], repeats: int = REPEATS) -> dict[str, Any]:
    """Return seconds, seconds of processor time and MiB of a process, from its start to its end."""
    runs = [_once(words) for _ in range(repeats)]
    seconds, processor, memory = zip(*runs, strict=True)
    return {
        "seconds": round(statistics.median(seconds), 2),
        "processor_seconds": round(statistics.median(processor), 2),
        "memory_mib": round(max(memory)),
        "all_processor_seconds": [round(value, 2) for value in processor],
    }


def _once(words: list[str]) -> tuple[float, float, float]:
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-c", _CHILD, *words], stdout=subprocess.PIPE, check=True, text=True
    )
    seconds = time.perf_counter() - start
    processor, memory = json.loads(done.stdout)
    return seconds, processor, memory / 1024


_CHILD = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""


def main() -> None:
    """Make stores and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, required=True, help="Where the stores are made, and kept.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    content: dict[str, Any] = {"commit": commit(), "machine": machine("cpu"), "repeats": REPEATS, "stores": []}
    for num in given.runs:
        path = given.folder / f"store_{num}.sqlite"
        entry: dict[str, Any] = {"num_seeds": max(1, num // NUM_CELLS)}
        if not path.exists():
            entry["make_seconds"], entry["num_runs"] = make_store(path, study(entry["num_seeds"]))
        entry["file_mib"] = round(path.stat().st_size / 2**20)
        entry |= measure(path, given.folder)
        print(json.dumps(entry, indent=1))
        content["stores"].append(entry)
    if given.json is not None:
        given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
