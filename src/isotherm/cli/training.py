"""Training a study with a progress bar, or lines of progress in a log."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from isotherm.cli.common import print_notes
from isotherm.cli.options import ComputeOptions, ExecutorOptions
from isotherm.cli.progress import RunProgress
from isotherm.errors import OutOfTimeError, UserError
from isotherm.running.executors.choice import ExecutorChoice, default_workers
from isotherm.running.parts import Part
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
        raise OutOfTimeError(f"--minutes {minutes:g} is over before anything could be trained; give more minutes")
    return left


def with_num_seeds(study: Study, num_seeds: int, console: Console) -> Study:
    """Return the study with this many seeds in every sweep.

    The best 5 of 30 seeds flatter more than the best 5 of 7 that a study asks for. So a sweep that keeps its best k of
    n seeds keeps all of another number, and a note says so.
    """
    choosing = [s for s in study.sweeps if s.num_seeds != num_seeds and s.num_kept not in (None, s.num_seeds)]
    print_notes(
        (
            f"--seeds {num_seeds} keeps all {num_seeds} seeds where the study keeps the best {sweep.num_kept} of "
            f"{sweep.num_seeds}; to keep the best of {num_seeds}, change num_seeds and num_kept in the study"
            for sweep in choosing
        ),
        console,
    )
    sweeps = (
        dataclasses.replace(sweep, num_seeds=num_seeds, num_kept=None) if sweep.num_seeds != num_seeds else sweep
        for sweep in study.sweeps
    )
    return dataclasses.replace(study, sweeps=tuple(sweeps))


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
            fleet_size=compute.fleet_size,
            micro_batch_size=compute.micro_batch_size,
            checkpoint_seconds=checkpoint_seconds,
            minutes=minutes,
            executor=_choice(compute, executor),
            run_timeout=executor.run_timeout,
            part=None if executor.part is None else Part.parse(executor.part),
            known=executor.known or (),
            progress=Several(bar, *trackers),
        )


@contextmanager
def tracked(names: Sequence[str] | None, *, study: str, store: Path) -> Iterator[list[Progress]]:
    """Open the trackers of `--track`, and wait at the end until they have been told everything."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Tracking.to(name, study=study, store=store)) for name in dict.fromkeys(names or ())]


def _choice(compute: ComputeOptions, executor: ExecutorOptions) -> ExecutorChoice:
    workers = compute.workers
    if workers is None and executor.executor in (None, "local"):
        workers = default_workers(compute.device) if executor.executor is None else 1
    return ExecutorChoice(
        name=executor.executor,
        device=compute.device,
        workers=workers,
        ray_address=executor.ray_address,
        slurm=dict(_parameter(text) for text in executor.slurm or ()),
    )


def _parameter(text: str) -> tuple[str, str]:
    """Return a parameter's name and value.

    >>> _parameter("partition=gpu")
    ('partition', 'gpu')
    """
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise UserError(f"--slurm {text}: give a parameter and its value, e.g. --slurm partition=gpu")
    return name, value
