"""How the cost of a fleet grows with its runs and its batch size, and the gain when runs diverge.

Run:     python benchmarks/growth.py --json benchmarks/results/growth_cpu.json [--device cuda]
         python benchmarks/growth.py --draw benchmarks/results/growth_cpu.json
Cost:    about four minutes on one core
Expect:  run-updates per second rise with the number of runs and then level off; a fleet that loses half of its runs
         early needs at most 0.6 of the time of an intact one

One process with one thread, like a worker of `isotherm run`; a GPU has one process anyway. All fleet sizes of one batch
size take turns, so that a temporary slowdown of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from isotherm.bench.fleet import NUM_STEPS, refusing_warnings, spec_of
from isotherm.bench.machine import commit, machine
from isotherm.core.records import Outcome, RunSpec
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.timing import FleetTimer
from isotherm.tasks.builtin import made_task
from isotherm.tasks.task import Task

TASK = "mlp_mnist1d"
NUM_RUNS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
BATCH_SIZES = (8, 32, 128, 512)
NUM_SEEDS = 5
# Most examples of all runs together: beyond this, nothing new shows and it takes long.
MOST_EXAMPLES = 2**17
SHRINK_RUNS, SHRINK_BATCH, SHRINK_STEPS = 54, 32, 3_000


def specs_of(task: Task, *, batch_size: int, num_runs: int, num_steps: int = NUM_STEPS) -> list[RunSpec]:
    """Return `num_runs` runs, a few seeds at many learning rates."""
    return [
        spec_of(
            task,
            batch_size=batch_size,
            num_steps=num_steps,
            rate=1e-3 * (1 + place / num_runs),
            seed=place % NUM_SEEDS,
            precision=task.precision,
        )
        for place in range(num_runs)
    ]


def growth(task: Task, placed: PlacedTask, *, device: str, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """Return run-updates per second of one fleet of every size, and the size that Isotherm would choose."""
    rows = []
    for batch_size in BATCH_SIZES:
        chosen = LocalExecutor({("made", "made"): task}, device=device).default_fleet_size(
            specs_of(task, batch_size=batch_size, num_runs=1)[0]
        )
        sizes = sorted({n for n in (*NUM_RUNS, chosen) if n == 1 or n * batch_size <= MOST_EXAMPLES})
        found: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(repeats):
            for size in sizes:
                specs = specs_of(task, batch_size=batch_size, num_runs=size)
                found[size] += FleetTimer(placed, specs).speeds(repeats=1, seconds=seconds)
        for size, speeds in found.items():
            rows.append(
                {
                    "batch_size": batch_size,
                    "num_runs": size,
                    "run_updates_per_second": statistics.median(speeds),
                    "lowest": min(speeds),
                    "highest": max(speeds),
                    "repeats": repeats,
                    "is_chosen": size == chosen,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def shrink(task: Task, placed: PlacedTask, *, repeats: int) -> dict[str, Any]:
    """Return alternating times of an intact fleet and of one whose every second run diverges immediately."""
    whole = specs_of(task, batch_size=SHRINK_BATCH, num_runs=SHRINK_RUNS, num_steps=SHRINK_STEPS)
    half = [dataclasses.replace(s, effective_learning_rate=1e30) if place % 2 else s for place, s in enumerate(whole)]
    times: dict[str, list[float]] = {"whole": [], "half": []}
    for _ in range(repeats):
        for name, specs in (("whole", whole), ("half", half)):
            start = time.perf_counter()
            results = run_fleet(placed, specs)
            times[name].append(time.perf_counter() - start)
            num_lost = sum(r.outcome is Outcome.DIVERGED for r in results)
            assert num_lost == (0 if name == "whole" else SHRINK_RUNS // 2), num_lost
    ratios = [b / a for a, b in zip(times["whole"], times["half"], strict=True)]
    found = {
        "num_runs": SHRINK_RUNS,
        "batch_size": SHRINK_BATCH,
        "num_updates": SHRINK_STEPS,
        "seconds_whole": times["whole"],
        "seconds_half_diverged": times["half"],
        "ratio": statistics.median(ratios),
        "goal": 0.6,
    }
    print(json.dumps(found), flush=True)
    return found


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw speed and cost per run against the number of runs."""
    from matplotlib.figure import Figure

    from isotherm.report.style import ordered_styles

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    speed, cost = figure.subplots(1, 2)
    batch_sizes = sorted({row["batch_size"] for row in content["growth"]})
    for batch_size, style in zip(batch_sizes, ordered_styles(len(batch_sizes)), strict=True):
        rows = sorted((r for r in content["growth"] if r["batch_size"] == batch_size), key=lambda r: r["num_runs"])
        x = [row["num_runs"] for row in rows]
        y = [row["run_updates_per_second"] for row in rows]
        error = [
            [value - row["lowest"] for value, row in zip(y, rows, strict=True)],
            [row["highest"] - value for value, row in zip(y, rows, strict=True)],
        ]
        label = {"label": f"B = {batch_size}", "color": style.colour, "marker": style.marker, "markersize": 4}
        speed.errorbar(x, y, yerr=error, capsize=2, **label)
        cost.plot(x, [1e6 / v for v in y], **label)
        for axes, values in ((speed, y), (cost, [1e6 / v for v in y])):
            chosen = [(a, b) for a, b, row in zip(x, values, rows, strict=True) if row["is_chosen"]]
            axes.scatter(*zip(*chosen, strict=True), s=110, facecolors="none", edgecolors=style.colour, zorder=3)
    speed.set_ylabel("run-updates per second")
    cost.set_ylabel("µs per run and update")
    for axes in (speed, cost):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("runs in one fleet")
        axes.grid(alpha=0.3)
    figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"MLP 40-100-100-10, {content['where']}; a ring marks the size that Isotherm chooses", fontsize=10)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--draw", type=Path, help="draw this JSON file instead of measuring")
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/growth.png"))
    options = parser.parse_args()
    if options.draw is not None:
        draw(json.loads(options.draw.read_text()), options.figure)
        return
    torch.set_num_threads(1)
    task = made_task(TASK)
    placed = place_task(task, precision=task.precision, device=options.device)
    with refusing_warnings():
        content = {
            "command": "python benchmarks/growth.py",
            "commit": commit(),
            "machine": machine(options.device),
            "where": "one core" if options.device == "cpu" else torch.cuda.get_device_name(),
            "task": TASK,
            "shrink": shrink(task, placed, repeats=options.repeats),
            "growth": growth(task, placed, device=options.device, repeats=options.repeats, seconds=options.seconds),
        }
    if options.json is not None:
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
