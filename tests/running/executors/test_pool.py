from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers_protocol import blobs_task, tiny_sweep
from isotherm.core.machine import num_cores
from isotherm.core.records import RunSpec
from isotherm.errors import UserError
from isotherm.running.executors.local import LocalExecutor
from isotherm.running.executors.options import FleetOptions
from isotherm.running.executors.pool import PoolExecutor
from isotherm.running.runner import run
from isotherm.sweep.rounds import missing_runs
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task


class Branching(nn.Module):
    """What vmap cannot take: it looks at its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.detach().sum()) > 0 else 2 * self.layer(x)


def parts(sweep: Sweep) -> tuple[dict[tuple[str, str], Task], list[RunSpec]]:
    task = sweep.prepared_task
    return {task.identify().ids: task}, missing_runs([sweep.plan()], {})


@pytest.fixture
def pool() -> Iterator[PoolExecutor]:
    tasks, _ = parts(tiny_sweep(batch_sizes=[4, 8]))
    with PoolExecutor(tasks, FleetOptions(fleet_size=2), num_workers=2) as executor:
        yield executor


def test_the_pool_gives_what_one_process_gives(pool: PoolExecutor) -> None:
    tasks, specs = parts(tiny_sweep(batch_sizes=[4, 8]))
    alone = {
        s.spec.key: s.result for fleet in LocalExecutor(tasks, FleetOptions(fleet_size=2)).run(specs) for s in fleet
    }
    pooled = {s.spec.key: s.result for fleet in pool.run(specs) for s in fleet}
    assert pooled == alone
    assert len(pooled) == len(specs)


def test_progress_adds_up_over_workers() -> None:
    tasks, specs = parts(tiny_sweep(batch_sizes=[4, 8]))
    told: list[tuple[int, int]] = []
    with PoolExecutor(tasks, FleetOptions(on_steps=lambda b, n: told.append((b, n))), num_workers=2) as executor:
        list(executor.run(specs))
    for batch_size in (4, 8):
        assert sum(n for b, n in told if b == batch_size) == 6 * 10


def test_builders_need_not_be_importable() -> None:
    width = 5
    task = blobs_task(model=lambda: nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2)))
    results = run(tiny_sweep(task=task), workers=2)
    assert results.counts() == {"finished": 6, "diverged": 0, "failed": 0, "missing": 0}


def test_workers_that_died_before_they_had_a_fleet_are_replaced(pool: PoolExecutor) -> None:
    _, specs = parts(tiny_sweep(batch_sizes=[4, 8]))
    for worker in pool.workers:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
    assert sum(len(fleet) for fleet in pool.run(specs)) == len(specs)


def test_a_pool_whose_workers_never_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.running.executors.pool.end_with_parent", lambda _parent: os._exit(5))
    tasks, specs = parts(tiny_sweep())
    with PoolExecutor(tasks, num_workers=2) as executor, pytest.raises(UserError, match=r"exit code 5.*--workers 1"):
        list(executor.run(specs))


def test_workers_can_be_started_afresh_where_there_is_no_fork() -> None:
    """With a model that cannot be imported, and a process that is told of every step."""
    width = 3
    task = blobs_task(model=lambda: nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2)))
    tasks, specs = parts(tiny_sweep(task=task))
    told: list[int] = []
    options = FleetOptions(on_steps=lambda _size, num: told.append(num))
    with PoolExecutor(tasks, options, num_workers=1, start_method="spawn") as executor:
        found = {s.spec.key: s.result for fleet in executor.run(specs) for s in fleet}
    assert found == {s.spec.key: s.result for fleet in LocalExecutor(tasks).run(specs) for s in fleet}
    assert sum(told) == 6 * 10


def test_workers_end_with_the_context() -> None:
    tasks, _ = parts(tiny_sweep())
    with PoolExecutor(tasks, num_workers=2) as executor:
        workers = list(executor.workers)
        assert all(worker.is_alive() for worker in workers)
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="how Linux chooses what to end")
def test_workers_go_before_this_process_where_memory_runs_out(pool: PoolExecutor) -> None:
    own, *workers = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in pids_of(pool))
    assert all(score > own or score == 1_000 for score in workers)


def pids_of(pool: PoolExecutor) -> list[int]:
    """Return the number of this process and of workers that have begun."""
    list(pool.run(parts(tiny_sweep(batch_sizes=[4, 8]))[1]))
    return [os.getpid(), *(int(worker.pid or 0) for worker in pool.workers)]


def test_what_a_worker_warns_of_reaches_this_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run(tiny_sweep(task=blobs_task(model=Branching)), workers=2)
    assert "one run at a time" in caplog.text
    assert results.counts()["finished"] == 6
    assert results.by_key == run(tiny_sweep(task=blobs_task(model=Branching))).by_key


def test_what_a_user_can_mend_reaches_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_arguments: object, **_keywords: object) -> None:
        raise UserError("out of something")

    monkeypatch.setattr("isotherm.running.executors.local.run_fleet", refuses)
    tasks, specs = parts(tiny_sweep())
    with PoolExecutor(tasks, num_workers=1) as executor, pytest.raises(UserError, match="out of something"):
        list(executor.run(specs))


def test_workers_are_refused_once_cuda_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's autograd cannot run in a process forked after CUDA was used; seen on a GPU."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UserError, match=r"has used CUDA.*workers=1"):
        PoolExecutor({}, num_workers=2)


def test_workers_are_refused_where_they_make_no_sense() -> None:
    with pytest.raises(UserError, match="workers=0"):
        PoolExecutor({}, num_workers=0)
    with pytest.raises(UserError, match="workers=1"):
        run(tiny_sweep(), device="cuda", workers=2)
    assert num_cores() >= 1
    assert torch.get_num_threads() >= 1
