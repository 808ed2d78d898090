"""Training a study with a progress bar, or lines of progress in a log."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from isotherm.cli.options import ComputeOptions
from isotherm.cli.progress import RunProgress
from isotherm.running.runner import CHECKPOINT_SECONDS, default_workers, run_study
from isotherm.sweep.results import StudyResults
from isotherm.sweep.study import Study


def train_study(
    study: Study,
    store: Path,
    *,
    compute: ComputeOptions,
    console: Console,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> StudyResults:
    """Run what is missing of a study and return all its results."""
    with RunProgress(console) as progress:
        return run_study(
            study,
            store=store,
            device=compute.device,
            workers=default_workers(compute.device) if compute.workers is None else compute.workers,
            fleet_size=compute.fleet_size,
            checkpoint_seconds=checkpoint_seconds,
            progress=progress,
        )
