"""One cell opened: its seeds, and its learning curves with their mean and interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from isotherm.analysis.cells import learning_curve, state_of
from isotherm.core.records import CurvePoint, Outcome, RunResult, RunSpec
from isotherm.core.temperature import bare_learning_rate, temperature
from isotherm.core.visible import visible
from isotherm.report.watch.content import Plain
from isotherm.report.watch.grids import WatchedGrid
from isotherm.report.wording import is_percent, power_text, rate_symbol, rate_text
from isotherm.running.heartbeat import Training
from isotherm.sweep.growth import runs_at
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Cell

_DIGITS = 5


def cell_content(
    grid: WatchedGrid, index: int, *, curves: dict[str, RunResult], training: Training | None = None
) -> Plain | None:
    """Return a cell with all its seeds; None where the grid has no such cell.

    Args:
        grid: of the cell.
        index: of the cell in its grid.
        curves: the results with their learning curves, by key.
        training: what is in training.
    """
    cells = grid.tuned.grid.cells
    if not 0 <= index < len(cells):
        return None
    cell, plan = cells[index], grid.plan
    specs = _specs(grid, cell)
    seeds = _seeds(plan, cell, specs, curves, training)
    kept = [key for key, seed in zip(specs, seeds, strict=True) if seed["is_kept"]]
    rate, size = cell.effective_learning_rate, grid.axes.batch_size
    final = cell.final_learning_rate
    return {
        "title": f"B = {size:,}, {rate_symbol(plan)} = {rate_text(rate)}",
        "setting": [
            ["temperature T" if plan.has_temperature else "ε / B", power_text(temperature(rate, size))],
            ["learning rate ε", f"{bare_learning_rate(rate, momentum=grid.axes.momentum):.4g}"],
            ["updates", f"{grid.tuned.grid.num_steps:,}"],
            *([] if final is None else [[f"final {rate_symbol(plan)}", rate_text(final)]]),
        ],
        "state": state_of(cell).name.lower(),
        "num_seeds": len(cell.results),
        "num_kept": plan.num_kept,
        "percent": is_percent(plan.metric),
        "metric": visible(plan.metric.replace("_", " ")),
        "seeds": seeds,
        "mean": {
            quantity: {"all": _mean(plan, quantity, specs, curves), "best": _mean(plan, quantity, kept, curves)}
            for quantity in ("test_metric", "test_loss")
        },
    }


def cell_keys(grid: WatchedGrid, index: int) -> list[str]:
    """Return the keys of a cell's runs; none where the grid has no such cell."""
    cells = grid.tuned.grid.cells
    return list(_specs(grid, cells[index])) if 0 <= index < len(cells) else []


def _specs(grid: WatchedGrid, cell: Cell) -> dict[str, RunSpec]:
    """Return the runs of a cell by key: those that choose, then those that confirm."""
    plan = grid.plan.at(grid.axes)
    seeds = [*plan.seeds, *(plan.confirming_seeds if cell.confirmed else ())]
    return runs_at(plan, grid.axes, {}, (cell.effective_learning_rate, cell.final_learning_rate), seeds).specs()


def _seeds(
    plan: SweepPlan,
    cell: Cell,
    specs: dict[str, RunSpec],
    curves: dict[str, RunResult],
    training: Training | None,
) -> list[Plain]:
    kept = set(cell.kept(plan.objective, plan.direction))
    running = {} if training is None else training.running
    return [
        _seed(
            spec,
            curves.get(key),
            None if key not in running else running[key].curve,
            is_choosing=place < len(cell.results),
            is_kept=place in kept,
        )
        for place, (key, spec) in enumerate(specs.items())
    ]


def _seed(
    spec: RunSpec,
    result: RunResult | None,
    so_far: tuple[CurvePoint, ...] | None,
    *,
    is_choosing: bool,
    is_kept: bool,
) -> Plain:
    """Return one run; one in training has its curve so far."""
    points: Sequence[CurvePoint] = result.curve if result is not None else so_far or ()
    is_retried = result is not None and result.outcome is Outcome.FAILED and so_far is not None
    state = "running" if is_retried or (result is None and so_far is not None) else "missing"
    told: dict[str, Any] = {"state": state, "test_metric": None, "test_loss": None, "train": None, "note": ""}
    if result is not None and not is_retried:
        told = {
            "state": str(result.outcome),
            "test_metric": _short(result.test_metric),
            "test_loss": _short(result.test_loss),
            "train": _short(result.train_objective),
            "note": _note(result),
        }
    finished = result is not None and result.outcome is Outcome.FINISHED
    return {
        "seed": spec.seed,
        "role": "chooses" if is_choosing else "confirms",
        "is_kept": is_kept and finished,
        **told,
        "steps": [point.step for point in points],
        "curve_metric": [_short(point.test_metric) for point in points],
        "curve_loss": [_short(point.test_loss) for point in points],
    }


def _note(result: RunResult) -> str:
    if result.outcome is Outcome.DIVERGED:
        return "" if result.divergence_step is None else f"at update {result.divergence_step:,}"
    return visible(result.error or "")[:2_000]


def _mean(
    plan: SweepPlan, quantity: str, keys: Sequence[str] | dict[str, RunSpec], curves: dict[str, RunResult]
) -> Plain:
    """Return the mean curve of finished runs with its interval and n at every step."""
    runs = [curves[key] for key in keys if key in curves and curves[key].outcome is Outcome.FINISHED]
    bounds = plan.metric_bounds if quantity == "test_metric" else None
    steps = learning_curve(runs, quantity, bounds=bounds)
    return {
        "steps": [one.step for one in steps],
        "mean": [_short(one.interval.estimate) for one in steps],
        "low": [_short(one.interval.low) if one.num_runs > 1 else None for one in steps],
        "high": [_short(one.interval.high) if one.num_runs > 1 else None for one in steps],
        "n": [one.num_runs for one in steps],
    }


def _short(value: float | None) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if value is not None and math.isfinite(value) else None
