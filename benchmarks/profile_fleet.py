"""How fast a fleet is on a GPU, and which kernels take the time.

Run:     python benchmarks/profile_fleet.py wrn16x4_cifar10:1024 autoencoder_mnist:64 --json profiles.json
Cost:    a minute or two of compilation for each workload, three for the LSTM; a few seconds of timing
Expect:  the speeds of `isotherm bench --device cuda`, without peers

Several of these processes may run at once with one `--turns FILE`: they compile at the same time, but from the first
compiled operation on, and so also while cuDNN tries its convolutions, one at a time has the GPU to itself.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._inductor.output_code import CompiledFxGraph

from isotherm.bench.fleet import refusing_warnings, specs_of
from isotherm.bench.machine import commit, machine
from isotherm.bench.tasks import timed_task
from isotherm.bench.workloads import Workload, chosen_workloads
from isotherm.engine.placed_task import place_task
from isotherm.running.timing import FleetTimer

NUM_KERNELS = 15  # in a result file


class Turns:
    """The GPU for one process at a time, if there is a lock file."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("w")
        self._has = False

    def take(self) -> None:
        """Wait for the GPU and keep it until the process ends."""
        if self._file is not None and not self._has:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._has = True

    def take_before_compiled_code(self) -> None:
        """Wait just before compiled code runs for the first time."""
        run = CompiledFxGraph.__call__

        def call(graph: CompiledFxGraph, *arguments: Any, **options: Any) -> Any:
            self.take()
            return run(graph, *arguments, **options)

        CompiledFxGraph.__call__ = call  # type: ignore[assignment, method-assign]


def profiled(workload: Workload, turns: Turns, *, repeats: int, seconds: float, num_kernels: int) -> dict[str, Any]:
    """Return a workload's speed in several windows, and the kernels of a short one after them."""
    task = timed_task(workload.task)
    specs = specs_of(workload, task)
    speeds: list[float] = []
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    torch.cuda.reset_peak_memory_stats()

    def turn(speed: float | None) -> float | None:
        turns.take()
        if speed is not None:
            speeds.append(speed)
        if len(speeds) < repeats:
            return seconds
        if len(speeds) == repeats:
            with warnings.catch_warnings(action="ignore"):  # the profiler's own
                profiler.start()
            return 0.01
        torch.cuda.synchronize()
        profiler.stop()
        return None

    with refusing_warnings():
        FleetTimer(place_task(task, precision=workload.precision, device="cuda"), specs).speeds_in_turn(turn)
    speeds = speeds[:repeats]
    median = statistics.median(speeds)
    return {
        "label": workload.label,
        "num_runs": workload.num_runs,
        "run_steps_per_second": median,
        "images_per_second": median * workload.batch_size,
        "windows": speeds,
        "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
        "commit": commit(),
        "note": "",
        "kernels": kernels(profiler, num_kernels),
    }


def kernels(profiler: torch.profiler.profile, num: int) -> list[dict[str, Any]]:
    """Return the kernels that take longest."""
    found = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
    total = sum(event.self_device_time_total for event in found)
    found.sort(key=lambda event: -event.self_device_time_total)
    return [
        {
            "name": event.key[:110],
            "percent": round(100 * event.self_device_time_total / total, 2),
            "calls": event.count,
            "microseconds": round(event.self_device_time_total / event.count, 2),
        }
        for event in found[:num]
    ]


def show(row: dict[str, Any]) -> None:
    """Print a workload's speed and kernels."""
    print(f"{row['label']}: {row['run_steps_per_second']:,.1f} run-steps/s, {row['images_per_second']:,.0f} images/s")
    for found in row["kernels"]:
        print(f"  {found['percent']:5.1f} % {found['calls']:6} x {found['microseconds']:8.1f} µs  {found['name']}")


def main() -> None:
    """Profile the workloads named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", help="as `isotherm bench --device cuda --list` names them")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.8)
    parser.add_argument("--kernels", type=int, default=NUM_KERNELS, help="number of kernels to list, heaviest first")
    parser.add_argument("--turns", type=Path, help="a file to lock while the GPU is used")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    turns = Turns(options.turns)
    turns.take_before_compiled_code()
    rows = []
    for workload in chosen_workloads(options.workloads, device="cuda"):
        assert isinstance(workload, Workload)
        row = profiled(workload, turns, repeats=options.repeats, seconds=options.seconds, num_kernels=options.kernels)
        rows.append(row)
        show(row)
        if options.json is not None:
            options.json.write_text(json.dumps({"machine": machine("cuda"), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
