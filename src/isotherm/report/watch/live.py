"""A store as a page shows it, kept up to date by two threads: one reads, the other fits, and no request waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.core.visible import visible
from isotherm.errors import UserError
from isotherm.report.watch.cell import cell_content, cell_keys
from isotherm.report.watch.content import (
    Plain,
    grid_content,
    left_content,
    map_head,
    map_id,
    maps_of,
    optimum_rows,
    running_cells,
    study_content,
    training_content,
)
from isotherm.report.watch.findings import Findings
from isotherm.report.watch.grids import GridBook, WatchedGrid
from isotherm.report.watch.source import Reading, StoreSource
from isotherm.running.heartbeat import Training
from isotherm.running.store import Store
from isotherm.sweep.results import StudyResults

logger = logging.getLogger("isotherm")

SECONDS_BETWEEN_READINGS = 1.0
SECONDS_BETWEEN_FITS = 15.0
# Reading and fitting may take at most this part of the time.
MOST_READING, MOST_FITTING = 0.5, 0.34


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shown:
    """What one reading of the store came to."""

    content: Plain
    maps: dict[str, tuple[Plain, list[WatchedGrid]]]
    results: StudyResults
    left: Plain


@dataclass(kw_only=True)
class Live:
    """One store, watched.

    Args:
        path: of the store.
        study: its name; by default the study that was run last.
        price: of an hour of training, where the cost left is to be told in money.
        seconds: least time between two readings.
        fit_seconds: least time between two fits.
    """

    path: Path
    study: str | None = None
    price: float | None = None
    seconds: float = SECONDS_BETWEEN_READINGS
    fit_seconds: float = SECONDS_BETWEEN_FITS
    version: int = 0
    problem: str | None = None
    shown: Shown | None = None
    findings: Findings = field(default_factory=Findings)
    _training: Training | None = None
    _threads: list[threading.Thread] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stop: threading.Event = field(default_factory=threading.Event)
    _fitted: StudyResults | None = None

    def __post_init__(self) -> None:
        self._source = StoreSource(self.path, study=self.study)
        self._book = GridBook()

    def check(self) -> None:
        """Refuse a store that cannot be read, or has no such study, before anything is served."""
        StoreSource(self.path, study=self.study).check()

    # -- what the page asks for -------------------------------------------------------------------------------------

    def state(self, map_name: str | None = None) -> Plain:
        """Return everything but the cells opened: the study, one map, and the fits."""
        shown, training = self.shown, self._training
        head = {"version": self.version, "store": visible(self.path.name), "problem": self.problem}
        if shown is None:
            return {**head, "is_read": False}
        name = map_name if map_name in shown.maps else self._first_map(shown)
        return {
            **head,
            "is_read": True,
            **shown.content,
            "training": training_content(training, now=time.time(), left=shown.left, price=self.price),
            "map": None if name is None else self.map(name),
            "findings": self.findings.content,
        }

    def _first_map(self, shown: Shown) -> str | None:
        """Return the map with runs in training, where there is one; else the first."""
        names = (name for name, (_, grids) in shown.maps.items() if running_cells(grids, self._training))
        return next(names, next(iter(shown.maps), None))

    def map(self, name: str) -> Plain | None:
        """Return all cells and optima of a map; None where there is no such map."""
        shown = self.shown
        if shown is None or name not in shown.maps:
            return None
        head, grids = shown.maps[name]
        return {
            **head,
            "grids": [grid_content(grid) for grid in grids],
            "running": running_cells(grids, self._training),
            "optima": optimum_rows(grids),
        }

    def cell(self, name: str, row: int, column: int) -> Plain | None:
        """Return an opened cell of a map, its curves read from the store now; None where there is no such cell."""
        shown = self.shown
        if shown is None or name not in shown.maps:
            return None
        grids = shown.maps[name][1]
        if not 0 <= row < len(grids):
            return None
        with Store.read(self.path) as store:
            curves = store.results_of(cell_keys(grids[row], column))
        return cell_content(grids[row], column, curves=curves, training=self._training)

    # -- the threads ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read and to fit."""
        for work in (self._read_again_and_again, self._fit_again_and_again):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop reading; a fit that is being made is not waited for."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads[:1]:
            thread.join(timeout=5.0)

    def wait(self, version: int, *, seconds: float) -> int:
        """Wait until there is a later version than this one, but no longer than so; return the version."""
        with self._changed:
            self._changed.wait_for(lambda: self.version > version or self._stop.is_set(), timeout=seconds)
        return self.version

    def read(self) -> bool:
        """Read what is new; tell whether anything is."""
        reading, problem = None, None
        try:
            reading = self._source.read()
        except UserError as error:
            problem = visible(str(error))
        if reading is not None:
            self.shown = self._shown(reading)
        training = self._source.training()
        differs = reading is not None or problem != self.problem or training != self._training
        self.problem, self._training = problem, training
        if differs:
            self._publish()
        return differs

    def fit(self) -> float:
        """Fit what is shown, unless it was fitted already; return the seconds that it took."""
        shown = self.shown
        if shown is None or shown.results is self._fitted:
            return 0.0
        seconds = self.findings.compute(shown.results)
        self._fitted = shown.results
        self._publish()
        return seconds

    def _shown(self, reading: Reading) -> Shown:
        results = reading.results
        self._book.update(results)
        maps = {
            map_id(index, key): (map_head(index, key, grids), grids)
            for index in range(len(results.plan.sweeps))
            for key, grids in maps_of(self._book, index)
        }
        content = {**study_content(results, self._book), "studies": [visible(name) for name in reading.studies]}
        return Shown(content=content, maps=maps, results=results, left=left_content(results))

    def _publish(self) -> None:
        with self._changed:
            self.version += 1
            self._changed.notify_all()

    def _read_again_and_again(self) -> None:
        def read() -> None:
            start = time.perf_counter()
            self.read()
            self._stop.wait(max(self.seconds, (time.perf_counter() - start) * (1 / MOST_READING - 1)))

        self._until_stopped(read)
        self._source.close()

    def _fit_again_and_again(self) -> None:
        def fit() -> None:
            seconds = self.fit()
            if seconds:
                self._stop.wait(max(self.fit_seconds, seconds * (1 / MOST_FITTING - 1)))
            else:
                self.wait(self.version, seconds=1.0)

        self._until_stopped(fit)

    def _until_stopped(self, work: Callable[[], None]) -> None:
        """Do something again and again; a defect is logged and told on the page, and the page stays up."""
        while not self._stop.is_set():
            try:
                work()
            except Exception as error:
                logger.exception("watching %s", self.path)
                self.problem = visible(f"{type(error).__name__}: {error}")
                self._publish()
                self._stop.wait(10.0)
