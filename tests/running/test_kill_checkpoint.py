"""The kill test within fleets: killed again and again, a long fleet goes on from its checkpoints with the same bits."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from test_kill import _children, _wait_for_end, rows
from torch import Tensor, nn

import cases_paper
from helpers_protocol import Recorder
from isotherm.core.budget import Budget
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.running.executors.checkpoints import CheckpointFolder
from isotherm.running.runner import run
from isotherm.sweep.sweep import Sweep

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")]

SECONDS = 0.05


class DroppingGhostNet(nn.Module):
    """A convolution with ghost batch norm, then dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), GhostBatchNorm2d(8, ghost_size=4)
        self.drop, self.linear = nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.drop(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))))


def long_sweep(*, batch_sizes: list[int], num_steps: int) -> Sweep:
    """Return a long fleet for every batch size: two seeds, two learning rates, cropped and flipped images."""
    return Sweep(
        task=cases_paper.image_task(DroppingGhostNet),
        batch_sizes=batch_sizes,
        effective_learning_rates=[0.0625, 0.25],
        budget=Budget.steps(num_steps),
        momentum=0.9,
        l2=5e-4,
        num_seeds=2,
        tune_on="test",
        num_evaluations=3,
        max_extensions=0,
        resolution="paper",
        precision="float32",
    )


# -- the other side ------------------------------------------------------------------------------------------------


class _Teller(logging.Handler):
    """Passes on the lines of the log."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.INFO)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self._connection.send(record.getMessage())


def _train(path: Path, sweep: Sweep, workers: int, connection: Connection) -> None:
    torch.set_num_threads(1)
    logger = logging.getLogger("isotherm")
    logger.setLevel(logging.INFO)
    logger.addHandler(_Teller(connection))
    recorder = Recorder()
    run(sweep, store=path, workers=workers, checkpoint_seconds=SECONDS, progress=recorder)
    connection.send(recorder.work)


# -- this side -----------------------------------------------------------------------------------------------------


def start(path: Path, *options: Any) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_train, args=(path, *options, theirs))
    process.start()
    theirs.close()
    return process, ours


def heard(connection: Connection) -> list[Any]:
    """Return all that a process said before it ended."""
    found = []
    try:
        while True:
            found.append(connection.recv())
    except (EOFError, OSError):
        return found


def finish(path: Path, *options: Any) -> list[Any]:
    """Train to the end; return what was said, the work done last."""
    process, connection = start(path, *options)
    said = heard(connection)
    process.join()
    assert process.exitcode == 0
    return said


def saves(folder: CheckpointFolder) -> dict[str, int]:
    """Return the checkpoints by name, and when each was written."""
    try:
        found = [(entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder.path)]
    except FileNotFoundError:
        return {}
    return {name: written for name, written in found if not name.endswith(".tmp")}


def kill(path: Path, *options: Any, folder: CheckpointFolder, num_saved: int, delay: float) -> list[Any]:
    """Kill a process so long after so many fleets have been saved by it; return what it said."""
    before = saves(folder)
    process, connection = start(path, *options)
    assert process.pid is not None
    deadline, seen = time.monotonic() + 60.0, set[str]()
    while len(seen) < num_saved:
        seen |= {name for name, written in saves(folder).items() if before.get(name) != written}
        assert process.is_alive(), "it ended before it was killed"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.01)
    time.sleep(delay)
    children = _children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it ended before it was killed"
    _wait_for_end(children)
    return heard(connection)


@pytest.mark.parametrize(
    ("batch_sizes", "num_steps", "workers", "num_kills"),
    # Seven and four blocks of updates; a process that is killed makes one or two of them.
    [([8], 320, 1, 3), ([8, 16], 192, 2, 1)],
)
def test_killed_fleets_go_on_with_the_same_bits(
    tmp_path: Path, batch_sizes: list[int], num_steps: int, workers: int, num_kills: int
) -> None:
    sweep = long_sweep(batch_sizes=batch_sizes, num_steps=num_steps)
    straight, killed = tmp_path / "straight.sqlite", tmp_path / "killed.sqlite"
    whole = Recorder()  # in this process, which warms it up for those it forks
    run(sweep, store=straight, progress=whole)
    folder = CheckpointFolder.beside(killed, seconds=SECONDS)
    generator = random.Random(2020)
    for attempt in range(num_kills):
        delay = generator.uniform(0.0, SECONDS)
        said = kill(killed, sweep, workers, folder=folder, num_saved=len(batch_sizes), delay=delay)
        goes_on = [f"continuing from the checkpoint {folder.path / name}" for name in saves(folder)]
        assert said == (goes_on if attempt and workers == 1 else [])  # what workers tell at this level is not passed on
        assert 1 <= len(saves(folder)) <= len(batch_sizes)  # one of two fleets may be done
    *_, work = finish(killed, sweep, workers)
    assert work < 0.95 * whole.work  # the rest was made by those that were killed
    assert len(rows(killed)) == 4 * len(batch_sizes)
    assert rows(killed) == rows(straight)
    assert not folder.path.exists()
