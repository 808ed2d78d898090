"""How fast the fleet trains the paper's networks on this GPU, and whether it reproduces the reference's numbers.

Run:     python benchmarks/throughput.py --commit HASH --json results/calibration/throughput.json
         (new rows replace those of the file, others stay)
Cost:    about two minutes of GPU and, if nothing is compiled yet, ten of compilation
Expect:  median of five windows of at least a second each, after compilation; synthetic data of the right shape

Nothing else may use the GPU meanwhile. `--warm` compiles everything and measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from isotherm.bench.fleet import refusing_warnings, spec_of
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.engine.reference import run_reference
from isotherm.running.timing import FleetTimer
from isotherm.tasks.builtin import made_task

# task, batch size, runs at once, effective learning rate
WORKLOADS: tuple[tuple[str, int, int, float], ...] = (
    ("autoencoder_mnist", 64, 9, 0.04),
    ("lstm_ptb", 64, 9, 2.0),
    ("lstm_ptb", 16, 3, 1.4),
    ("wrn16x4_cifar10", 256, 3, 4.0),
    ("wrn16x4_cifar10", 1024, 3, 8.0),
    ("wrn16x4_skipinit_cifar10", 64, 3, 0.25),
    ("wrn28x10_cifar100", 128, 1, 1.0),
    ("resnet50_imagenet", 256, 1, 0.1),
)
EQUALITY: tuple[tuple[str, int, str], ...] = (
    ("autoencoder_mnist", 64, "float32"),
    ("lstm_ptb", 16, "float32"),
    ("lstm_ptb", 16, "mixed"),
    ("wrn16x4_cifar10", 64, "float32"),
    ("wrn16x4_cifar10", 64, "mixed"),
    ("wrn16x4_skipinit_cifar10", 64, "float32"),
    ("wrn16x4_skipinit_cifar10", 64, "mixed"),
)
NUM_EQUAL_UPDATES = 6
COMPARED = ("train_loss_running", "last_batch_loss", "train_loss", "test_loss", "weight_norm_squared")


def row(name: str, batch_size: int, num_runs: int, rate: float, *, repeats: int, seconds: float) -> dict[str, Any]:
    """Return a network's speed and memory."""
    task = made_task(name)
    placed = place_task(task, precision=task.precision, device="cuda")
    specs = [
        spec_of(task, batch_size=batch_size, num_steps=156_250, rate=rate, seed=seed, precision=task.precision)
        for seed in range(num_runs)
    ]
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    found = FleetTimer(placed, specs).speeds(repeats=repeats, seconds=seconds)
    median = statistics.median(found)
    return {
        "task": name,
        "batch_size": batch_size,
        "num_runs": num_runs,
        "precision": task.precision,
        "run_updates_per_second": median,
        "lowest": min(found),
        "highest": max(found),
        "examples_per_second": median * batch_size,
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        "num_windows": len(found),
        "seconds_in_all": time.perf_counter() - start,
    }


def equality(name: str, batch_size: int, precision: Any) -> dict[str, Any]:
    """Return the largest relative differences between fleet and reference after a few updates of two runs."""
    task = made_task(name)
    num = 4_096 if task.unroll is None else 40_000
    small = dataclasses.replace(task, **{part: (split[0][:num], split[1][:num]) for part, split in task.splits.items()})
    placed = place_task(small, precision=precision, device="cuda")
    specs = [
        spec_of(small, batch_size=batch_size, num_steps=NUM_EQUAL_UPDATES, rate=0.05, seed=seed, precision=precision)
        for seed in range(2)
    ]
    pairs = list(zip(run_fleet(placed, specs), (run_reference(placed, s) for s in specs), strict=True))
    return {
        "task": name,
        "batch_size": batch_size,
        "precision": precision,
        "num_runs": len(specs),
        "num_updates": NUM_EQUAL_UPDATES,
        "largest_relative_difference": {
            q: max(abs(getattr(a, q) - getattr(b, q)) / max(abs(getattr(b, q)), 1e-30) for a, b in pairs)
            for q in COMPARED
        },
    }


def main() -> None:
    """Measure all rows and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=None, help="names of tasks")
    parser.add_argument("--warm", action="store_true", help="compile, measure one short window, write nothing")
    parser.add_argument("--no-equality", action="store_true", help="measure the speeds only")
    options = parser.parse_args()
    with refusing_warnings():
        _measure(options)


def _measure(options: argparse.Namespace) -> None:
    repeats, seconds = (1, 0.0) if options.warm else (options.repeats, options.seconds)
    content: dict[str, Any] = {
        "command": "python benchmarks/throughput.py",
        "remark": "alone on the GPU; made-up data; median, lowest and highest of the windows",
        "rows": [],
        "equality": [],
    }
    if options.json is not None and options.json.exists():
        content = json.loads(options.json.read_text())
    where = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": options.commit}

    def keep(kind: str, found: dict[str, Any], *, by: tuple[str, ...]) -> None:
        """Replace an older row and write all, so that no measurement is lost."""
        found = {**found, **where}
        print(json.dumps(found), flush=True)
        others = [r for r in content[kind] if any(r[name] != found[name] for name in by)]
        content[kind] = [*others, found]
        if options.json is not None and not options.warm:
            options.json.write_text(json.dumps(content, indent=1) + "\n")

    for name, *settings in WORKLOADS:
        if options.only is not None and name not in options.only:
            continue
        try:
            found = row(name, *settings, repeats=repeats, seconds=seconds)  # type: ignore[arg-type]
        except Exception as error:  # a row that fails is recorded with its error
            found = {"task": name, "batch_size": settings[0], "error": f"{type(error).__name__}: {error}"[:500]}
        keep("rows", found, by=("task", "batch_size"))
        gc.collect()
        torch.cuda.empty_cache()
    if not options.warm and not options.no_equality:
        for settings_ in EQUALITY:
            keep("equality", equality(*settings_), by=("task", "batch_size", "precision"))


if __name__ == "__main__":
    main()
