"""Does the fleet reproduce the reference's numbers on this device and PyTorch?

Run:     python benchmarks/engine_equality.py --device cuda --json benchmarks/results/engine_equality_cuda.json
Cost:    under a minute
Expect:  largest relative difference of any parameter after 200 updates below 1e-9 in float64, for every module
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
from torch import nn

import isotherm as it
from isotherm.core.records import RunSpec
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.engine.reference import run_reference

GENERATOR = torch.Generator().manual_seed(0)
VECTORS = torch.randn(96, 12, generator=GENERATOR)
IMAGES = torch.randn(96, 1, 8, 8, generator=GENERATOR)
LABELS = torch.randint(0, 3, (96,), generator=GENERATOR)

MODULES = {
    "mlp": (VECTORS, lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))),
    "dropout": (VECTORS, lambda: nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))),
    "batch_norm": (VECTORS, lambda: nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))),
    "convolution": (
        IMAGES,
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        ),
    ),
}


def largest_difference(inputs: torch.Tensor, build: object, *, device: str) -> tuple[float, int]:
    """Return the largest relative difference between fleet and reference, and the number of runs compared."""
    task = it.Task(name="check", model=build, train=(inputs, LABELS), test=(inputs[:32], LABELS[:32]))  # type: ignore[arg-type]
    placed = place_task(task, precision="float64", device=device)
    specs = [
        RunSpec(
            task="check",
            data_id="",
            model_id="",
            batch_size=16,
            num_steps=200,
            effective_learning_rate=rate,
            momentum=momentum,
            gamma=2.0,
            l2=1e-3,
            l2_scope="weights",
            precision="float64",
            num_evaluations=2,
            seed=seed,
        )
        for rate in (0.05, 0.2)
        for momentum in (0.0, 0.9)
        for seed in (0, 1)
    ]
    fleet: dict[int, dict[str, torch.Tensor]] = {}
    run_fleet(placed, specs, on_trained=lambda i, p: fleet.__setitem__(i, {n: t.clone() for n, t in p.items()}))
    worst = 0.0
    for index, spec in enumerate(specs):
        found: list[nn.Module] = []
        run_reference(placed, spec, on_trained=found.append)
        for name, parameter in found[0].named_parameters():
            ours, plain = fleet[index][name], parameter.detach()
            worst = max(worst, float((ours - plain).norm() / plain.norm()))
    return worst, len(specs)


def main() -> None:
    """Compare every module, print a table, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", help="of the code, if it is not a checkout")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name, (inputs, build) in MODULES.items():
        start = time.perf_counter()
        worst, num_runs = largest_difference(inputs, build, device=arguments.device)
        rows.append({"module": name, "num_runs": num_runs, "largest_relative_difference": worst})
        print(
            f"{name:12s} {num_runs} runs  largest relative difference {worst:.2e}  {time.perf_counter() - start:.1f} s"
        )
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or platform.machine()
    content = {
        "command": f"python benchmarks/engine_equality.py --device {arguments.device}",
        "commit": arguments.commit,
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "num_updates": 200,
        "precision": "float64",
        "rows": rows,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    assert all(row["largest_relative_difference"] < 1e-9 for row in rows), "the fleet differs from the reference"


if __name__ == "__main__":
    main()
