"""What sharing an update costs: the time of two processes over half the time of one, measured in turn.

    torchrun --nproc-per-node 2 benchmarks/data_parallel_overhead.py

1 would be no cost at all, 2 no gain. While the first process computes alone, the others wait.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from isotherm.core.launch import TORCHRUN, Launch, check_launch
from isotherm.engine.data_parallel import Processes
from isotherm.engine.dropout import run_keys
from isotherm.engine.micro_batch_check import micro_batches_of
from isotherm.engine.micro_batches import MicroBatches, accumulate
from isotherm.engine.placed_task import place_task
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.task import Task


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


def main() -> None:
    """Measure and print a line for every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=3)
    given = parser.parse_args()
    check_launch(TORCHRUN)
    launch = Launch.find()
    assert launch is not None
    torch.set_num_threads(1)
    processes = Processes.meeting(launch, torch.device("cpu"), seconds=600.0)
    for task in (images_task(given.batch_size), matmul_task(given.batch_size)):
        found = ratio(task, processes, batch_size=given.batch_size, num_rounds=given.rounds, num_updates=given.updates)
        if launch.rank == 0:
            low, middle, high = statistics.quantiles(found, n=4)
            print(f"{task.name}: {middle:.2f} (quartiles {low:.2f} to {high:.2f}, n={len(found)})", flush=True)
    processes.leave()


if __name__ == "__main__":
    main()
