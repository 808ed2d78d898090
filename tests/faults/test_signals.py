"""Signals to a command that trains: once stops cleanly, twice at once, and no worker outlives its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers_cli import interrupted, invoke, rows
from helpers_protocol import Recorder, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.running.runner import run
from isotherm.running.stopping import Stopped, Stopping

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc of Linux")
SLOW = ["run", "mycode:slow", "--store", "a.sqlite", "--fleet-size", "2"]


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """Have signals as a process of one's own has them: a library that another test imported may have set handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("study_folder")
@pytest.mark.parametrize(("number", "workers", "to_group"), [(signal.SIGTERM, "2", False), (signal.SIGHUP, "2", True)])
def test_a_signal_stops_cleanly_and_the_same_command_goes_on(number: int, workers: str, to_group: bool) -> None:
    command = [*SLOW, "--workers", workers]
    code, output = interrupted(*command, after="runs", seconds=1.0, signals=[number], to_group=to_group)
    assert code == 128 + number, output
    assert "stopping: a checkpoint is written" in output
    assert "the same command resumes from there" in output
    saved = list(Path("a.sqlite.checkpoints").iterdir())
    assert saved, "long before the 60 seconds after which a checkpoint is written by itself"
    assert rows("a.sqlite") == []
    code, output = invoke("status", "a.sqlite")
    assert code == 0, output


@pytest.mark.usefixtures("study_folder")
def test_ctrl_c_twice_stops_at_once() -> None:
    """A model that hangs answers no first signal."""
    Path("hanging.py").write_text(HANGING)
    code, output = interrupted(
        "run", "hanging:sweep", "--store", "a.sqlite", "--workers", "2", after="runs", seconds=2.0,
        signals=[signal.SIGINT, signal.SIGINT],
    )  # fmt: skip
    assert code == 130, output
    assert "stopped." in output


HANGING = """
import os
import time
import warnings
import torch
from torch import nn
import isotherm as it
from mycode import data

warnings.simplefilter("ignore")
DRIVER = os.getpid()

class Hanging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        while os.getpid() != DRIVER:
            time.sleep(0.01)
        return self.layer(x)

def sweep():
    task = it.Task(name="hanging", model=Hanging, train=data(64, 0), test=data(32, 1))
    return it.Sweep(name="hanging", task=task, batch_sizes=[8], effective_learning_rates=[0.1], num_seeds=2,
                    num_kept=1, budget=it.Budget.steps(10), tune_on="test", max_extensions=0)
"""


@pytest.mark.usefixtures("study_folder")
def test_workers_in_an_endless_loop_end_with_a_killed_driver() -> None:
    Path("hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "isotherm", "run", "hanging:sweep", "--store", "a.sqlite", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        while "runs" not in process.stdout.readline():
            pass
        time.sleep(1.0)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(children) == 2
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while any(map(_is_alive, children)):
        assert time.monotonic() < deadline, "a worker outlives its driver"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Signaller(Recorder):
    """Sends this process a signal at the first update."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def advanced(self, work: float) -> None:
        super().advanced(work)
        if self.work == work:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_saved_goes_on(tmp_path: Path, workers: int) -> None:
    sweep = tiny_sweep(budget=Budget.steps(2_000), num_evaluations=1)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.raises(Stopped) as stopped:
        run(sweep, store=tmp_path / "a.sqlite", workers=workers, progress=Signaller(signal.SIGTERM))
    assert stopped.value.number == signal.SIGTERM
    assert {number: signal.getsignal(number) for number in before} == before
    told = Recorder()
    results = run(sweep, store=tmp_path / "a.sqlite", workers=workers, progress=told)
    assert results.by_key == run(sweep, workers=workers).by_key
    assert told.work < 6 * 2_000 * (8 + 40), "it went on from the checkpoint"


def test_a_signal_at_the_very_end_changes_nothing() -> None:
    told = Signaller(signal.SIGTERM)
    assert run(tiny_sweep(num_evaluations=1), progress=told).counts()["finished"] == 6


def test_signals_of_others_are_left_alone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        with Stopping() as stopping:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stopping.was_asked
    finally:
        signal.signal(signal.SIGHUP, before)
    handlers: list[object] = []

    def inside() -> None:
        with Stopping():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert handlers == [signal.SIG_DFL], "a thread may set no handler"
