"""Several stores into one, after every run that two of them hold was compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from isotherm.core.records import Identity, Outcome, RunResult
from isotherm.errors import StoreError
from isotherm.running.store import Store, StoredRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """What came of a store: runs that were new, that were there already, and that had failed elsewhere."""

    path: str
    num_new: int
    num_same: int
    num_replaced: int


@dataclass(kw_only=True, slots=True)
class _Gathered:
    """What the stores hold, with the store that every run and study was first seen in."""

    runs: dict[str, tuple[StoredRun, str]]
    studies: dict[str, tuple[dict[str, Any], str]]
    parts: dict[str, dict[str, str]]
    found: list[Merged]


def merge_stores(sources: Sequence[str | os.PathLike[str]], into: str | os.PathLike[str]) -> list[Merged]:
    """Add all runs and studies of several stores to one, which is created if it is absent.

    All or nothing: nothing is written before every run was compared. A run that failed in one store and is done in
    another is done.

    Raises:
        StoreError: two stores hold different numbers under one key, or different studies under one name.
    """
    target = Path(into)
    if target.absolute() in [Path(source).absolute() for source in sources]:
        raise StoreError(f"{target} is one of the stores to merge; name another file to merge them into")
    gathered = _Gathered(runs={}, studies={}, parts={}, found=[])
    if target.exists():
        _gather(gathered, target)
        gathered.found.clear()
    for source in sources:
        _gather(gathered, Path(source))
    with Store.write(target) as store:
        _put(store, gathered)
    return gathered.found


def _gather(gathered: _Gathered, path: Path) -> None:
    counts = {"new": 0, "same": 0, "replaced": 0}
    with Store.read(path) as store:
        for run in store.runs():
            counts[_add(gathered.runs, run, str(path))] += 1
        for name, definition in store.studies().items():
            known = gathered.studies.setdefault(name, (definition, str(path)))
            if known[0] != definition:
                raise StoreError(
                    f"{known[1]} and {path} hold different studies of the name {name!r}: another grid, budget, model "
                    "or data; merge only the parts of one study, or rename one"
                )
        gathered.parts |= store.parts()
    gathered.found.append(
        Merged(path=str(path), num_new=counts["new"], num_same=counts["same"], num_replaced=counts["replaced"])
    )


def _add(runs: dict[str, tuple[StoredRun, str]], run: StoredRun, path: str) -> str:
    """Add a run to those that are known; return what it was."""
    known = runs.get(run.spec.key)
    if known is None:
        runs[run.spec.key] = run, path
        return "new"
    if run.result.outcome is Outcome.FAILED:
        return "same"
    if known[0].result.outcome is Outcome.FAILED:
        runs[run.spec.key] = run, path
        return "replaced"
    if differing := _differing(known[0].result, run.result):
        raise StoreError(_conflict(known, (run, path), differing))
    return "same"


def _differing(one: RunResult, other: RunResult) -> list[str]:
    """Return the names of quantities that differ; the same numbers are the same to the last digit."""
    return [f.name for f in fields(one) if repr(getattr(one, f.name)) != repr(getattr(other, f.name))]


def _conflict(one: tuple[StoredRun, str], other: tuple[StoredRun, str], names: Sequence[str]) -> str:
    spec, name = one[0].spec, names[0]
    cell = f"B={spec.batch_size}, ε_eff={spec.effective_learning_rate:g}, seed {spec.seed}"
    values = [f"{getattr(run.result, name)!r} in {path} ({_made(run.provenance)})" for run, path in (one, other)]
    return (
        f"the run at {cell} of task {spec.task!r} has different numbers: {name} is {' and '.join(values)}; "
        "the same run was trained twice, on machines that round differently or by changed code: leave one store out"
    )


def _made(provenance: Mapping[str, Any]) -> str:
    names = ("device", "torch", "fleet_size")
    return ", ".join(f"{name} {provenance[name]}" for name in names if name in provenance)


def _put(store: Store, gathered: _Gathered) -> None:
    for identity in _identities((run for run, _ in gathered.runs.values()), gathered.parts):
        store.put_identity(identity)
    for name, (definition, _) in gathered.studies.items():
        store.put_study(name, definition)
    store.put([run for run, _ in gathered.runs.values()])


def _identities(runs: Iterable[StoredRun], parts: Mapping[str, dict[str, str]]) -> Iterable[Identity]:
    """Return what the ids of the runs are made of, as far as it is known."""
    for data_id, model_id in dict.fromkeys((run.spec.data_id, run.spec.model_id) for run in runs):
        if data_id in parts and model_id in parts:
            yield Identity(data_id=data_id, model_id=model_id, data_parts=parts[data_id], model_parts=parts[model_id])
