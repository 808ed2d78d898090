"""Small stores for the live page, made by hand: curves, failures, names that mean harm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

from helpers_report import diverged, failed, finished, make_plan
from isotherm.core.records import CurvePoint, Outcome, RunResult, RunSpec
from isotherm.running.store import Store, StoredRun
from isotherm.sweep.growth import growth
from isotherm.sweep.plan import StudyPlan, SweepPlan

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e</script><b>"


def study_of(*plans: SweepPlan, name: str = "small", question: str = "Does it show?") -> StudyPlan:
    return StudyPlan(name=name, question=question, sweeps=plans)


def small_plan(**changes: object) -> SweepPlan:
    fields: dict[str, object] = {"batch_sizes": (8, 32, 128), "num_kept": 2, "seeds": (0, 1, 2), "num_evaluations": 4}
    return make_plan(**{**fields, **changes})


def peak(spec: RunSpec) -> RunResult:
    """Best at ε_eff = 1; from 4 on runs diverge; seeds differ by 0.01."""
    distance = abs(math.log2(spec.effective_learning_rate))
    if spec.effective_learning_rate > 3:
        return diverged()
    accuracy = 0.7 - 0.05 * distance**2 + 0.01 * spec.seed
    steps = [spec.num_steps * (k + 1) // 4 for k in range(4)]
    curve = tuple(
        CurvePoint(step=step, test_loss=2.0 / (k + 1), test_metric=accuracy * (k + 1) / 4)
        for k, step in enumerate(steps)
    )
    return dataclasses.replace(finished(accuracy, train_loss=0.1 + distance), curve=curve)


def base_specs(plan: SweepPlan) -> list[RunSpec]:
    """Return the runs of the base grids, batch size by batch size, learning rates and seeds rising."""
    return [spec for axes in plan.grids() for spec in next(growth(plan, axes, {})).specs.values()]


def put(path: Path, specs: list[RunSpec], give: Callable[[RunSpec], RunResult] = peak) -> None:
    with Store.write(path) as store:
        store.put([StoredRun(spec=spec, result=give(spec), provenance={}) for spec in specs])


def make_store(
    path: Path, *plans: SweepPlan, num: int | None = None, name: str = "small", question: str = "Does it show?"
) -> list[RunSpec]:
    """Write a study and the first `num` runs of its base grids; return the runs that are left."""
    chosen = plans or (small_plan(),)
    with Store.write(path) as store:
        store.put_study(name, study_of(*chosen, name=name, question=question).to_json())
    specs = [spec for plan in chosen for spec in base_specs(plan)]
    put(path, specs[:num])
    return [] if num is None else specs[num:]


def failing(_: RunSpec) -> RunResult:
    return failed(f"RuntimeError: {HOSTILE}")


__all__ = ["HOSTILE", "Outcome", "base_specs", "failing", "make_store", "peak", "put", "small_plan", "study_of"]
