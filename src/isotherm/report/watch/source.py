"""A store read again and again, only when it has changed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.core.records import RunResult
from isotherm.core.run_table import RunTable
from isotherm.errors import UserError, nearest
from isotherm.running.heartbeat import Training, read_training
from isotherm.running.store import Store
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import StudyResults


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """One look at a store: a study's results so far, and the names of all its studies."""

    results: StudyResults
    studies: tuple[str, ...]


class StoreSource:
    """Reads one study of a store; a store that is replaced by another file is opened again.

    Args:
        path: of the store.
        study: its name; by default the study that was run last.
    """

    def __init__(self, path: str | os.PathLike[str], *, study: str | None = None) -> None:
        self.path = Path(path)
        self._study = study
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None
        self._num_changes = -1
        self._known: object = None
        self._definition: dict[str, Any] | None = None
        self._plan: StudyPlan | None = None

    def read(self) -> Reading | None:
        """Return what there is if the runs or the plan differ from the last time; else None."""
        store = self._opened()
        num_changes = store.num_changes()
        if num_changes == self._num_changes:
            return None
        self._num_changes = num_changes
        studies = store.studies()
        plan = self._planned(studies)
        table = store.table({(sweep.data_id, sweep.model_id) for sweep in plan.sweeps})
        tried = num_changes if table.failed_keys() else 0  # a run that fails again differs in its message alone
        known = studies, zlib.crc32(table.records.tobytes()), tried
        if known == self._known:
            return None
        self._known = known
        own = RunTable(table.records, load=self._load, origins=table.origins)
        return Reading(results=StudyResults(plan=plan, by_key=own), studies=tuple(studies))

    def _load(self, keys: Sequence[str]) -> Mapping[str, RunResult]:
        """Return full results, read in whatever thread asks for them."""
        with Store.read(self.path) as store:
            return store.results_of(keys)

    def check(self) -> None:
        """Refuse a store that cannot be read, or that has no such study."""
        try:
            self._chosen(self._opened().studies())
        finally:
            self.close()

    def training(self) -> Training | None:
        """Return what the process that writes the store is doing."""
        return read_training(self.path)

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _opened(self) -> Store:
        """Return the open store; opened again where another file lies there now."""
        try:
            status = os.stat(self.path)
            file = status.st_dev, status.st_ino
        except OSError:
            file = None
        if self._store is None or file != self._file:
            self.close()
            self._store = Store.read(self.path)
            self._file, self._num_changes = file, -1
        return self._store

    def _planned(self, studies: Mapping[str, dict[str, Any]]) -> StudyPlan:
        """Return the plan of the chosen study, the same object as long as its definition is the same."""
        definition = studies[self._chosen(studies)]
        if self._plan is None or definition != self._definition:
            self._definition, self._plan = definition, StudyPlan.from_json(definition)
        return self._plan

    def _chosen(self, studies: Mapping[str, Any]) -> str:
        if not studies:
            raise UserError(f"the store {self.path} holds no study yet; run one into it")
        if self._study is None:
            return list(studies)[-1]
        if self._study not in studies:
            raise UserError(f"the store {self.path} holds no study {self._study!r}; {nearest(self._study, studies)}")
        return self._study
