"""The results that a store holds, without running anything."""

from __future__ import annotations

from pathlib import Path

from isotherm.errors import UserError, nearest
from isotherm.running.store import Store
from isotherm.sweep.plan import StudyPlan
from isotherm.sweep.results import StudyResults


def open_results(store: str | Path | Store, *, study: str | None = None) -> StudyResults:
    """Return the results of a study in a store, finished or not; nothing is run.

    Args:
        store: a path or an open store.
        study: its name; may be left out where the store holds one study.

    Raises:
        UserError: the store holds no such study, or several and none is named.
    """
    found = stored_studies(store, study=study)
    if len(found) > 1:
        names = ", ".join(repr(results.plan.name) for results in found)
        raise UserError(
            f"the store {_path(store)} holds {len(found)} studies: {names}; "
            f"choose one with study={found[0].plan.name!r}"
        )
    return found[0]


def stored_studies(store: str | Path | Store, *, study: str | None = None) -> list[StudyResults]:
    """Return the studies of a store, in the order in which they were run last; or the one named."""
    if isinstance(store, Store):
        return _studies_of(store, study)
    with Store.read(store) as opened:
        return _studies_of(opened, study)


def _studies_of(store: Store, study: str | None) -> list[StudyResults]:
    plans = {name: StudyPlan.from_json(content) for name, content in store.studies().items()}
    if not plans:
        raise UserError(
            f"the store {store.path} holds no study yet; run one into it with isotherm run STUDY --store {store.path}"
        )
    if study is not None and study not in plans:
        raise UserError(f"the store {store.path} holds no study {study!r}; {nearest(study, plans)}")
    wanted = [plan for name, plan in plans.items() if study in (None, name)]
    table = store.table({(sweep.data_id, sweep.model_id) for plan in wanted for sweep in plan.sweeps})
    return [StudyResults(plan=plan, by_key=table) for plan in wanted]


def _path(store: str | Path | Store) -> str:
    return store.path if isinstance(store, Store) else str(store)
