"""What a store's studies ask for: a study of a name that is taken replaces the earlier one only if nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from typing import Any

import numpy as np

from isotherm.core.json import exact_json
from isotherm.core.run_keys import cell_id
from isotherm.core.run_table import MISSING, codes_of
from isotherm.running.store import Store
from isotherm.sweep.growth import CellOfRuns
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.rounds import all_cells

_MOST_NAMED = 5
_MANY = 50_000  # from so many rows on, all of a store are looked at in one go


def put_plan(store: Store, plan: StudyPlan, *, saved: Set[str] = frozenset()) -> str | None:
    """Store a study's plan; an earlier one of its name that has runs of its own is kept under another name.

    Args:
        store: open for writing.
        plan: of the study.
        saved: keys of runs in checkpoints.

    Returns:
        The note about an earlier study that was kept, if one was.
    """
    stored, definition = store.studies(), json.loads(exact_json(plan.to_json()))
    for name, content in stored.items():
        if _is_kept_name(name, plan.name) and {**content, "name": plan.name} == definition:
            store.remove_study(name)  # it is the present one again
    earlier, note = stored.get(plan.name), None
    if earlier not in (None, definition) and _has_own_runs(store, earlier, plan, saved):
        name = _free_name(plan.name, stored)
        store.put_study(name, {**earlier, "name": name})
        note = (
            f"the store has another study {plan.name!r}, whose runs are not among those of this one; it is kept as "
            f"{name!r}, and status and report show both"
        )
    store.put_study(plan.name, plan.to_json())
    return note


def damage_note(store: Store, tasks: Iterable[tuple[str, str]]) -> str | None:
    """Remove damaged rows of some tasks, so that their runs are trained again; return what there is to say."""
    keys = list(store.table(tasks))
    found = store.discard_damaged(keys if len(keys) < _MANY else None)
    if not found:
        return None
    named = ", ".join(key[:12] for key in found[:_MOST_NAMED]) + (", ..." if len(found) > _MOST_NAMED else "")
    rows, are = ("row was", "its run is") if len(found) == 1 else ("rows were", "their runs are")
    they = "it was" if len(found) == 1 else "they were"
    return (
        f"{len(found):,} {rows} damaged since {they} written (the checksum does not match) and removed; {are} "
        f"trained again: {named}. Check the disk"
    )


def _has_own_runs(store: Store, earlier: Any, plan: StudyPlan, saved: Set[str]) -> bool:
    """Tell whether an earlier study has results or checkpoints that another one does not ask for."""
    old = StudyPlan.from_json(earlier)
    wanted: dict[bytes, set[int]] = {}
    for cell in _cells(store, plan.sweeps):
        wanted.setdefault(cell_id(cell.spec), set()).update(cell.seeds)
    for cell in _cells(store, old.sweeps):
        others = wanted.get(cell_id(cell.spec), set())
        own = np.array([seed not in others for seed in cell.seeds])
        if (own & (codes_of(cell.results) != MISSING)).any() or (own.any() and saved & cell.specs().keys()):
            return True
    return False


def _cells(store: Store, sweeps: Iterable[SweepPlan]) -> Iterable[CellOfRuns]:
    plans = tuple(sweeps)
    return all_cells(plans, store.table({(sweep.data_id, sweep.model_id) for sweep in plans}))


def _is_kept_name(name: str, plain: str) -> bool:
    return name.startswith(f"{plain} - earlier ")


def _free_name(plain: str, taken: Iterable[str]) -> str:
    number = 1
    while (name := f"{plain} - earlier {number}") in taken:
        number += 1
    return name
