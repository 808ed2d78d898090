"""How long a fleet takes to its first update: with no caches, at a further batch size, and in a later process.

The time counts from the call that trains a fleet; imports and data are loaded before. Every measurement is made in new
processes whose caches (kernels, compiled programs, checks) are in a folder of their own, empty at first. Runs are too
short to be compiled, as in a short sweep.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isotherm.bench.fleet import refusing_warnings, spec_of
from isotherm.bench.tasks import timed_task
from isotherm.core.json import exact_json
from isotherm.core.records import Precision
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.running.timing import Enough, FleetTimer, Lap

SUFFIX = ":start"
# Updates of a run: 10 epochs of CIFAR at B = 256, below what is worth compiling.
NUM_STEPS = 1_953
# The caches that a new process finds empty.
_CACHES = {"TRITON_CACHE_DIR": "kernels", "TORCHINDUCTOR_CACHE_DIR": "inductor", "ISOTHERM_CHECKS": "checks"}
# Seconds to the first update that are aimed at: of a new network, and where its kernels have been built.
FIRST_TARGET, FURTHER_TARGET = 15.0, 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StartWorkload:
    """Runs of one task whose first update is waited for, at one batch size and then at another."""

    task: str
    device: Literal["cpu", "cuda"]
    batch_sizes: tuple[int, int]
    num_runs: int
    rate: float
    precision: Precision = "float32"

    @property
    def label(self) -> str:
        """The name that selects it."""
        return self.task + SUFFIX


STARTS: tuple[StartWorkload, ...] = (
    StartWorkload(task="mlp_mnist1d", device="cpu", batch_sizes=(32, 128), num_runs=10, rate=0.125),
    *(
        StartWorkload(task=task, device="cuda", batch_sizes=sizes, num_runs=6, rate=rate, precision="mixed")
        for task, sizes, rate in (
            ("autoencoder_mnist", (64, 256), 0.04),
            ("lstm_ptb", (64, 128), 1.0),
            ("wrn16x4_cifar10", (256, 1024), 0.25),
            ("wrn16x4_skipinit_cifar10", (64, 256), 0.125),
        )
    ),
)


def chosen_starts(names: Sequence[str], *, device: str) -> tuple[list[StartWorkload], list[str]]:
    """Return the starts among workload names, in their order, and the other names.

    >>> starts, others = chosen_starts(["mlp_mnist1d:start", "quickstart"], device="cpu")
    >>> [start.label for start in starts], others
    (['mlp_mnist1d:start'], ['quickstart'])
    """
    asked = [name for name in names if name.endswith(SUFFIX)]
    known = {start.label: start for start in STARTS if start.device == device}
    for name in asked:
        if name not in known:
            others = next((start.device for start in STARTS if start.label == name), None)
            remedy = f"use --device {others}" if others else f"known on {device}: {', '.join(known)}"
            raise UserError(f"the start {name!r} is not timed on {device}; {remedy}")
    return [known[name] for name in asked], [name for name in names if name not in asked]


def measure_start(workload: StartWorkload, *, repeats: int) -> dict[str, Any]:
    """Return the seconds to the first update, with medians over several trials and what is aimed at."""
    first, further = workload.batch_sizes
    trials = [_trial(workload) for _ in range(repeats)]
    on_gpu = workload.device == "cuda"
    kinds = (
        ("nothing", first, FIRST_TARGET),
        (f"B = {first:,}", further, FURTHER_TARGET),
        (f"B = {first:,}, by an earlier process", first, FURTHER_TARGET),
    )
    return {
        "label": workload.label,
        "device": workload.device,
        "num_runs": workload.num_runs,
        "num_steps": NUM_STEPS,
        "repeats": repeats,
        "starts": [
            _entry(before, size, [trial[index] for trial in trials], target if on_gpu else None)
            for index, (before, size, target) in enumerate(kinds)
        ],
    }


def _entry(before: str, batch_size: int, seconds: Sequence[float], target: float | None) -> dict[str, Any]:
    middle = statistics.median(seconds)
    return {
        "batch_size": batch_size,
        "built_before": before,
        "seconds": middle,
        "lowest": min(seconds),
        "highest": max(seconds),
        "target": target,
        "reached": None if target is None else middle <= target,
    }


def _trial(workload: StartWorkload) -> list[float]:
    """Return the seconds of one trial: two batch sizes in one process, then the first again in another."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder) / kind) for name, kind in _CACHES.items()}
        both = _in_new_process(workload, workload.batch_sizes, caches)
        return both + _in_new_process(workload, workload.batch_sizes[:1], caches)


def _in_new_process(workload: StartWorkload, batch_sizes: Sequence[int], caches: dict[str, str]) -> list[float]:
    given = exact_json({**dataclasses.asdict(workload), "batch_sizes": list(batch_sizes)})
    command = [sys.executable, "-m", __name__, given]
    environment = {**os.environ, **caches}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UserError(f"{workload.label} could not be timed: {last}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def first_updates(workload: StartWorkload, batch_sizes: Sequence[int]) -> list[float]:
    """Return the seconds to the first update at some batch sizes, one after another in this process."""
    task = timed_task(workload.task)
    placed = place_task(task, precision=workload.precision, device=workload.device)
    checks = FleetChecks.on(placed.device, name=f"{workload.label} {workload.precision}", is_built_in=True)
    found = []
    for batch_size in batch_sizes:
        specs = [
            spec_of(
                task,
                batch_size=batch_size,
                num_steps=NUM_STEPS,
                rate=workload.rate,
                seed=seed,
                precision=workload.precision,
            )
            for seed in range(workload.num_runs)
        ]
        start = time.perf_counter()
        with refusing_warnings():
            FleetTimer(placed, specs, checks=checks, updates_per_window=1).run(_stop)
        found.append(time.perf_counter() - start)
    return found


def _stop(_lap: Lap) -> None:
    raise Enough


def _main(text: str) -> None:
    """Time the first updates that another process asks for, and print the seconds as JSON."""
    given = json.loads(text)
    batch_sizes = given.pop("batch_sizes")
    workload = StartWorkload(**given, batch_sizes=(batch_sizes[0], batch_sizes[-1]))
    print(exact_json(first_updates(workload, batch_sizes)))


if __name__ == "__main__":
    _main(sys.argv[1])
