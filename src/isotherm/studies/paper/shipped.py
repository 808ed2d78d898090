"""Rows that were run before and are kept in a folder: stores, and exported files of runs.

An exported file holds `runs`, each with specification, result, provenance and commit. `studies` are the plans of all
objects that they belong to; without them the folder of the file is named after its one object, at the paper's scale.
Files whose names end in `.gz` are compressed.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.core.budget import Budget
from isotherm.core.json import json_line
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError
from isotherm.running.store import Store
from isotherm.running.stored import stored_studies
from isotherm.studies.paper.definition import PaperObject, Scale, Setting
from isotherm.studies.paper.registry import objects
from isotherm.sweep.plan import StudyPlan, SweepPlan
from isotherm.sweep.results import StudyResults
from isotherm.sweep.rounds import all_runs
from isotherm.tasks.builtin import DEFINITIONS
from isotherm.tasks.metrics import METRICS, Metric

MOST_BYTES = 2**28  # of an exported file once it is unpacked


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Record:
    """The rows of an object at one scale, and where they are."""

    wanted: PaperObject
    scale: Scale
    path: Path
    results: StudyResults
    commits: tuple[str, ...] = ()


def records_in(folder: Path) -> list[Record]:
    """Return every record of a folder and the folders in it; none where there is no such folder."""
    paths = sorted([*folder.glob("*/*.json"), *folder.glob("*/*.json.gz")])
    exported = [record for path in paths for record in read_export(path)]
    return [*exported, *(record for path in sorted(folder.rglob("*.sqlite")) for record in stored_records(path))]


def stored_records(path: Path) -> list[Record]:
    """Return the records of a store; its other studies are left out."""
    with Store.read(path) as store:
        names = list(store.studies())
    found = [] if not names else stored_studies(path)
    named = ((results, object_named(results.plan.name)) for results in found)
    return [Record(wanted=o[0], scale=o[1], path=path, results=results) for results, o in named if o is not None]


def object_named(study: str) -> tuple[PaperObject, Scale] | None:
    """Return the object and scale of a study's name; None where it is another study."""
    identifier, _, scale = study.rpartition("_")
    known = objects()
    return (known[identifier], Scale(scale)) if identifier in known and scale in set(Scale) else None


def read_export(path: Path) -> list[Record]:
    """Return the records of a file; none where it holds no exported runs of an object.

    Raises:
        UserError: it cannot be read, or is no JSON.
    """
    content = _content(path)
    if not isinstance(content, dict) or "runs" not in content:
        return []
    if "studies" not in content and path.parent.name not in objects():  # runs of something else
        return []
    rows: list[dict[str, Any]] = content["runs"]
    specs = [RunSpec.from_json(row["spec"]) for row in rows]
    by_key = {s.key: RunResult.from_json(row["result"]) for s, row in zip(specs, rows, strict=True)}
    provenance = {s.key: row["provenance"] for s, row in zip(specs, rows, strict=True)}
    commits = tuple(dict.fromkeys(row["commit"] for row in rows))
    found = []
    for plan in _study_plans(content, path, specs):
        named = object_named(plan.name)
        if named is not None:
            results = StudyResults(plan=plan, by_key=by_key, provenance=provenance)
            found.append(Record(wanted=named[0], scale=named[1], path=path, results=results, commits=commits))
    return found


