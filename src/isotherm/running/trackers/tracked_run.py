"""A stored run as trackers take it: a group, a name, a configuration, a curve, and final numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from isotherm.core.optimizers import has_temperature
from isotherm.core.records import CurvePoint, Outcome, RunSpec, content_hash
from isotherm.core.temperature import temperature
from isotherm.running.store import StoredRun

_QUANTITIES = (
    "test_metric",
    "test_loss",
    "validation_metric",
    "validation_loss",
    "train_loss",
    "train_metric",
    "train_objective",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """One run. `cell` names its group: the same for all seeds of a setting, and for no other runs.

    `final` are the quantities that it ended with; those that it lacks, or that are not finite, are left out.
    """

    study: str
    cell: str
    name: str
    config: dict[str, Any]
    curve: tuple[CurvePoint, ...]
    final: dict[str, float]
    num_steps: int
    outcome: Outcome
    error: str | None


class Tracker(Protocol):
    """Where runs are told. Whatever it raises ends the tracking, never the training."""

    def tell(self, run: TrackedRun) -> None:
        """Record one run, whole."""

    def close(self) -> None:
        """Write what is left."""


def _temperature(spec: RunSpec) -> dict[str, float]:
    if not has_temperature(spec.method):
        return {}
    return {"temperature": temperature(spec.effective_learning_rate, spec.batch_size)}


def tracked_run(run: StoredRun, *, study: str) -> TrackedRun:
    """Return a stored run as trackers take it."""
    spec, result = run.spec, run.result
    setting = {name: value for name, value in spec.to_json().items() if name != "seed"}
    method = f"m{spec.momentum:g}" if spec.optimizer is None else spec.optimizer.name
    cell = (
        f"B{spec.batch_size}-lr{spec.effective_learning_rate:.6g}-{method}-{spec.num_steps}steps-"
        f"{content_hash(setting)[:8]}"
    )
    final = {name: result.quantity(name) for name in _QUANTITIES}
    return TrackedRun(
        study=study,
        cell=cell,
        name=f"{cell}-seed{spec.seed}",
        config={
            **spec.to_json(),
            "learning_rate": spec.learning_rate,
            **_temperature(spec),
            "key": spec.key,
            **{f"trained_with.{name}": value for name, value in run.provenance.items()},
        },
        curve=result.curve,
        final={name: value for name, value in final.items() if math.isfinite(value)},
        num_steps=spec.num_steps,
        outcome=result.outcome,
        error=result.error,
    )


def points_of(run: TrackedRun) -> list[tuple[int, dict[str, float]]]:
    """Return the curve as finite numbers by step, then the final ones at the last step under names of their own."""
    points = [
        (point.step, {"curve/test_loss": point.test_loss, "curve/test_metric": point.test_metric})
        for point in run.curve
    ]
    finite = [(step, {n: v for n, v in values.items() if math.isfinite(v)}) for step, values in points]
    last = (run.num_steps, {f"final/{name}": value for name, value in run.final.items()})
    return [(step, values) for step, values in (*finite, last) if values]
