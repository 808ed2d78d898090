"""MLflow: an experiment per study, a run per run, cells as tags; where to is MLFLOW_TRACKING_URI."""

from __future__ import annotations

import os
import time
from pathlib import Path

from isotherm.core.records import Outcome
from isotherm.running.trackers.tracked_run import TrackedRun, points_of

_MOST_PER_BATCH = 500
_LONGEST_VALUE = 5_000


class MlflowTracker:
    """Writes through a client of its own, so that an active run of the user's stays as it is."""

    def __init__(self, *, study: str, folder: Path) -> None:
        from mlflow import MlflowClient

        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').absolute()}"
        self._client = MlflowClient(tracking_uri=address)
        found = self._client.get_experiment_by_name(study)
        self._experiment = self._client.create_experiment(study) if found is None else found.experiment_id

    def tell(self, run: TrackedRun) -> None:
        """Write a run with its parameters, metrics and end."""
        from mlflow.entities import Metric, Param, RunTag

        made = self._client.create_run(self._experiment, run_name=run.name)
        now = int(time.time() * 1000)
        tags = [RunTag("group", run.cell), RunTag("outcome", str(run.outcome))]
        tags += [] if run.error is None else [RunTag("error", run.error[:_LONGEST_VALUE])]
        self._client.log_batch(
            made.info.run_id,
            params=[Param(name, str(value)[:_LONGEST_VALUE]) for name, value in run.config.items()],
            tags=tags,
        )
        metrics = [Metric(name, value, now, step) for step, values in points_of(run) for name, value in values.items()]
        for start in range(0, len(metrics), _MOST_PER_BATCH):
            self._client.log_batch(made.info.run_id, metrics=metrics[start : start + _MOST_PER_BATCH])
        status = "FAILED" if run.outcome is Outcome.FAILED else "FINISHED"
        self._client.set_terminated(made.info.run_id, status=status)

    def close(self) -> None:
        """Nothing is left: every run is written whole."""
