"""A study's results as plain values: what `--json` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from isotherm.analysis.regimes import JointRegimes, Regimes, joint_regimes, regimes
from isotherm.analysis.verdicts import Verdict
from isotherm.core.json import plain
from isotherm.core.records import Direction
from isotherm.core.statistics import Interval
from isotherm.sweep.protocol import Estimate, Grid, Optimum
from isotherm.sweep.results import Results, StudyResults


def study_summary(
    results: StudyResults, *, verdicts: Sequence[Verdict] = (), seconds: float | None = None
) -> dict[str, Any]:
    """Return the study as JSON values: one entry per sweep, budget and momentum, with its grids over batch sizes."""
    content: dict[str, Any] = {
        "study": results.plan.name,
        "question": results.plan.question,
        "seconds": seconds,
        "counts": results.counts(),
        "sweeps": [entry for sweep in results.sweeps for entry in _sweep_entries(sweep)],
        "joint_regimes": [_joint_entry(fit) for fit in joint_regimes(results)],
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
    }
    return {name: plain(value) for name, value in content.items()}


def _sweep_entries(results: Results) -> list[dict[str, Any]]:
    fits = {(fit.budget, fit.momentum): fit for fit in regimes(results)}
    return [
        {
            "name": results.plan.name,
            "task": results.plan.task,
            "metric": results.plan.metric,
            "tuned_on": results.plan.objective,
            "budget": {"unit": str(budget.unit), "amount": budget.amount},
            "momentum": momentum,
            "regimes": _regimes_entry(fits.get((str(budget), momentum))),
            "grids": [
                _grid_entry(grid, results.plan.metric) for grid in results.grids(momentum=momentum, budget=budget)
            ],
        }
        for budget in results.plan.budgets
        for momentum in results.plan.momenta
    ]


def _grid_entry(grid: Grid, metric: str) -> dict[str, Any]:
    best, train_best = grid.optimum(), grid.train_optimum()
    train_loss = grid.at_optimum("train_loss")
    objective = grid.at_optimum("train_objective")
    test = estimate_entry(grid.at_optimum("test_metric"))
    return {
        "batch_size": grid.axes.batch_size,
        "num_steps": grid.num_steps,
        "optimal_effective_learning_rate": None if best is None else best.effective_learning_rate,
        "interval": None if best is None else list(best.interval),
        "at_edge": True if best is None else best.at_edge,
        "edge": str(grid.edge()),
        "temperature": None if best is None else best.effective_learning_rate / grid.axes.batch_size,
        "learning_rate": grid.bare_learning_rate_at_optimum(),
        f"test_{metric}": test,
        "train_loss": None if train_loss is None else train_loss.mean,
        "train_objective": None if objective is None else objective.mean,
        "train_optimal_effective_learning_rate": None if train_best is None else train_best.effective_learning_rate,
        "train_optimum_at_end": None if train_best is None else train_best.lies_at_end_of(grid),
        "train_objective_optimal_effective_learning_rate": _rate(grid.optimum("train_objective", Direction.MINIMISE)),
        "num_diverged": grid.num_diverged,
        "num_runs": sum(r is not None for cell in grid.cells for r in cell.results),
        "effective_learning_rates": [cell.effective_learning_rate for cell in grid.cells],
    }


def estimate_entry(estimate: Estimate | None) -> dict[str, Any] | None:
    """Return an estimate as JSON values."""
    if estimate is None:
        return None
    return {
        "mean": estimate.mean,
        "standard_deviation": estimate.standard_deviation,
        "num_kept": estimate.num_kept,
        "num_seeds": estimate.num_seeds,
        "mean_all": estimate.mean_all,
        "standard_deviation_all": estimate.standard_deviation_all,
        "interval_all": [estimate.interval_all.low, estimate.interval_all.high],
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
        "plain": _regimes_entry(fit.plain),
        "heavy": _regimes_entry(fit.heavy),
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
