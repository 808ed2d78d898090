"""What the terminal and the log show while runs go on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from helpers_protocol import diverged, failed, finished, make_spec
from isotherm.console import RunProgress


def progress_on(*, terminal: bool) -> tuple[RunProgress, io.StringIO]:
    stream = io.StringIO()
    return RunProgress(Console(file=stream, force_terminal=terminal, width=100)), stream


def test_a_log_gets_a_line_per_round_with_runs_diverged_and_failed() -> None:
    progress, stream = progress_on(terminal=False)
    with progress:
        progress.round_started([make_spec(seed=s) for s in range(3)], round_=0)
        progress.advanced(3 * 10 * (16 + 40))
        progress.runs_done([finished(), diverged(), failed()])
        progress.round_started([make_spec(seed=s) for s in (3, 4)], round_=1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "base grids: 0/3 runs, 0 diverged"
    assert lines[1].startswith("extension 1: 3/5 runs, 1 diverged, 1 failed")
    assert "left" in lines[1]


def test_a_log_is_not_flooded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000))
    monkeypatch.setattr("isotherm.console.time.monotonic", lambda: next(clock) * 0.1)
    progress, stream = progress_on(terminal=False)
    with progress:
        progress.round_started([make_spec()], round_=0)
        for _ in range(500):
            progress.advanced(1.0)
    assert 2 <= len(stream.getvalue().splitlines()) <= 20


def test_a_terminal_gets_a_live_bar_that_ends_full() -> None:
    progress, stream = progress_on(terminal=True)
    with progress:
        progress.round_started([make_spec(seed=s) for s in range(4)], round_=0)
        progress.advanced(10.0)
        progress.runs_done([finished()] * 4)
    assert "base grids" in stream.getvalue()
    assert "4/4 runs" in stream.getvalue()
    (task,) = progress._bar.tasks
    assert task.completed == task.total