def _content(path: Path) -> Any:
    """Return the JSON of a file; one that unpacks to far more than any export is refused."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) <= MOST_BYTES:
            return json.loads(text)
        error: Exception = ValueError(f"it has more than {MOST_BYTES:,} bytes")
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as found:
        error = found
    raise UserError(f"{path} is no intact JSON ({error}); restore the file, or take it out of the folder") from error


def export(path: Path, *, commit: str) -> dict[str, Any]:
    """Return the content of an exported file: the studies of the paper in a store, and their runs, each once.

    Raises:
        UserError: the store holds nothing of the paper.
    """
    records = stored_records(path)
    if not records:
        raise UserError(f"the store {path} holds nothing of the paper; name one that isotherm reproduce has filled")
    wanted: set[str] = set().union(*(all_runs(r.results.plan.sweeps, r.results.by_key) for r in records))
    with Store.read(path) as store:
        runs = [run for run in store.runs() if run.spec.key in wanted and run.result.outcome is not Outcome.FAILED]
    return {
        "command": f"isotherm reproduce ID --scale {' or '.join(dict.fromkeys(str(r.scale) for r in records))}",
        "num_runs": len(runs),
        "studies": {r.results.plan.name: r.results.plan.to_json() for r in records},
        "runs": [
            {"commit": commit, "spec": r.spec.to_json(), "result": r.result.to_json(), "provenance": r.provenance}
            for r in runs
        ],
    }


def export_bytes(content: dict[str, Any], path: Path) -> bytes:
    """Return an exported file for a path; compressed, and always to the same bytes, where its name ends in `.gz`."""
    text = export_text(content).encode()
    return gzip.compress(text, 9, mtime=0) if path.suffix == ".gz" else text


def export_text(content: dict[str, Any]) -> str:
    """Return an exported file as text, one line per run.

    >>> export_text({"num_runs": 2, "runs": [{"a": 1}, {"a": 2}]}).splitlines()
    ['{"num_runs":2,', '"runs":[', '{"a":1},', '{"a":2}', ']}']
    """
    head = "".join(f"{json_line(name)}:{json_line(value)},\n" for name, value in content.items() if name != "runs")
    runs = ",\n".join(json_line(run) for run in content["runs"])
    return f'{{{head}"runs":[\n{runs}\n]}}\n'


def _study_plans(content: dict[str, Any], path: Path, specs: Sequence[RunSpec]) -> list[StudyPlan]:
    if "studies" in content:
        return [StudyPlan.from_json(plan) for plan in content["studies"].values()]
    wanted = objects()[path.parent.name]
    name = wanted.study_name(Scale.PAPER)
    return [StudyPlan(name=name, question=wanted.shows, sweeps=_plans(wanted, Scale.PAPER, specs))]


def _plans(wanted: PaperObject, scale: Scale, specs: Sequence[RunSpec]) -> tuple[SweepPlan, ...]:
    """Return a plan for every sweep of the object that the runs belong to."""
    found = []
    for setting in wanted.scales[scale].settings:
        own = [s for s in specs if s.task == setting.network and s.momentum == setting.momentum]
        if own:
            rates = {row.batch_size: row.rate for row in wanted.published if row.momentum == setting.momentum}
            found.append(_plan(setting, own, rates))
    return tuple(found)


def _plan(setting: Setting, specs: Sequence[RunSpec], published: Mapping[int, float]) -> SweepPlan:
    """Return the plan of runs that are known; a batch size with fewer learning rates than others is unfinished.

    It is to have as many as the others, next to the published one.
    """
    first, metric = specs[0], _metric(setting.network)
    found = {s: {spec.effective_learning_rate for spec in specs if spec.batch_size == s} for s in setting.batch_sizes}
    most = max(map(len, found.values()))
    rates = tuple(
        tuple(sorted(own if len(own) == most else own | _nearest(setting.rates_at(size), published.get(size), most)))
        for size, own in found.items()
    )
    num_seeds = max(s.seed for s in specs) + 1
    return SweepPlan(
        name=setting.name,
        task=first.task,
        data_id=first.data_id,
        model_id=first.model_id,
        num_train=0,  # budgets are in updates
        metric=metric.name,
        metric_direction=metric.direction,
        batch_sizes=setting.batch_sizes,
        learning_rates=rates,
        budgets=tuple(Budget.steps(num) for num in sorted({s.num_steps for s in specs})),
        momenta=(setting.momentum,),
        l2=first.l2,
        l2_scope=first.l2_scope,
        schedule=Schedule(gamma=first.gamma),
        seeds=tuple(range(num_seeds)),
        num_kept=min(setting.num_kept, num_seeds),
        tune_on="test",
        tune_quantity="metric",
        num_evaluations=first.num_evaluations,
        max_extensions=0,
        extend_for="tuned_and_train",
        precision=first.precision,
        clip_norm=first.clip_norm,
        metric_bounds=metric.bounds,
    )


def _nearest(rates: Sequence[float], published: float | None, number: int) -> set[float]:
    """Return so many learning rates next to the published one; the lowest where none is published.

    >>> sorted(_nearest((1.0, 1.4, 2.0, 2.8, 4.0), 2.0, 3))
    [1.4, 2.0, 2.8]
    """
    centre = rates[0] if published is None else published
    return set(sorted(rates, key=lambda rate: abs(math.log(rate / centre)))[:number])


def _metric(network: str) -> Metric:
    return METRICS[DEFINITIONS[network].metric]
