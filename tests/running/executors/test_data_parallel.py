"""Two processes of torchrun share a run: the numbers of one process, stored once by the first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers_protocol import assert_same_results
from isotherm.core.launch import check_launch
from isotherm.core.records import Outcome, RunResult
from isotherm.errors import UserError
from isotherm.running.runner import run
from isotherm.running.store import Store

CODE = '''
import os

import torch
from torch import nn
import isotherm as it
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d

def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 3, 6, 6, generator=g)
    x[torch.arange(n), y] += 0.7
    return x, y

class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.drop, self.last = nn.Conv2d(3, 5, 3), norm, nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))))

class Slow(Net):
    """Its second process dies in training where the test says so."""
    def forward(self, x):
        if self.training and os.environ.get("RANK") == "1" and torch.distributed.is_initialized():
            os._exit(1)
        return super().forward(x)

def task(model, **changes):
    return it.Task(name="shared", model=model, train=data(96, 0), test=data(30, 1), **changes)

def ghost():
    return Net(GhostBatchNorm2d(5, ghost_size=8))

def mixing():
    return Net(nn.BatchNorm2d(5))

def dying():
    return Slow(GhostBatchNorm2d(5, ghost_size=8))

def sweep(model=ghost, rates=(0.5, 2.0, 1e6), **changes):
    fields = dict(batch_sizes=[24], effective_learning_rates=list(rates), budget=it.Budget.steps(40), num_seeds=1,
                  num_kept=1, tune_on="test", max_extensions=0, resolution="paper", precision="float64",
                  clip_norm=0.5, num_evaluations=2)
    return it.Sweep(name="shared", task=task(model), **{**fields, **changes})

def ghost_task():
    return task(ghost)
'''

SCRIPT = """
import sys
import isotherm as it
import shared

it.run(getattr(shared, "sweep")(getattr(shared, sys.argv[1])), store="two.sqlite", executor="torchrun", progress=False)
"""


@dataclass(frozen=True)
class Ended:
    code: int
    text: str


def start_two(folder: Path, *arguments: str) -> list[Ended]:
    """Start two processes as torchrun does, and return how they ended."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, **own, "RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": path, "COLUMNS": "500"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=30)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [Ended(process.returncode, text) for process, text in zip(started, texts, strict=True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shared.py").write_text(CODE)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def results_in(path: Path) -> dict[str, RunResult]:
    with Store.read(path) as store:
        return dict(store.results())


def test_two_processes_give_the_numbers_of_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ghost batch norm, dropout and clipping, over 40 updates, and at a learning rate that diverges."""
    leader, follower = start_two(folder, "script.py", "ghost")
    assert (leader.code, follower.code) == (0, 0), leader.text + follower.text
    assert follower.text == ""
    monkeypatch.syspath_prepend(str(folder))
    import shared  # type: ignore[import-not-found]

    run(shared.sweep(), store=folder / "one.sqlite", workers=1, progress=False)
    one, two = results_in(folder / "one.sqlite"), results_in(folder / "two.sqlite")
    assert len(one) == 3
    assert {result.outcome for result in one.values()} >= {Outcome.FINISHED}
    assert_same_results(two, one, tolerance=1e-9)
    with Store.read(folder / "two.sqlite") as store:
        assert {(row.provenance["processes"], row.provenance["micro_batch_size"]) for row in store.runs()} == {(2, 8)}


def test_a_model_that_mixes_examples_is_refused(folder: Path) -> None:
    leader, follower = start_two(folder, "script.py", "mixing")
    assert leader.code != 0
    assert "BatchNorm2d normalises over all examples of a batch" in leader.text
    assert (follower.code, follower.text) == (0, "")


def test_a_process_that_dies_ends_the_other_with_a_reason(folder: Path) -> None:
    leader, follower = start_two(folder, "script.py", "dying")
    assert follower.code == 1
    assert leader.code not in (0, -signal.SIGKILL)
    assert "process 0 of 2 ended the run of task 'shared'" in leader.text


def test_one_cell_by_the_command_line(folder: Path) -> None:
    """A batch of three ghost batches; then one of a single ghost batch, which two processes cannot share."""
    options = ["--task", "shared:ghost_task", "--learning-rate", "0.1", "--steps", "5", "--executor", "torchrun"]
    leader, follower = start_two(folder, "-m", "isotherm", "run", *options, "--batch-size", "24", "--store", "a.sqlite")
    assert (leader.code, follower.code) == (0, 0), leader.text + follower.text
    assert "Store: a.sqlite" in leader.text
    assert follower.text == ""
    assert [result.outcome for result in results_in(folder / "a.sqlite").values()] == [Outcome.FINISHED]
    leader, follower = start_two(folder, "-m", "isotherm", "run", *options, "--batch-size", "8", "--store", "b.sqlite")
    assert leader.code == 2
    assert "a batch is 1 parts that are computed whole (ghost batches of 8), too few for 2 processes" in leader.text


def test_torchrun_and_the_option_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="torchrun --nproc-per-node N"):
        check_launch("torchrun")
    check_launch(None)
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="add --executor torchrun"):
        check_launch("pool")
    check_launch("torchrun")
