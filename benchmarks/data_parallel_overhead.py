"""What sharing an update costs, and how PyTorch's DistributedDataParallel would do it.

Run:     torchrun --nproc-per-node 2 benchmarks/data_parallel_overhead.py --json FILE   # measures
         python benchmarks/data_parallel_overhead.py                                    # writes docs/scale.md
Cost:    two to five minutes on two cores
Expect:  both agree with one process in float64, but for the buffers of DistributedDataParallel

The cost is the time of two processes over half the time of one, measured in turn: 1 would be no cost at all, 2 no gain.
While the first process computes alone, the others wait. DistributedDataParallel trains the same model on the same parts
of the same batches, in turn with Isotherm's sum of all gradients; afterwards both are compared with one process alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from isotherm.bench.machine import commit, machine
from isotherm.core.launch import TORCHRUN, Launch, check_launch
from isotherm.engine.data_parallel import Processes
from isotherm.engine.dropout import run_keys
from isotherm.engine.micro_batch_check import micro_batches_of
from isotherm.engine.micro_batches import MicroBatches, accumulate
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.task import Task
from pages.blocks import Page
from pages.results import ROOT
from pages.text import paragraph, table

RESULT = ROOT / "benchmarks" / "results" / "data_parallel_overhead.json"
DOCUMENT = ROOT / "docs" / "scale.md"
NUM_COMPARED = 50  # updates, in float64
LEARNING_RATE, MOMENTUM = 0.02, 0.9


def images_task(batch_size: int) -> Task:
    """Return a wide ResNet 16-1 with ghost batches of 32 on noise."""
    x, y = torch.randn(batch_size, 3, 32, 32), torch.arange(batch_size) % 10
    model = partial(wide_resnet, width=1, ghost_size=32)
    return Task(name="images", model=model, train=(x, y), test=(x[:10], y[:10]))


def matmul_task(batch_size: int) -> Task:
    """Return a network with two layers of 1,000: few operations for every gradient that is sent."""
    x, y = torch.randn(batch_size, 1000), torch.arange(batch_size) % 10
    return Task(name="matmuls", model=matmuls, train=(x, y), test=(x[:10], y[:10]))


def matmuls() -> nn.Module:
    """Return the layers."""
    return nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))


def ratio(task: Task, processes: Processes, *, batch_size: int, num_rounds: int, num_updates: int) -> list[float]:
    """Return, of every round, the time of shared updates over that of one process divided by their number."""
    placed = place_task(task, precision="float32")
    cut = micro_batches_of(placed, batch_size=batch_size, size=batch_size // processes.num)
    model = placed.model(seed=0, batch_size=batch_size).train()
    batch = placed.batch(placed.order(seed=0, batch_size=batch_size).block(0, 1)[0], seed=0, step=0)
    keys, step = run_keys(0), torch.zeros((), dtype=torch.int64)

    def updates(micro_batches: MicroBatches) -> None:
        for _ in range(num_updates):
            model.zero_grad()
            accumulate(placed, model, micro_batches, batch, keys, step)

    def shared() -> None:
        updates(dataclasses.replace(cut, among=processes))

    def alone() -> None:
        if processes.rank == 0:
            updates(cut)

    def seconds(work: Callable[[], None]) -> float:
        processes.meet()
        start = time.perf_counter()
        work()
        processes.meet()
        return time.perf_counter() - start

    seconds(shared), seconds(alone)  # warm
    return [seconds(shared) / (seconds(alone) / processes.num) for _ in range(num_rounds)]


# -- DistributedDataParallel ------------------------------------------------------------------------------------------

# Computes the gradients of an update: (model, batch, update).
Gradients = Callable[[nn.Module, tuple[Tensor, Tensor], int], None]


@dataclasses.dataclass(frozen=True)
class Compared:
    """A task on this process, and how its updates are cut."""

    placed: PlacedTask
    cut: MicroBatches
    processes: Processes

    @classmethod
    def of(cls, task: Task, processes: Processes, *, batch_size: int, precision: Any) -> Compared:
        """Place a task, and cut its batches into one part for every process."""
        placed = place_task(task, precision=precision)
        cut = micro_batches_of(placed, batch_size=batch_size, size=batch_size // processes.num)
        return cls(placed, cut, processes)

    def model(self) -> nn.Module:
        """Return the untrained model, the same every time."""
        return self.placed.model(seed=0, batch_size=self.cut.batch_size).train()

    def shared(self, model: nn.Module, batch: tuple[Tensor, Tensor], update: int) -> None:
        """Compute gradients as Isotherm shares them."""
        cut = dataclasses.replace(self.cut, among=self.processes)
        accumulate(self.placed, model, cut, batch, run_keys(0), torch.tensor(update))

    def alone(self, model: nn.Module, batch: tuple[Tensor, Tensor], update: int) -> None:
        """Compute gradients in this process, part by part."""
        accumulate(self.placed, model, self.cut, batch, run_keys(0), torch.tensor(update))

    def ddp(self, model: nn.Module, batch: tuple[Tensor, Tensor], update: int) -> None:
        """Compute gradients of a model that is wrapped in DistributedDataParallel: it averages over the processes."""
        (part,) = dataclasses.replace(self.cut, among=self.processes).parts
        x, y = (values[part.start : part.stop].clone() for values in batch)
        indices = self.cut.indices(part.start)
        output, target = self.placed.training_output(model, x, y, run_keys(0), torch.tensor(update), indices=indices)
        (self.placed.loss(output, target) * self.placed.scale_of_objective()).backward()

    def batches(self, num: int) -> list[tuple[Tensor, Tensor]]:
        """Return the first batches of the run."""
        order = self.placed.order(seed=0, batch_size=self.cut.batch_size)
        return [self.placed.batch(order.block(k, k + 1)[0], seed=0, step=k) for k in range(num)]

    def trained(self, model: nn.Module, gradients: Gradients, *, num: int) -> nn.Module:
        """Return a model after so many updates of SGD."""
        steps = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        for update, batch in enumerate(self.batches(num)):
            steps.zero_grad()
            gradients(model, batch, update)
            steps.step()
        return model


def differences(task: Task, processes: Processes, *, batch_size: int) -> dict[str, float]:
    """Return the largest differences to one process alone after some updates in float64."""
    compared = Compared.of(task, processes, batch_size=batch_size, precision="float64")
    reference = compared.trained(compared.model(), compared.alone, num=NUM_COMPARED)
    ours = compared.trained(compared.model(), compared.shared, num=NUM_COMPARED)
    wrapped = DistributedDataParallel(compared.model())
    compared.trained(wrapped, compared.ddp, num=NUM_COMPARED)
    return {
        "shared_parameters": _largest(ours.parameters(), reference.parameters()),
        "ddp_parameters": _largest(wrapped.module.parameters(), reference.parameters()),
        "shared_buffers": _largest(ours.buffers(), reference.buffers()),
        "ddp_buffers": _largest(wrapped.module.buffers(), reference.buffers()),
    }


@torch.no_grad()
def _largest(found: Any, expected: Any) -> float:
    return max((float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)), default=0.0)


def milliseconds(
    task: Task, processes: Processes, *, batch_size: int, num_rounds: int, num_updates: int
) -> dict[str, list[float]]:
    """Return milliseconds per update, forward, backward and exchange, of both in turn."""
    compared = Compared.of(task, processes, batch_size=batch_size, precision="float32")
    models = {"shared": compared.model(), "ddp": DistributedDataParallel(compared.model())}
    ways: dict[str, Gradients] = {"shared": compared.shared, "ddp": compared.ddp}
    (batch,) = compared.batches(1)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, num_rounds):  # the first warms up
        for name, gradients in ways.items():
            processes.meet()
            start = time.perf_counter()
            for _ in range(num_updates):
                models[name].zero_grad()
                gradients(models[name], batch, 0)
            processes.meet()
            if turn >= 0:
                found[name].append(round(1e3 * (time.perf_counter() - start) / num_updates, 2))
    return found


# -- the page ---------------------------------------------------------------------------------------------------------


def ddp_block() -> str:
    """Return what DistributedDataParallel would change."""
    content = json.loads(RESULT.read_text())
    rows = []
    for name, found in content["tasks"].items():
        times = found["milliseconds"]
        ratio = statistics.median(a / b for a, b in zip(times["shared"], times["ddp"], strict=True))
        rows.append(
            (
                _NAMES[name],
                *(_quartiles(times[way]) for way in ("shared", "ddp")),
                f"{ratio:.2f}",
                *(f"{found['differences'][f'{way}_parameters']:.1g}" for way in ("shared", "ddp")),
                *(f"{found['differences'][f'{way}_buffers']:.1g}" for way in ("shared", "ddp")),
            )
        )
    header = ("network", "ours, ms", "DDP, ms", "ours / DDP", "parameters, ours", "DDP", "buffers, ours", "DDP")
    num = len(next(iter(content["tasks"].values()))["milliseconds"]["ddp"])
    words = (
        f"Two processes with Gloo on {content['machine']['cores']} CPU cores (load {content['load']:g} before), "
        f"batches of {content['batch_size']}: milliseconds per update in float32, median and quartiles of {num} rounds "
        f"in turn; largest difference to one process after {NUM_COMPARED} updates in float64, of parameters and of "
        "buffers."
    )
    return "\n\n".join((table(header, rows), paragraph(words)))


def _quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


_NAMES = {"images": "wide ResNet 16-1, ghost batches of 32", "matmuls": "two layers of 1,000"}
PAGE = Page(name="scale", blocks={"ddp": ddp_block})


def measure(launch: Launch, given: argparse.Namespace) -> None:
    """Measure, print a line for every model, and write the result."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same noise in every process
    load = round(os.getloadavg()[0], 1)
    processes = Processes.meeting(launch, torch.device("cpu"), seconds=600.0)
    content: dict[str, Any] = {
        "command": "torchrun --nproc-per-node 2 benchmarks/data_parallel_overhead.py --json FILE",
        "commit": commit(),
        "machine": machine("cpu"),
        "load": load,
        "batch_size": given.batch_size,
        "tasks": {},
    }
    rounds = {"batch_size": given.batch_size, "num_rounds": given.rounds, "num_updates": given.updates}
    for task in (images_task(given.batch_size), matmul_task(given.batch_size)):
        found = ratio(task, processes, **rounds)
        entry = {
            "two_over_half_of_one": [round(value, 3) for value in found],
            "milliseconds": milliseconds(task, processes, **rounds),
            "differences": differences(task, processes, batch_size=given.batch_size),
        }
        content["tasks"][task.name] = entry
        if launch.rank == 0:
            low, middle, high = statistics.quantiles(found, n=4)
            print(f"{task.name}: {middle:.2f} (quartiles {low:.2f} to {high:.2f}, n={len(found)})", flush=True)
            print(json.dumps(entry), flush=True)
    if launch.rank == 0 and given.json is not None:
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    processes.leave()


def main() -> None:
    """Measure under torchrun; else write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--json", type=Path, help="Where the measurement is kept.")
    given = parser.parse_args()
    launch = Launch.find()
    if launch is None:
        PAGE.write(DOCUMENT)
        print(f"wrote {DOCUMENT.relative_to(ROOT)}")
        return
    check_launch(TORCHRUN)
    measure(launch, given)


if __name__ == "__main__":
    main()
