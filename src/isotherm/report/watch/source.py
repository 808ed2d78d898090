"""A store read again and again: only what has changed since the last time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.core.records import Outcome, RunResult
from isotherm.errors import UserError, nearest
from isotherm.running.heartbeat import Training, read_training
from isotherm.running.store import Store
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import StudyResults


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """One look at a store: a study's results so far, the keys that are new, and what is in training."""

    results: StudyResults
    changed: frozenset[str]
    studies: tuple[str, ...]
    training: Training | None
    is_new_plan: bool


class StoreSource:
    """Reads one study of a store, whole the first time and then what is new; a store that is replaced is read anew.

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
        self._definition: dict[str, Any] | None = None
        self._plan: StudyPlan | None = None
        self._outcomes: dict[str, str] = {}
        self._results: dict[str, RunResult] = {}

    def read(self) -> Reading | None:
        """Return what there is if the results or the plan differ from the last time; else None."""
        store = self._opened()
        num_changes = store.num_changes()
        if num_changes == self._num_changes:
            return None
        self._num_changes = num_changes
        studies = store.studies()
        name = self._chosen(studies)
        is_new_plan = studies[name] != self._definition
        if is_new_plan or self._plan is None:
            self._definition, self._plan = studies[name], StudyPlan.from_json(studies[name])
        changed = self._update(store)
        if not changed and not is_new_plan:
            return None
        return Reading(
            results=StudyResults(plan=self._plan, by_key=dict(self._results)),
            changed=changed,
            studies=tuple(studies),
            training=self.training(),
            is_new_plan=is_new_plan,
        )

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

    def _chosen(self, studies: Mapping[str, Any]) -> str:
        if not studies:
            raise UserError(f"the store {self.path} holds no study yet; run one into it")
        if self._study is None:
            return list(studies)[-1]
        if self._study not in studies:
            raise UserError(f"the store {self.path} holds no study {self._study!r}; {nearest(self._study, studies)}")
        return self._study

    def _update(self, store: Store) -> frozenset[str]:
        """Bring the results up to date, and return the keys that differ; a failed run may have been tried again."""
        outcomes = store.outcomes()
        gone = self._outcomes.keys() - outcomes.keys()
        failed = str(Outcome.FAILED)
        changed = {k for k, outcome in outcomes.items() if outcome == failed or self._outcomes.get(k) != outcome}
        whole = not self._results and len(changed) == len(outcomes)
        read = store.results() if whole else store.results_of(changed)
        fresh = {key: dataclasses.replace(result, curve=()) for key, result in read.items()}  # curves are read by cell
        differing = {key for key, result in fresh.items() if self._results.get(key) != result} | gone
        for key in gone:
            self._results.pop(key, None)
        self._results.update(fresh)
        self._outcomes = outcomes
        return frozenset(differing)
