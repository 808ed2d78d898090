"""Two processes share the updates of a run: the numbers of one, and what they hear of each other's faults."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.nn  # once, before the processes are forked
from torch import Tensor, nn

import cases
import cases_paper
from helpers_engines import assert_same_result
from isotherm.core.launch import Launch
from isotherm.core.records import RunSpec
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.data_parallel import FailedElsewhere, LostProcess, Processes
from isotherm.engine.deadline import Deadline, OutOfTime, StopFlag
from isotherm.engine.micro_batch_check import micro_batches_of
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.reference import run_reference
from isotherm.engine.shared_saver import SharedSaver
from isotherm.errors import UserError
from isotherm.tasks.task import Task

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
Work = Callable[[Processes], Any]


def text_task() -> Task:
    """A text in streams, whose states are buffers with a value for every stream."""
    model = partial(cases_paper.build_language_model, num_layers=1, drop_probability=0.3)
    return cases_paper.language_task(model=model, unroll=3, train=cases_paper.sequence(100, seed=0))


# A task, its batch size and the size of micro-batches; the first has three of them, so one process has two.
TASKS: dict[str, tuple[Callable[[], Task], int, int]] = {
    "ghost norm": (partial(cases_paper.image_task, cases_paper.SmallGhostNet), 24, 8),
    "text": (text_task, 6, 2),
    "dropout": (cases.dropout_task, 12, 6),
}


def spec_of(task: Task, batch_size: int, **changes: Any) -> RunSpec:
    fields: dict[str, Any] = {"num_steps": 12, "num_evaluations": 2, "momentum": 0.9, "clip_norm": 0.05, "l2": 1e-3}
    rate = {"effective_learning_rate": 0.02, "seed": 0}
    return cases_paper.spec_of(task, batch_size=batch_size, **{**fields, **rate, **changes})


def shared_run(name: str, processes: Processes, saver: SharedSaver | None = None, **changes: Any) -> Any:
    """Train a run of a task as one of two processes."""
    make, batch_size, size = TASKS[name]
    placed = place_task(make(), precision="float64")
    cut = micro_batches_of(placed, batch_size=batch_size, size=size)
    among = dataclasses.replace(cut, among=processes)
    return run_reference(placed, spec_of(make(), batch_size, **changes), micro_batches=among, saver=saver)


def together(work: Work, *, seconds: float = 30.0) -> list[Any]:
    """Return what a function returns in each of two processes, or the exit code of one that dies."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    started = [context.Process(target=_one_of_two, args=(rank, port, work, seconds, queue)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=60)
    found: dict[int, Any] = {rank: process.exitcode for rank, process in enumerate(started)}
    while not queue.empty():
        found.update([queue.get()])
    return [found[rank] for rank in range(2)]


def _one_of_two(rank: int, port: int, work: Work, seconds: float, queue: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK="0")
    launch = Launch.find()
    assert launch is not None
    processes = Processes.meeting(launch, torch.device("cpu"), seconds=seconds)
    found = work(processes)
    processes.leave()
    assert not [name for name in _threads() if "gloo" in name]  # or the parent finds an exit code and no result
    queue.put((rank, found))


def _threads() -> list[str]:
    """Return the names of this process's threads, where the system tells them."""
    return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]


def test_two_processes_give_the_numbers_of_one() -> None:
    """With running averages, states of streams, dropout, clipping and micro-batches that cannot be shared equally."""

    def work(processes: Processes) -> Any:
        return [shared_run(name, processes) for name in TASKS]

    first, second = together(work)
    assert first == second
    for (make, batch_size, _), result in zip(TASKS.values(), first, strict=True):
        alone = run_reference(place_task(make(), precision="float64"), spec_of(make(), batch_size))
        assert_same_result(result, alone, tolerance=1e-9)


