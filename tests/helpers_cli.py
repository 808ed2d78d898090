"""A folder with a user's code in it, and what tests of the command line do there."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from isotherm.cli.cell import Cell, prepare_cell
from isotherm.cli.cell_options import CellSettings
from isotherm.cli.main import app
from isotherm.core.budget import Budget
from isotherm.data import cifar
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.running.store import Store
from isotherm.tasks.task import Task

STUDY_CODE = '''
import torch
from torch import nn
import isotherm as it

def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    return torch.randn(n, 3, generator=g) + 1.5 * y[:, None], y

def model():
    return nn.Linear(3, 2)

def task():
    return it.Task(name="blobs", model=model, train=data(64, 0), test=data(32, 1))

def sweep():
    return it.Sweep(name="tiny", task=task(), batch_sizes=[8, 16, 32], effective_learning_rates=[0.125, 0.5, 2.0],
                    budget=it.Budget.steps(10), num_seeds=2, num_kept=1, tune_on="test", max_extensions=0,
                    resolution="paper")

def broken_function():
    raise KeyError("no such thing")

def wrong_return():
    return 7

def misfit():
    bad = it.Task(name="misfit", model=lambda: nn.Linear(3, 1), train=data(64, 0), test=data(32, 1))
    return it.Sweep(name="misfit", task=bad, batch_sizes=[8], effective_learning_rates=[0.1], budget=it.Budget.steps(3))

class Fragile(nn.Module):
    """Raises in training as soon as its weights have grown."""
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        if self.training and float(self.layer.weight.detach().norm()) > 3.0:
            raise RuntimeError("weights too large")
        return self.layer(x)

def fragile():
    made = it.Task(name="fragile", model=Fragile, train=data(64, 0), test=data(32, 1))
    return it.Sweep(name="fragile", task=made, batch_sizes=[8], effective_learning_rates=[0.01, 1000.0],
                    budget=it.Budget.steps(10), num_seeds=2, tune_on="test", max_extensions=0,
                    resolution="paper")

def slow():
    return it.Sweep(name="slow", task=task(), batch_sizes=[1], effective_learning_rates=[0.125, 0.5, 2.0],
                    budget=it.Budget.steps(20000), num_seeds=2, tune_on="test", max_extensions=0,
                    resolution="paper")
'''

STUDY_FILE = """
name = "file"
task = "mycode:task"
[[sweep]]
name = "steps"
batch_sizes = [8, 16]
effective_learning_rates = [0.125, 0.5, 2.0]
steps = 10
num_seeds = 2
num_kept = 1
tune_on = "test"
max_extensions = 0
resolution = "paper"
"""

TASK_CODE = """
import dataclasses
from functools import partial
import torch
from torch import nn
import isotherm as it
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.models.wide_resnet import wide_resnet

def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    return torch.randn(n, 3, generator=g) + 1.5 * y[:, None], y

def model():
    return nn.Linear(3, 2)

def blobs():
    return it.Task(name="blobs", model=model, train=data(64, 0), test=data(32, 1))

def mixed():
    return dataclasses.replace(blobs(), precision="mixed", notes=("made for tests",))

def odd_name():
    return dataclasses.replace(blobs(), name="my task: 1/2")

class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        if self.training and float(self.layer.weight.detach().norm()) > 3.0:
            raise RuntimeError("weights [too] large")
        return self.layer(x)

def fragile():
    return dataclasses.replace(blobs(), name="fragile", model=Fragile)

def lstm(data=None):
    task = it.get_task("lstm_ptb", data=data)
    vocabulary = int(task.train[0].max()) + 1
    model = partial(LSTMLanguageModel, vocabulary=vocabulary, width=6, num_layers=1, drop_probability=0.0)
    return dataclasses.replace(task, name="small_lstm", model=model)

def resnet(data=None):
    task = it.get_task("wrn16x4_cifar10", data=data)
    return dataclasses.replace(task, name="small_resnet", model=partial(wide_resnet, depth=10, width=1, ghost_size=4))

