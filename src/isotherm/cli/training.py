"""Training a study with a progress bar, or lines of progress in a log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from isotherm.cli.options import ComputeOptions, ExecutorOptions
from isotherm.cli.progress import RunProgress
from isotherm.errors import UserError
from isotherm.running.executors.choice import default_workers
from isotherm.running.progress import Progress, Several
from isotherm.running.runner import CHECKPOINT_SECONDS, run_study
from isotherm.running.trackers.tracking import Tracking
from isotherm.sweep.results import StudyResults
from isotherm.sweep.study import Study


def minutes_left(minutes: float | None, *, since: float) -> float | None:
    """Return what is left of the minutes of a command that began at `since`, by `time.perf_counter`."""
    if minutes is None or not minutes > 0:  # what is no time at all is refused where it is used
        return minutes
    left = minutes - (time.perf_counter() - since) / 60.0
    if left <= 0:
        raise UserError(f"--minutes {minutes:g} is over before anything could be trained; give more minutes")
    return left


def train_study(
    study: Study,
    store: Path,
    *,
    compute: ComputeOptions,
    executor: ExecutorOptions | None = None,
    console: Console,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    minutes: float | None = None,
    track: Sequence[str] | None = None,
) -> StudyResults:
    """Run what is missing of a study, or as much of it as there are minutes for, and return all its results."""
    executor = executor or ExecutorOptions()
    with tracked(track, study=study.name, store=store) as trackers, RunProgress(console) as bar:
        return run_study(
            study,
            store=store,
            device=compute.device,
            workers=_workers(compute, executor),
            fleet_size=compute.fleet_size,
            micro_batch_size=compute.micro_batch_size,
            checkpoint_seconds=checkpoint_seconds,
            minutes=minutes,
            executor=executor.executor,
            run_timeout=executor.run_timeout,
            progress=Several(bar, *trackers),
        )


@contextmanager
def tracked(names: Sequence[str] | None, *, study: str, store: Path) -> Iterator[list[Progress]]:
    """Open the trackers of `--track`, and wait at the end until they have been told everything."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Tracking.to(name, study=study, store=store)) for name in dict.fromkeys(names or ())]


def _workers(compute: ComputeOptions, executor: ExecutorOptions) -> int:
    if compute.workers is not None:
        return compute.workers
    return 1 if executor.executor == "local" else default_workers(compute.device)
