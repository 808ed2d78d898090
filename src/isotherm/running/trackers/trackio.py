"""Trackio: a project per study, a run per run, cells as groups, kept on this machine (TRACKIO_DIR says where)."""

from __future__ import annotations

from pathlib import Path

from isotherm.running.trackers.tracked_run import TrackedRun, points_of


class TrackioTracker:
    """Starts and finishes one run after another."""

    def __init__(self, *, study: str, folder: Path) -> None:
        import trackio

        self._trackio = trackio

    def tell(self, run: TrackedRun) -> None:
        """Write a run with its configuration, its curve and its final numbers."""
        config = {**run.config, "outcome": str(run.outcome), "error": run.error}
        self._trackio.init(project=run.study, name=run.name, group=run.cell, config=config, embed=False)
        for step, values in points_of(run):
            self._trackio.log(values, step=step)
        self._trackio.finish()

    def close(self) -> None:
        """Nothing is left: every run is finished."""
