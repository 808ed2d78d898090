"""A listener that tells a tracker of every stored run, beside the training.

A tracker has a thread of its own: a slow one delays nothing, one that raises is given up after a single sentence, and
the sweep goes on either way. It runs in the process that holds the store, never in a worker.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from isotherm.core.records import CurvePoint, RunSpec
from isotherm.errors import UserError, nearest
from isotherm.running.store import StoredRun
from isotherm.running.trackers.tracked_run import Tracker, tracked_run
from isotherm.sweep.rounds import Round

logger = logging.getLogger("isotherm")

# By name: the module that must be installed, and the class.
TRACKERS = {
    "mlflow": ("mlflow", "isotherm.running.trackers.mlflow", "MlflowTracker"),
    "tensorboard": ("tensorboard", "isotherm.running.trackers.tensorboard", "TensorBoardTracker"),
    "trackio": ("trackio", "isotherm.running.trackers.trackio", "TrackioTracker"),
    "wandb": ("wandb", "isotherm.running.trackers.wandb", "WandbTracker"),
}
# How long the end of training waits for a tracker that makes no headway.
PATIENCE_SECONDS = 60.0


def check_tracker(name: str) -> None:
    """Refuse a tracker that is not known or not installed."""
    if name not in TRACKERS:
        raise UserError(f"there is no tracker {name!r}; {nearest(name, TRACKERS)}")
    found = importlib.util.find_spec(TRACKERS[name][0])
    if found is None or found.origin is None:  # a mere folder of that name, which wandb leaves behind
        raise UserError(f'{TRACKERS[name][0]} is not installed; install it with: pip install "isotherm[{name}]"')


def open_tracker(name: str, *, study: str, folder: Path) -> Tracker:
    """Return a tracker by its name.

    Args:
        name: one of `TRACKERS`.
        study: names the tracker's project or experiment.
        folder: where a tracker that writes files puts them, unless told otherwise by its own settings.
    """
    _, module, attribute = TRACKERS[name]
    tracker: Tracker = getattr(importlib.import_module(module), attribute)(study=study, folder=folder)
    return tracker


class Tracking:
    """Tells one tracker; a context manager, as what is left has to be told at the end.

    Args:
        name: of the tracker, for the one sentence that there may be.
        study: of the runs.
        open_: opens the tracker, in the thread that tells it.
        patience: seconds to wait at the end for a tracker that makes no headway.
    """

    def __init__(
        self, name: str, *, study: str, open_: Callable[[], Tracker], patience: float = PATIENCE_SECONDS
    ) -> None:
        self._name, self._study, self._open = name, study, open_
        self._patience = patience
        self._waiting: queue.Queue[StoredRun | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._num_told = 0
        self._is_given_up = False

    @classmethod
    def to(cls, name: str, *, study: str, store: str | Path) -> Self:
        """Return the listener for a tracker by its name; what it writes to disk lies beside the store."""
        check_tracker(name)
        folder = Path(store).absolute().parent
        return cls(name, study=study, open_=lambda: open_tracker(name, study=study, folder=folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        self._waiting.put(None)
        self._wait(self._patience if kind is None else min(10.0, self._patience))

    def round_started(self, round_: Round) -> None:
        """Leave it to others."""

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        """Leave it to others."""

    def advanced(self, work: float) -> None:
        """Leave it to others."""

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """Leave it to others: a run is told whole, with its curve."""

    def noted(self, sentence: str) -> None:
        """Leave it to others."""

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        """Hand runs over to the thread, which starts with the first: workers are forked by then."""
        if self._is_given_up:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._tell_all, name=f"tracker {self._name}", daemon=True)
            self._thread.start()
        for run in runs:
            self._waiting.put(run)

    def _tell_all(self) -> None:
        try:
            tracker = self._open()
            while (run := self._waiting.get()) is not None:
                tracker.tell(tracked_run(run, study=self._study))
                self._num_told += 1
            tracker.close()
        except (Exception, SystemExit) as error:
            self._is_given_up = True
            logger.warning(
                "the tracker %s is given up after %d %s: %s: %s; training goes on, and the store has every run",
                self._name,
                self._num_told,
                "run" if self._num_told == 1 else "runs",
                type(error).__name__,
                error,
            )

    def _wait(self, patience: float) -> None:
        """Wait for the thread, as long as it tells another run within `patience` seconds."""
        assert self._thread is not None
        told, since = self._num_told, time.monotonic()
        while self._thread.is_alive() and time.monotonic() - since < patience:
            self._thread.join(timeout=0.05)
            if self._num_told != told:
                told, since = self._num_told, time.monotonic()
        if self._thread.is_alive():
            self._is_given_up = True
            logger.warning(
                "the tracker %s does not answer: %d runs were not told; the store has every run",
                self._name,
                self._waiting.qsize(),
            )
