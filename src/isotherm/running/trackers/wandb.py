"""Weights & Biases: a project per study, a run per run, cells as groups; WANDB_MODE=offline keeps it on this disk."""

from __future__ import annotations

from pathlib import Path

from isotherm.core.records import Outcome
from isotherm.running.trackers.tracked_run import TrackedRun, points_of


class WandbTracker:
    """Starts and finishes one run after another."""

    def __init__(self, *, study: str, folder: Path) -> None:
        import wandb

        self._wandb = wandb
        self._folder = folder

    def tell(self, run: TrackedRun) -> None:
        """Write a run with its configuration, curve and summary."""
        made = self._wandb.init(
            project=run.study,
            group=run.cell,
            name=run.name,
            config=run.config,
            dir=str(self._folder),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True),
        )
        for step, values in points_of(run):
            made.log(values, step=step)
        made.summary.update({**run.final, "outcome": str(run.outcome), "error": run.error})
        made.finish(exit_code=1 if run.outcome is Outcome.FAILED else 0)

    def close(self) -> None:
        """Nothing is left: every run is finished."""
