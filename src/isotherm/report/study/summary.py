"""An analysis as JSON values: what `--json` and `summary.json` hold."""

from __future__ import annotations

import dataclasses
from typing import Any

from isotherm.analysis.analysis import Analysis, SweepAnalysis
from isotherm.analysis.regimes import JointRegimes, Regimes
from isotherm.analysis.series import TunedGrid
from isotherm.analysis.unlimited import BudgetSeries
from isotherm.core.json import plain
from isotherm.core.optimizers import SGD, optimizer_json
from isotherm.core.statistics import Interval
from isotherm.sweep.plane import plane_optimum, plane_train_optimum
from isotherm.sweep.protocol import Estimate, Grid, Optimum


def study_summary(analysis: Analysis, *, seconds: float | None = None) -> dict[str, Any]:
    """Return the analysis as JSON values, with one entry per sweep, budget and optimiser."""
    content: dict[str, Any] = {
        "study": analysis.plan.name,
        "question": analysis.plan.question,
        "seconds": seconds,
        "counts": dict(analysis.counts),
        "recommendations": [dataclasses.asdict(advice) for advice in analysis.recommendations],
        "verdicts": [{**dataclasses.asdict(verdict), "state": verdict.state} for verdict in analysis.verdicts],
        "sweeps": [entry for sweep in analysis.sweeps for entry in _sweep_entries(sweep)],
        "budgets": [_budgets_entry(sweep.plan.name, one) for sweep in analysis.sweeps for one in sweep.budgets],
        "savings": [
            {"sweep": sweep.plan.name, **dataclasses.asdict(sweep.saving), "fraction": sweep.saving.fraction}
            for sweep in analysis.sweeps
            if sweep.saving is not None
        ],
        "joint_regimes": [_joint_entry(fit) for fit in analysis.joint_regimes],
    }
    return {name: plain(value) for name, value in content.items()}


def _sweep_entries(sweep: SweepAnalysis) -> list[dict[str, Any]]:
    plan = sweep.plan
    return [
        {
            "name": plan.name,
            "task": plan.task,
            "metric": plan.metric,
            "tuned_on": plan.objective,
            "resolution": plan.resolution,
            "smallest_ratio": plan.smallest_ratio,
            "num_seeds": len(plan.seeds),
            "num_kept": plan.num_kept,
            "num_confirm": plan.num_confirm,
            "budget": {"unit": str(budget.unit), "amount": budget.amount},
            "optimizer": optimizer_json(method),
            "momentum": method.momentum if isinstance(method, SGD) else None,
            "regimes": _regimes_entry(sweep.law(budget, method)),
            "grids": [
                _grid_entry(tuned, plan.metric)
                for tuned in sweep.grids
                if (tuned.axes.budget, tuned.axes.method) == (budget, method)
            ],
        }
        for budget in plan.budgets
        for method in plan.methods
        if any((tuned.axes.budget, tuned.axes.method) == (budget, method) for tuned in sweep.grids)
    ]


def _budgets_entry(name: str, series: BudgetSeries) -> dict[str, Any]:
    return {
        "sweep": name,
        "batch_size": series.batch_size,
        "optimizer": optimizer_json(series.method),
        "momentum": series.momentum,
        "budgets": [str(budget) for budget in series.budgets],
        "num_steps": list(series.num_steps),
        "tuned": [_estimate_entry(estimate) for estimate in series.estimates],
        "best": None if series.best is None else str(series.budgets[series.best]),
        "reason": None if series.reason is None else str(series.reason),
    }


def _grid_entry(tuned: TunedGrid, metric: str) -> dict[str, Any]:
    best, train_best, grid = tuned.optimum, tuned.train_optimum, tuned.grid
    return {
        "batch_size": tuned.axes.batch_size,
        "num_steps": grid.num_steps,
        "optimal_effective_learning_rate": tuned.rate,
        "interval": None if best is None else list(best.interval),
        "at_edge": True if best is None else best.at_edge,
        "edge": str(tuned.edge),
        "temperature": tuned.temperature,
        "rate_over_batch_size": tuned.rate_over(1.0),
        "rate_over_root_batch_size": tuned.rate_over(0.5),
        "learning_rate": tuned.learning_rate,
        "resolution": None if best is None else _resolution_entry(best),
        f"test_{metric}": _estimate_entry(tuned.test),
        "selected": _estimate_entry(tuned.selected),
        "confirmed": _estimate_entry(tuned.confirmed),
        "selection_bias": None if tuned.selection_bias is None else dataclasses.asdict(tuned.selection_bias),
        "train_loss": None if tuned.train_loss is None else tuned.train_loss.mean,
        "train_objective": None if tuned.train_objective is None else tuned.train_objective.mean,
        "train_optimal_effective_learning_rate": _rate(train_best),
        "train_optimum_at_end": None if train_best is None else train_best.lies_at_end_of(grid),
        "train_loss_optimal_effective_learning_rate": _rate(tuned.train_loss_optimum),
        "num_diverged": grid.num_diverged,
        "num_runs": grid.num_runs,
        "effective_learning_rates": [cell.effective_learning_rate for cell in grid.cells],
        "final_learning_rates": _final_entry(grid) if grid.rows else None,
    }


def _final_entry(grid: Grid) -> dict[str, Any]:
    """Return both optima of a grid whose final learning rates were swept apart."""
    optima = {"tuned": plane_optimum(grid), "train": plane_train_optimum(grid)}
    return {
        name: None
        if best is None
        else {
            "effective_learning_rate": best.effective_learning_rate,
            "interval": list(best.interval),
            "edge": str(best.edge),
            "final_learning_rate": best.final_learning_rate,
            "final_interval": list(best.final_interval),
            "final_edge": str(best.final_edge),
        }
        for name, best in optima.items()
    }


def _estimate_entry(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {
        "mean": estimate.mean,
        "standard_deviation": estimate.standard_deviation,
        "num_kept": estimate.num_kept,
        "num_seeds": estimate.num_seeds,
        "num_diverged": estimate.num_diverged,
        "mean_all": estimate.mean_all,
        "standard_deviation_all": estimate.standard_deviation_all,
        "interval_all": [estimate.interval_all.low, estimate.interval_all.high],
    }


def _resolution_entry(best: Optimum) -> dict[str, Any]:
    return {
        "ratio": best.ratio,
        "unresolved_gain": best.unresolved_gain,
        "error_of_mean": best.error,
        "is_resolved": best.is_resolved,
    }


def _rate(optimum: Optimum | None) -> float | None:
    return None if optimum is None else optimum.effective_learning_rate


def _regimes_entry(fit: Regimes | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    kink = fit.kink
    return {
        "slope": fit.slope.estimate,
        "slope_interval": _limits(fit.slope),
        "kink_batch_size": None if kink is None else kink.estimate,
        "kink_interval": None if kink is None else _limits(kink),
        "shows_kink": fit.shows_kink,
        "plateau": fit.plateau.estimate,
        "plateau_interval": _limits(fit.plateau),
        "words": str(fit),
    }


def _joint_entry(fit: JointRegimes) -> dict[str, Any]:
    return {
        "budget": fit.plain.budget,
        "momentum": fit.heavy.momentum,
        "offset_octaves": fit.offset.estimate,
        "offset_interval": _limits(fit.offset),
        "same_line": fit.same_line,
        "plateau_ratio": fit.plateau_ratio.estimate,
        "plateau_ratio_interval": _limits(fit.plateau_ratio),
        "largest_plateau_ratio": fit.largest_plateau_ratio,
        "words": str(fit),
    }


def _limits(interval: Interval) -> list[float]:
    return [interval.low, interval.high]
