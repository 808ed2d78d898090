"""Unlimited budgets: how far doubling goes at every batch size, and how many updates a target takes.

At every budget the learning rate is tuned and the schedule is that of the budget, so the number of updates to a target
is that of runs that were meant to be so long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.core.budget import Budget
from isotherm.core.checks import is_number
from isotherm.core.optimizers import SGD, Optimizer, heavy_ball_momentum
from isotherm.core.records import Direction
from isotherm.errors import UserError
from isotherm.sweep.doubling import StopReason, stop_reason
from isotherm.sweep.protocol import Estimate, Grid
from isotherm.sweep.results import Results


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSeries:
    """What is tuned, at the optimum of one budget after another, at one batch size and optimiser.

    `estimates` are None where no learning rate is stable. `reason` says why there is no larger budget; None while runs
    are missing, and in a sweep whose budgets do not double.
    """

    batch_size: int
    method: Optimizer
    direction: Direction
    budgets: tuple[Budget, ...]
    num_steps: tuple[int, ...]
    estimates: tuple[Estimate | None, ...]
    reason: StopReason | None

    @property
    def momentum(self) -> float:
        """The momentum of SGD; 0 of others."""
        return self.method.momentum if isinstance(self.method, SGD) else 0.0

    @property
    def best(self) -> int | None:
        """The index of the best budget; None where no learning rate is stable."""
        known = {k: e.mean for k, e in enumerate(self.estimates) if e is not None and math.isfinite(e.mean)}
        return max(known, key=lambda k: self.direction.sign * known[k]) if known else None

    def __str__(self) -> str:
        where = f"B = {self.batch_size:,}, {_label(self.method)}"
        reason = "runs are missing" if self.reason is None else self.reason
        if self.best is None:
            return f"{where}: {reason}"
        found = self.estimates[self.best]
        assert found is not None
        return f"{where}: best at {self.budgets[self.best]}, {found.mean:.4g}; ends at {self.budgets[-1]}: {reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsToTarget:
    """How many updates a target takes at one batch size, with the learning rate tuned for every budget.

    `missed` is the last budget in updates before the first that meets the target, which is `met`; either is None where
    there is none. `num_steps` lies between, on the straight line in log updates; None without both.
    """

    batch_size: int
    method: Optimizer
    target: float
    missed: int | None
    met: int | None
    num_steps: float | None

    def __str__(self) -> str:
        where = f"B = {self.batch_size:,}, {_label(self.method)}"
        if self.met is None:
            return f"{where}: not met with {self.missed:,} updates" if self.missed else f"{where}: not known"
        if self.num_steps is None:
            return f"{where}: at most {self.met:,} updates"
        return f"{where}: about {self.num_steps:,.0f} updates, between {self.missed:,} and {self.met:,}"


def budget_series(results: Results) -> list[BudgetSeries]:
    """Return the series over budgets of every batch size and optimiser of a sweep."""
    chains: dict[tuple[Optimizer, int], list[Grid]] = {}
    for grid in results.grids():
        chains.setdefault((grid.axes.method, grid.axes.batch_size), []).append(grid)
    return [_series(results, sorted(chain, key=lambda grid: grid.num_steps)) for chain in chains.values()]


def steps_to_target(results: Results, target: float) -> list[StepsToTarget]:
    """Return how many updates it takes to meet a target, at every batch size and optimiser of a sweep over budgets.

    Args:
        results: of a sweep with several budgets, or with `Budget.until`.
        target: of what is tuned.
    """
    if not is_number(target) or not math.isfinite(target):
        raise UserError(f"target={target!r} is not a number; give e.g. 0.95 for an accuracy")
    if len(results.plan.budgets) < 2:
        raise UserError("the sweep has one budget; updates to a target need several: use Budget.until(first=...)")
    return [target_steps(series, target) for series in budget_series(results)]


def common_target(series: Sequence[BudgetSeries]) -> float | None:
    """Return the best value that every batch size reaches; None where one reaches none."""
    best = [None if s.best is None else s.estimates[s.best] for s in series]
    means = [one.mean for one in best if one is not None]
    if not series or len(means) < len(series):
        return None
    return min(means, key=lambda mean: series[0].direction.sign * mean)


def target_steps(series: BudgetSeries, target: float) -> StepsToTarget:
    """Return how many updates a target takes at one batch size."""
    sign = series.direction.sign
    points = [(n, e.mean) for n, e in zip(series.num_steps, series.estimates, strict=True) if e is not None]
    met = next((k for k, (_, mean) in enumerate(points) if sign * (mean - target) >= 0), None)
    before = points[-1] if met is None and points else points[met - 1] if met else None
    between = None
    if met is not None and before is not None:
        (low, worse), (high, better) = before, points[met]
        part = (target - worse) / (better - worse)
        between = low * (high / low) ** part
    return StepsToTarget(
        batch_size=series.batch_size,
        method=series.method,
        target=target,
        missed=None if before is None else before[0],
        met=None if met is None else points[met][0],
        num_steps=between,
    )


def _label(method: Optimizer) -> str:
    momentum = heavy_ball_momentum(method)
    return method.label if momentum is None else f"m = {momentum:g}"


def _series(results: Results, grids: Sequence[Grid]) -> BudgetSeries:
    plan = results.plan
    estimates = tuple(grid.at_optimum(plan.objective) for grid in grids)
    is_done = all(grid.is_complete for grid in grids) and results.is_settled(grids[-1].axes)
    return BudgetSeries(
        batch_size=grids[0].axes.batch_size,
        method=grids[0].axes.method,
        direction=plan.direction,
        budgets=tuple(grid.axes.budget for grid in grids),
        num_steps=tuple(grid.num_steps for grid in grids),
        estimates=estimates,
        reason=stop_reason(plan.until, estimates, plan.direction) if plan.until is not None and is_done else None,
    )
