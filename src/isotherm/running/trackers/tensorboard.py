"""TensorBoard: a folder of event files, one subfolder per run, cell by cell."""

from __future__ import annotations

from pathlib import Path

from isotherm.core.json import json_text
from isotherm.running.trackers.tracked_run import TrackedRun, points_of


class TensorBoardTracker:
    """Writes event files below a folder: study / cell / seed."""

    def __init__(self, *, study: str, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter
        self._folder = folder / "tensorboard"

    def tell(self, run: TrackedRun) -> None:
        """Write a run's events into a folder of its own."""
        place = self._folder / run.study / run.cell / f"seed{run.config['seed']}"
        with self._writer(log_dir=str(place)) as writer:
            for step, values in points_of(run):
                for name, value in values.items():
                    writer.add_scalar(name, value, global_step=step)
            about = {**run.config, "outcome": str(run.outcome), "error": run.error}
            writer.add_text("config", f"```\n{json_text(about)}```", global_step=0)

    def close(self) -> None:
        """Nothing is left: every run closes its file."""