def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    """The second process is asked to stop, and both do; only the first has a file."""

    def work(processes: Processes) -> Any:
        def saver(flag: StopFlag | None = None) -> SharedSaver:
            path = tmp_path / f"{processes.rank}.checkpoint"
            checkpoint = None if processes.rank else Checkpoint(path, seconds=1e9, identity="a run")
            return SharedSaver(
                processes, checkpoint=checkpoint, deadline=Deadline(stop=flag), device=torch.device("cpu")
            )

        flag = StopFlag()
        if processes.rank == 1:
            flag.set()
        with pytest.raises(OutOfTime) as stop:
            shared_run("text", processes, saver(flag))
        return stop.value.is_saved, shared_run("text", processes, saver()), shared_run("text", processes)

    (is_saved, resumed, undisturbed), (_, other, _) = together(work)
    assert is_saved
    assert [path.name for path in tmp_path.iterdir()] == ["0.checkpoint"]
    assert resumed == other == undisturbed


class Faulty(nn.Module):
    """Does something at its third forward pass in training."""

    def __init__(self, fault: Callable[[], None]) -> None:
        super().__init__()
        self.linear, self.fault, self.num_left = nn.Linear(2, 3), fault, 3

    def forward(self, x: Tensor) -> Tensor:
        self.num_left -= self.training
        if not self.num_left:
            self.fault()
        output: Tensor = self.linear(x)
        return output


def faulty_run(processes: Processes, fault: Callable[[], None]) -> Any:
    """Train a run whose second process has a fault in its third update."""
    task = cases.classification("faulty", lambda: Faulty(fault if processes.rank else _nothing))
    placed: PlacedTask = place_task(task, precision="float64")
    cut = micro_batches_of(place_task(cases.blobs_task(), precision="float64"), batch_size=12, size=6)
    among = dataclasses.replace(cut, among=processes)
    return run_reference(placed, spec_of(cases.blobs_task(), 12), micro_batches=among)


def _nothing() -> None:
    pass


def _raise() -> None:
    raise ValueError("three is enough")


def test_what_one_process_raises_the_other_hears_and_both_go_on() -> None:
    def work(processes: Processes) -> Any:
        try:
            faulty_run(processes, _raise)
        except FailedElsewhere as failure:
            return str(failure), shared_run("dropout", processes)
        except ValueError as error:
            return processes.tell_failure(str(error)), shared_run("dropout", processes)

    (first, one), (second, other) = together(work)
    assert first == second == "three is enough"
    assert one == other


def test_a_process_that_dies_and_one_that_hangs_are_noticed() -> None:
    def alone(fault: Callable[[], None], processes: Processes) -> Any:
        with pytest.raises(LostProcess) as lost:
            faulty_run(processes, fault)
        return str(lost.value)

    reason, code = together(partial(alone, lambda: os._exit(3)))
    assert code == 3
    assert "closed" in reason or "reset" in reason.lower(), reason
    reason, _ = together(partial(alone, lambda: time.sleep(2)), seconds=1.0)
    assert "Timed out" in reason or "timed out" in reason.lower(), reason


LEAVING = """
import pathlib, torch
from isotherm.core.launch import Launch
from isotherm.engine.data_parallel import Processes

processes = Processes.meeting(Launch.find(), torch.device("cpu"), seconds=60.0)
import torch._dynamo  # as training does

processes.sent(b"x")
processes.leave()
print([path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")])
"""


def test_no_thread_of_the_group_outlives_it() -> None:
    """One that did could abort the process while Python ends; here nothing has imported `torch.distributed.nn`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], env={**os.environ, **own}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "gloo" not in done.stdout


def test_bytes_of_any_length_are_sent_and_a_second_meeting_is_refused() -> None:
    def work(processes: Processes) -> Any:
        texts = [bytes(range(200)), b"", b"x"]
        received = [processes.sent(text if processes.rank == 1 else b"ignored", source=1) for text in texts]
        with pytest.raises(UserError, match="have ended with the first call"):
            Processes.meeting(Launch(rank=0, local_rank=0, num=2, num_local=2), torch.device("cpu"), seconds=1.0)
        return received == texts

    assert together(work) == [True, True]
