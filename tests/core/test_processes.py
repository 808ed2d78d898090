"""Calls shared out among processes return what they return in one, whatever happens to a process."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from isotherm.core import processes
from isotherm.core.machine import can_fork
from isotherm.core.processes import call_all

needs_fork = pytest.mark.skipif(not can_fork(), reason="processes cannot be forked here")


# Not the number of cores: other tests may have left threads, next to which nothing is forked.
@pytest.fixture(params=[1, 2, 5])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(processes, "_num_processes", lambda: request.param)
    return int(request.param)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_num_processes", lambda: 2)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} was never made"
        time.sleep(0.001)


@pytest.mark.parametrize("num_calls", [0, 1, 2, 3000])
def test_results_come_in_order(cores: int, num_calls: int) -> None:
    assert call_all([functools.partial(pow, index, 2) for index in range(num_calls)]) == [
        index**2 for index in range(num_calls)
    ]


def test_large_results_do_not_block(cores: int) -> None:
    assert [len(content) for content in call_all([functools.partial(bytes, 2**20)] * 6)] == [2**20] * 6


@needs_fork
@pytest.mark.usefixtures("two_cores")
def test_two_processes_work_at_once(tmp_path: Path) -> None:
    """Either call waits for the other."""

    def meet(own: str, other: str) -> int:
        (tmp_path / own).touch()
        wait_for(tmp_path / other)
        return os.getpid()

    processes_used = call_all([functools.partial(meet, "a", "b"), functools.partial(meet, "b", "a")])
    assert len(set(processes_used)) == 2


def test_an_error_is_raised_as_without_processes(cores: int, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> int:
        raise ValueError("no such number")

    with pytest.raises(ValueError, match="no such number"):
        call_all([int, fails, int, fails])
    assert not caplog.records
    assert not multiprocessing.active_children()


@needs_fork
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_work_of_a_process_that_is_killed_is_done_here_and_said_once(
    number: signal.Signals, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    parent = os.getpid()

    def call() -> int:
        if os.getpid() != parent:
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), number)
        wait_for(tmp_path / "killed")  # the fork takes a call, too
        return 1

    with caplog.at_level(logging.WARNING, "isotherm"):
        assert call_all([call] * 8) == [1] * 8
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 2 processes ended before their work was done, perhaps because memory ran out; it is done in this process "
        "instead"
    ]


@needs_fork
@pytest.mark.usefixtures("two_cores")
def test_an_interrupt_ends_the_forks(tmp_path: Path) -> None:
    parent = os.getpid()

    def call() -> None:
        if os.getpid() == parent:
            wait_for(tmp_path / "running")
            raise KeyboardInterrupt
        try:
            (tmp_path / "running").touch()
            signal.pause()
        finally:
            (tmp_path / "tidied").touch()

    with pytest.raises(KeyboardInterrupt):
        call_all([call, call])
    assert (tmp_path / "tidied").exists()
    assert not multiprocessing.active_children()


def test_next_to_other_threads_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "num_cores", lambda: 2)
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(call_all([os.getpid] * 4)))
    thread.start()
    thread.join()
    assert found == [[os.getpid()] * 4]


def test_where_processes_cannot_be_forked_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "can_fork", lambda: False)
    assert call_all([os.getpid] * 4) == [os.getpid()] * 4


@needs_fork
@pytest.mark.usefixtures("two_cores")
def test_where_no_more_processes_are_allowed_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refused)
    assert call_all([os.getpid] * 4) == [os.getpid()] * 4
