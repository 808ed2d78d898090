"""What the terminal shows while runs are trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from isotherm.cli.show.numbers import metric_text, number_text
from isotherm.core.records import CurvePoint, Outcome, RunSpec
from isotherm.running.executors.fleet_times import work_of
from isotherm.running.store import StoredRun
from isotherm.sweep.rounds import Round

# Between lines of progress in a log.
SECONDS_BETWEEN_LINES = 10.0


class RunProgress:
    """Runs done, runs diverged, time left: a live bar on a terminal, occasional lines in a log."""

    base_label = "base grids"

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._start = time.monotonic()
        self._last_line = self._start
        self._done = self._total = 0.0
        self._num_runs = self._num_done = self._num_diverged = self._num_failed = 0
        self._label = "starting"

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._task is not None:  # updates that diverged runs did not make were never counted
            self._done = self._total
            self._show()
        self._bar.__exit__(kind, error, trace)

    def round_started(self, round_: Round) -> None:
        """Add the runs of a round to the total."""
        self._num_runs += len(round_.specs)
        self._total = self._done + sum(work_of(s.batch_size, s.num_steps) for s in round_.specs)
        self._label = self.base_label if round_.number == 0 else str(round_)
        if self._task is None:
            self._task = self._bar.add_task(self._label, total=self._total, status="")
            self._start = time.monotonic()
        self._show(force=True)

    def advanced(self, work: float) -> None:
        """Count work that is done."""
        self._done += work
        self._show()

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """Print nothing: a study has thousands of evaluations."""

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        """Print nothing: the bar counts runs that are done."""

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        """Count the runs of a fleet."""
        outcomes = [run.result.outcome for run in runs]
        self._num_done += len(outcomes)
        self._num_diverged += outcomes.count(Outcome.DIVERGED)
        self._num_failed += outcomes.count(Outcome.FAILED)
        self._show()

    def noted(self, sentence: str) -> None:
        """Print a note about the store."""
        self._console.print(f"{sentence}.", highlight=False, markup=False, soft_wrap=True)

    def _status(self) -> str:
        parts = [f"{self._num_done}/{self._num_runs} runs", f"{self._num_diverged} diverged"]
        parts += [f"{self._num_failed} failed"] if self._num_failed else []
        elapsed = time.monotonic() - self._start
        if self._done > 0.02 * self._total:
            left = max(0.0, elapsed * (self._total / self._done - 1.0))
            parts.append(f"{int(left) // 60}:{int(left) % 60:02d} left")
        return ", ".join(parts)

    def _show(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if self._console.is_terminal:
            if self._task is not None:
                done = min(self._done, self._total)
                self._bar.update(
                    self._task, description=self._label, completed=done, total=self._total, status=self._status()
                )
        elif force or now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._console.print(f"{self._label}: {self._status()}", highlight=False, markup=False)


class CellProgress(RunProgress):
    """The same for a single cell, with a line for every evaluation on the test set."""

    base_label = "training"

    def __init__(self, console: Console, *, metric: str) -> None:
        super().__init__(console)
        self._metric = metric

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """Print the loss and metric of an evaluation."""
        width = len(f"{spec.num_steps:,}")
        self._console.print(
            f"seed {spec.seed}, update {point.step:>{width},}: test loss {number_text(point.test_loss)}, "
            f"test {self._metric.replace('_', ' ')} {metric_text(self._metric, point.test_metric)}",
            highlight=False,
            markup=False,
        )