def refused():
    raise ImportError("nothing there")

def odd():
    raise GeneratorExit("no exception")

def odd_model():
    return dataclasses.replace(it.get_task("mlp_mnist1d"), name="odd", model=odd)
"""

SETTING = ["--batch-size", "8", "--effective-learning-rate", "0.5", "--steps", "10"]
AUTOENCODER = ["--task", "autoencoder_mnist", "--batch-size", "4", "--effective-learning-rate", "0.05", "--steps", "2"]


def invoke(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output, on one line, of a command in this process."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def output_of(*arguments: str) -> tuple[str, str]:
    """Return standard output and standard error of a command that succeeds."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def interrupted(
    *arguments: str, after: str, seconds: float, signals: Sequence[int] = (signal.SIGINT,), to_group: bool = True
) -> tuple[int, str]:
    """Start a command, press Ctrl-C some seconds after a line with some text; return exit code and output.

    Args:
        arguments: of the command.
        after: text of the line.
        seconds: after it.
        signals: what is sent instead, one after another.
        to_group: to all its processes, as a terminal does it, or to the command alone, as a scheduler does.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "isotherm", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    while after not in process.stdout.readline():
        pass
    time.sleep(seconds)
    for number in signals:
        (os.killpg if to_group else os.kill)(process.pid, number)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=30)
    return process.returncode, output


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def run_tiny(store: str = "tiny.sqlite") -> None:
    """Run the tiny sweep of `STUDY_CODE`."""
    code, text = invoke("run", "mycode:sweep", "--store", store, "--workers", "1")
    assert code == 0, text


def rows(path: str) -> list[tuple[str, object, object]]:
    """Return key, spec and result of every run of a store."""
    with Store.read(path) as store:
        return [(run.spec.key, run.spec, run.result) for run in store.runs()]


def run_blobs(*more: str) -> str:
    """Run a cell of the smallest task of `TASK_CODE`."""
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING, *more)
    assert code == 0, text
    return text


def stored() -> list[str]:
    """Return the outcomes of all runs in all stores of the current folder."""
    outcomes = []
    for path in Path().glob("*.sqlite"):
        with Store.read(path) as store:
            outcomes += [str(run.result.outcome) for run in store.runs()]
    return outcomes


def write_ptb(folder: Path, *, test: str = " the cat \n") -> None:
    """Write a small Penn TreeBank."""
    (folder / "ptb").mkdir(parents=True)
    texts = {"train": " the cat <unk> \n the dog sees the cat \n" * 20, "valid": " the cat sees \n" * 3, "test": test}
    for split, text in texts.items():
        (folder / "ptb" / f"ptb.{split}.txt").write_text(text, newline="")


def write_cifar10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a CIFAR-10 of 20 and 4 images."""
    monkeypatch.setattr(cifar, "NUM_EXAMPLES", {"train": 20, "test": 4})
    own = folder / "cifar10" / "cifar-10-batches-bin"
    own.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = generator.integers(256, size=(4, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (own / f"{name}.bin").write_bytes(records.tobytes())


def small_model() -> nn.Module:
    """Return a network with ghost batch norm."""
    return nn.Sequential(nn.Conv2d(1, 2, 1), GhostBatchNorm2d(2, ghost_size=4), nn.Flatten(), nn.Linear(8, 2))


def small_cell(*, device: str = "cpu", **changes: object) -> Cell:
    """Return a cell of three runs and three updates, with some settings changed."""
    inputs = torch.randn(16, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    targets = (inputs.sum(dim=(1, 2, 3)) > 0).long()
    task = Task(
        name="small",
        model=small_model,
        train=(inputs, targets),
        test=(inputs[:8], targets[:8]),
        l2=1e-3,
        clip_norm=1.0,
        precision="mixed",
    )
    settings = CellSettings(batch_size=8, effective_learning_rate=0.5, budget=Budget.steps(3), num_seeds=3)
    return prepare_cell(task, dataclasses.replace(settings, **changes), device=device)  # type: ignore[arg-type]
