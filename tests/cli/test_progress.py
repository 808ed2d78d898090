"""What the terminal and the log show while runs go on."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from helpers_protocol import diverged, failed, finished, make_spec
from isotherm.cli.progress import CellProgress, RunProgress
from isotherm.core.records import CurvePoint, RunResult, RunSpec
from isotherm.running.store import StoredRun
from isotherm.sweep.growth import Stage
from isotherm.sweep.rounds import Round


def of(specs: list[RunSpec], *, number: int) -> Round:
    stages = (Stage.EXTENSION, Stage.REFINEMENT) if number else (Stage.BASE,)
    return Round(number=number, stages=stages, specs=tuple(specs))


def stored(*results: RunResult) -> list[StoredRun]:
    return [StoredRun(spec=make_spec(seed=k), result=r, provenance={}) for k, r in enumerate(results)]


def progress_on(*, terminal: bool) -> tuple[RunProgress, io.StringIO]:
    stream = io.StringIO()
    return RunProgress(Console(file=stream, force_terminal=terminal, width=100)), stream


def test_a_log_gets_a_line_per_round_with_runs_diverged_and_failed() -> None:
    progress, stream = progress_on(terminal=False)
    with progress:
        progress.round_started(of([make_spec(seed=s) for s in range(3)], number=0))
        progress.advanced(3 * 10 * (16 + 40))
        progress.runs_done(stored(finished(), diverged(), failed()))
        progress.round_started(of([make_spec(seed=s) for s in (3, 4)], number=1))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "base grids: 0/3 runs, 0 diverged"
    assert lines[1].startswith("round 1, extension and refinement: 3/5 runs, 1 diverged, 1 failed")
    assert "left" in lines[1]


def test_a_log_is_not_flooded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000))
    monkeypatch.setattr("isotherm.cli.progress.time.monotonic", lambda: next(clock) * 0.1)
    progress, stream = progress_on(terminal=False)
    with progress:
        progress.round_started(of([make_spec()], number=0))
        for _ in range(500):
            progress.advanced(1.0)
    assert 2 <= len(stream.getvalue().splitlines()) <= 20


def test_a_terminal_gets_a_live_bar_that_ends_full() -> None:
    progress, stream = progress_on(terminal=True)
    with progress:
        progress.round_started(of([make_spec(seed=s) for s in range(4)], number=0))
        progress.advanced(10.0)
        progress.runs_done(stored(*[finished()] * 4))
    assert "base grids" in stream.getvalue()
    assert "4/4 runs" in stream.getvalue()
    (task,) = progress._bar.tasks
    assert task.completed == task.total


@pytest.mark.parametrize("terminal", [False, True])
def test_a_cell_has_a_line_for_every_look(terminal: bool) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
    with CellProgress(console, metric="squared_error") as progress:
        spec = make_spec(seed=3)
        progress.round_started(of([spec], number=0))
        progress.evaluated(spec, CurvePoint(step=1, test_loss=0.5, test_metric=1234.5))
        progress.evaluated(spec, CurvePoint(step=2, test_loss=math.inf, test_metric=math.nan))
        progress.runs_done(stored(finished()))
    text = stream.getvalue()
    assert "seed 3, update  1: test loss 0.5000, test squared error 1,234" in text
    assert "seed 3, update  2: test loss not finite, test squared error not finite" in text
    assert "training" in text
    assert ("1/1 runs" in text) == terminal


def test_accuracy_is_told_in_percent() -> None:
    stream = io.StringIO()
    with CellProgress(Console(file=stream, width=100), metric="accuracy") as progress:
        progress.evaluated(make_spec(), CurvePoint(step=10, test_loss=0.5, test_metric=0.5))
    assert "test accuracy 50.00 %" in stream.getvalue()


def test_a_study_prints_no_looks() -> None:
    progress, stream = progress_on(terminal=False)
    with progress:
        progress.evaluated(make_spec(), CurvePoint(step=1, test_loss=0.5, test_metric=0.5))
    assert not stream.getvalue()
