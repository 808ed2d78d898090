"""Models that misbehave in a worker alone, at one batch size; the process that hands out fleets is left in peace."""

from __future__ import annotations

import functools
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from helpers_engines import assert_same_result
from helpers_protocol import blobs_task, tiny_sweep
from isotherm.core.records import Outcome, RunResult
from isotherm.running.runner import run
from isotherm.sweep.results import Results
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task

BAD_BATCH_SIZE = 12  # that memory is not estimated at, by 8 and 16 examples
BAD_SIZES = (12, 6)  # with the first micro-batch of it; models are checked with fewer examples


class Faulty(nn.Module):
    """A linear layer that calls `fault` when it is trained at the bad batch size in a worker."""

    def __init__(self, fault: Callable[[], None], *, driver: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.fault, self.driver = fault, driver

    def forward(self, x: Tensor) -> Tensor:
        is_bad = x.shape[0] in BAD_SIZES
        if self.training and is_bad and os.getpid() != self.driver:
            self.fault()
        return self.layer(x)


def exits() -> None:
    os._exit(7)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    while True:
        time.sleep(0.01)


def leaves_python() -> None:
    raise SystemExit(3)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raises_unspeakably() -> None:
    raise Unspeakable


class NoException(BaseException):
    """What `except Exception` lets pass."""


def raises_no_exception() -> None:
    raise NoException("odd")


def raises_at_length() -> None:
    raise RuntimeError("long" + "g" * 100_000)


def finds_no_memory() -> None:
    raise MemoryError


HOARD: list[Tensor] = []


def leaks() -> None:
    """Keep 32 MiB more at every call, in a process that is allowed 512 MiB more than it has."""
    if not HOARD:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + 512 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    HOARD.append(torch.ones(2**23))


def wants_half_precision() -> None:
    torch.set_default_dtype(torch.float16)


def wants_no_gradients() -> None:
    torch.set_grad_enabled(False)


class in_one_process:
    """A fault of the process that meets it first, again and again; a file remembers which that is."""

    def __init__(self, fault: Callable[[], None], marker: Path) -> None:
        self.fault, self.marker = fault, str(marker)

    def __call__(self) -> None:
        own = str(os.getpid())
        try:
            with open(self.marker, "x") as file:
                file.write(own)
        except FileExistsError:
            if Path(self.marker).read_text() != own:
                return
        self.fault()


class once:
    """A fault that happens the first time only; a file remembers it for all processes."""

    def __init__(self, fault: Callable[[], None], marker: Path) -> None:
        self.fault, self.marker = fault, str(marker)

    def __call__(self) -> None:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self.fault()


def faulty_task(fault: Callable[[], None], *, also_here: bool = False) -> Task:
    """Return a task with such a model; `also_here`: this process, which hands out fleets, is not left in peace."""
    driver = 0 if also_here else os.getpid()
    return blobs_task(model=lambda: Faulty(fault, driver=driver))


def faulty_sweep(fault: Callable[[], None], *, also_here: bool = False, **changes: object) -> Sweep:
    """Return a sweep of three grids of six runs, the middle one at the bad batch size."""
    task = faulty_task(fault, also_here=also_here)
    return tiny_sweep(**{"task": task, "batch_sizes": [8, BAD_BATCH_SIZE, 32], **changes})


def healthy() -> None:
    """No fault at all."""


@functools.cache
def rows_without_fault() -> dict[tuple[int, float, int], RunResult]:
    return rows(run(faulty_sweep(healthy)))


def rows(results: Results) -> dict[tuple[int, float, int], RunResult]:
    """Return the results by batch size, learning rate and seed: the key of a model depends on its fault."""
    specs = results.runs()
    return {
        (spec.batch_size, spec.effective_learning_rate, spec.seed): results.by_key[key] for key, spec in specs.items()
    }


def assert_same_rows(results: Results, expected: Mapping[tuple[int, float, int], RunResult]) -> None:
    """Fail unless all runs have the expected numbers; in fleets of other sizes sums may have another order."""
    ours = rows(results)
    assert ours.keys() == expected.keys()
    for name, result in ours.items():
        assert_same_result(result, expected[name])


def assert_only_bad_runs_failed(results: Results, *, reason: str, num_failed: int = 6) -> None:
    """Fail unless the runs at the bad batch size failed for a reason, and all others have their usual numbers."""
    expected = rows_without_fault()
    assert results.counts()["missing"] == 0
    for name, result in rows(results).items():
        if name[0] == BAD_BATCH_SIZE and result.outcome is Outcome.FAILED:
            num_failed -= 1
            assert reason in str(result.error), result.error
        else:
            assert_same_result(result, expected[name])
    assert num_failed == 0
