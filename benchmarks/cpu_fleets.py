"""Fleets of several kinds of networks on one core, as ratios to the plain loop; a row of docs/performance.md each.

    python benchmarks/cpu_fleets.py            # writes benchmarks/results/cpu_fleets.json
    python benchmarks/cpu_fleets.py NAME ...   # some networks, printed only

Processor time, which other programs hardly change; all contenders take turns, and the quickest window of each counts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.bench.fleet import spec_of
from isotherm.bench.machine import commit, machine
from isotherm.core.json import json_text
from isotherm.data import synthetic
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.run_stack import Listeners, RunStack
from isotherm.models.gpt import GPT
from isotherm.models.mlp import mlp
from isotherm.tasks.task import Task
from pages.results import RESULTS

FILE = RESULTS / "cpu_fleets.json"
SIZES = (1, 2, 4, 8, 16, 28)
WINDOWS, SECONDS, UPDATES = 6, 0.05, 2
VOCABULARY = 40


class LSTM(nn.Module):
    """A language model of one layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(VOCABULARY, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of every next token."""
        logits: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return logits


def cnn(first: int, second: int, dense: int) -> nn.Module:
    """Return two convolutions with batch norm and pooling, and two dense layers, for images (1, 28, 28)."""
    layers: list[nn.Module] = []
    for num_in, num_out in ((1, first), (first, second)):
        layers += [nn.Conv2d(num_in, num_out, 3, padding=1), nn.BatchNorm2d(num_out), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(49 * second, dense), nn.ReLU(), nn.Linear(dense, 10))


def on_vectors(model: Callable[[], nn.Module]) -> Task:
    """Return a classifier of vectors of 40."""
    train, test = synthetic.vectors(num_features=40, num_classes=10)
    return Task(name="vectors", model=model, train=train, test=test)


def on_images(model: Callable[[], nn.Module]) -> Task:
    """Return a classifier of images (1, 28, 28)."""
    train, test = ((x / 255.0, y) for x, y in synthetic.images(num_train=2_000, shape=(1, 28, 28), num_classes=10))
    return Task(name="images", model=model, train=train, test=test)


def on_tokens(model: Callable[[], nn.Module], length: int) -> Task:
    """Return a task that labels every token of a window."""
    x = torch.randint(0, VOCABULARY, (2_000, length), generator=torch.Generator().manual_seed(0))
    return Task(name="tokens", model=model, train=(x, x.roll(-1, 1)), test=(x[:100], x[:100].roll(-1, 1)))


def gpt(**options: float) -> Callable[[], nn.Module]:
    """Return the builder of a transformer."""
    return partial(GPT, vocabulary=VOCABULARY, **{"num_layers": 2, "num_heads": 4, "width": 32, **options})  # type: ignore[arg-type]


# Tasks with a batch size and the largest fleet.
NETWORKS: dict[str, tuple[Callable[[], Task], int, int]] = {
    "MLP 40-100-100-10": (lambda: on_vectors(partial(mlp, (40, 100, 100, 10))), 8, 28),
    "MLP 40-100-100-10, large batch": (lambda: on_vectors(partial(mlp, (40, 100, 100, 10))), 128, 28),
    "CNN 8, 16, batch norm, dense 64 on 28 × 28": (lambda: on_images(partial(cnn, 8, 16, 64)), 16, 28),
    "CNN 32, 64, batch norm, dense 128 on 28 × 28": (lambda: on_images(partial(cnn, 32, 64, 128)), 64, 8),
    "GPT, 2 layers × 32, T = 16": (lambda: on_tokens(gpt(context=16), 16), 16, 28),
    "GPT, 2 layers × 32, T = 16, dropout 0.1": (lambda: on_tokens(gpt(context=16, drop_probability=0.1), 16), 16, 28),
    "GPT, 2 layers × 32, T = 32": (lambda: on_tokens(gpt(context=32), 32), 32, 28),
    "GPT, 4 layers × 128, T = 64": (lambda: on_tokens(gpt(context=64, width=128, num_layers=4), 64), 8, 8),
    "LSTM 32, T = 16": (lambda: on_tokens(partial(LSTM, 32), 16), 16, 28),
    "LSTM 128, T = 32": (lambda: on_tokens(partial(LSTM, 128), 32), 16, 8),
}


def fleet(task: Task, batch_size: int, num_runs: int) -> Callable[[], None]:
    """Return what makes a few updates of a fleet."""
    how = {"batch_size": batch_size, "num_steps": 1_000_000, "rate": 1e-4, "precision": "float32"}
    specs = [spec_of(task, seed=seed, **how) for seed in range(num_runs)]  # type: ignore[arg-type]
    plan = StackPlan.of(place_task(task, precision="float32"), specs, convolves=False, updates_per_window=UPDATES)
    stack = RunStack.of(plan, Listeners())

    def advance() -> None:
        stack.start_window()
        stack.finish_window()

    return advance


def plain_loop(task: Task, batch_size: int) -> Callable[[], None]:
    """Return what makes as many updates of one run in a loop as most people write it."""
    model, (x, y) = task.model().train(), task.train
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
    assert isinstance(x, Tensor)

    def advance() -> None:
        for _ in range(UPDATES):
            index = torch.randint(0, len(x), (batch_size,))
            optimizer.zero_grad()
            task.loss_function(model(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return advance


def speeds(contenders: dict[int, Callable[[], None]]) -> dict[int, float]:
    """Return run-updates per second of processor time, of 0 for the plain loop and of every size of fleet."""
    best = dict.fromkeys(contenders, 0.0)
    for _ in range(WINDOWS):
        for size, advance in contenders.items():
            start, num = time.process_time(), 0
            while num < 2 or time.process_time() - start < SECONDS:
                advance()
                num += 1
            best[size] = max(best[size], num * UPDATES * max(1, size) / (time.process_time() - start))
    return best


def measured(name: str) -> dict[str, Any]:
    """Return the ratios of a network by fleet size."""
    make, batch_size, largest = NETWORKS[name]
    task = make()
    contenders = {0: plain_loop(task, batch_size)}
    contenders |= {size: fleet(task, batch_size, size) for size in SIZES if size <= largest}
    for advance in contenders.values():
        advance()
    found = speeds(contenders)
    ratios = {str(size): found[size] / found[0] for size in SIZES if size in found}
    return {"network": name, "batch_size": batch_size, "ratios": ratios}


def main(names: list[str]) -> None:
    """Print a row for every network, and write the file if they are all measured."""
    torch.set_num_threads(1)
    rows, loads = [], [os.getloadavg()[0]]
    for name in names or NETWORKS:
        rows.append(measured(name))
        loads.append(os.getloadavg()[0])
        ratios = ", ".join(f"{size}: {ratio:.2f}" for size, ratio in rows[-1]["ratios"].items())
        print(f"{name}, B = {rows[-1]['batch_size']}: {ratios}", flush=True)
    if not names:
        FILE.write_text(json_text(content_of(rows, load=(min(loads), max(loads)))))


def content_of(rows: list[dict[str, Any]], *, load: tuple[float, float]) -> dict[str, Any]:
    """Return what the result file holds; `load` is the least and the highest load average meanwhile."""
    return {
        "command": "python benchmarks/cpu_fleets.py",
        "machine": machine("cpu"),
        "commit": commit(),
        "windows": WINDOWS,
        "load": list(load),
        "rows": rows,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
