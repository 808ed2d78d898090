"""The map of a grid whose final learning rates were swept apart: the paper's figure 3 for one budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from isotherm.analysis.analysis import SweepAnalysis
from isotherm.core.records import Direction
from isotherm.report.axes import INK, power_of_two_axis
from isotherm.report.study.pictures import Picture, Row
from isotherm.report.wording import TRAIN_OBJECTIVE, is_percent, kept_words, metric_label, rate_column, rate_text
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.plane import PlaneOptimum, plane_optimum, plane_train_optimum
from isotherm.sweep.protocol import Cell, Grid

TABLE = "final_learning_rates.csv"
INITIAL_LABEL, FINAL_LABEL = "learning rate at the start $\\epsilon_0$", "learning rate at the end $\\epsilon_f$"
# In points of the marker, for all squares of a panel in one direction.
PANEL_POINTS = 150.0


def final_rate_pictures(sweep: SweepAnalysis) -> list[Picture]:
    """Return a map for every grid of a sweep; none where final learning rates are not swept."""
    if not sweep.plan.final_learning_rates:
        return []
    return [_picture(sweep.plan, tuned.grid) for tuned in sweep.grids]


def _picture(plan: SweepPlan, grid: Grid) -> Picture:
    axes = grid.axes
    method = f"m{axes.momentum:g}" if axes.optimizer is None else axes.optimizer.label
    setting = f"B = {axes.batch_size:,}, {axes.budget}, {axes.method.label}"
    return Picture(
        name=f"{plan.name}_final_learning_rates_B{axes.batch_size}_{axes.budget}_{method}",
        title=f"{plan.name.replace('_', ' ')}, {setting}: learning rates at the start and at the end",
        caption=_caption(plan, grid, setting),
        num_panels=2,
        draw=partial(_draw, plan, grid),
        table=TABLE,
        rows=tuple(_row(plan, grid, cell) for cell in grid.all_cells),
    )


def _caption(plan: SweepPlan, grid: Grid, setting: str) -> str:
    optima = [("test", _test_optimum(plan, grid)), ("training", plane_train_optimum(grid))]
    words = [f"the {name} optimum is {optimum_words(best)}" for name, best in optima if best is not None]
    return (
        f"{plan.task}, {setting}. Mean of {kept_words(plan)} for every pair of learning rates; crosses are pairs at "
        f"which too many runs diverged. Circle: best {metric_label(plan.metric)}; diamond: lowest {TRAIN_OBJECTIVE}. "
        "Bars span every learning rate tried within one standard deviation of the best mean at some value of the other "
        "one" + "".join(f"; {sentence}" for sentence in words) + "."
    )


def optimum_words(best: PlaneOptimum) -> str:
    """Return an optimum in words, with both intervals and whether they touch an end of what was tried."""
    parts = [
        f"{name} = {rate_text(rate)} [{rate_text(low)}, {rate_text(high)}]{', ' + str(edge) if optimum.at_edge else ''}"
        for name, rate, (low, high), edge, optimum in (
            ("ε_0", best.effective_learning_rate, best.interval, best.edge, best.initial),
            ("ε_f", best.final_learning_rate, best.final_interval, best.final_edge, best.final),
        )
    ]
    return ", ".join(parts)


def _test_optimum(plan: SweepPlan, grid: Grid) -> PlaneOptimum | None:
    return plane_optimum(grid, "test_metric", plan.metric_direction)


def _mean(cell: Cell, quantity: str, direction: Direction) -> float:
    if not cell.is_usable:
        return math.nan
    return cell.estimate(quantity, kept=cell.kept(quantity, direction)).mean


def _row(plan: SweepPlan, grid: Grid, cell: Cell) -> Row:
    test = cell.estimate("test_metric", kept=cell.kept(plan.objective, plan.direction)) if cell.is_usable else None
    train = _mean(cell, "train_objective", Direction.MINIMISE)
    return {
        "sweep": plan.name,
        "batch_size": grid.axes.batch_size,
        "budget": str(grid.axes.budget),
        "optimizer": grid.axes.method.label,
        "momentum": grid.axes.momentum if plan.has_temperature else None,
        rate_column(plan): cell.effective_learning_rate,
        "final_learning_rate": cell.final_learning_rate,
        "num_seeds": len(cell.results),
        "num_diverged": cell.num_diverged,
        "is_complete": cell.is_complete,
        "test_metric_mean": None if test is None else test.mean,
        "test_metric_standard_deviation": None if test is None else test.standard_deviation,
        "train_objective_mean": train if math.isfinite(train) else None,
    }


def _draw(plan: SweepPlan, grid: Grid, axes: Sequence[Axes]) -> None:
    scale = 100.0 if is_percent(plan.metric) else 1.0
    _draw_map(axes[0], grid, "test_metric", plan.metric_direction, label=metric_label(plan.metric), scale=scale)
    _draw_map(axes[1], grid, "train_objective", Direction.MINIMISE, label=TRAIN_OBJECTIVE, scale=1.0)
    for panel in axes:
        _draw_optimum(panel, _test_optimum(plan, grid), marker="o")
        _draw_optimum(panel, plane_train_optimum(grid), marker="D")


def _draw_map(axes: Axes, grid: Grid, quantity: str, way: Direction, *, label: str, scale: float) -> None:
    cells = [(cell, scale * _mean(cell, quantity, way)) for cell in grid.all_cells]
    shown = [(cell, mean) for cell, mean in cells if math.isfinite(mean)]
    num = max(len({c.effective_learning_rate for c, _ in cells}), len({c.final_learning_rate for c, _ in cells}))
    size = (PANEL_POINTS / num) ** 2
    colours = "viridis" if way is Direction.MAXIMISE else "viridis_r"
    points: dict[str, Any] = {"marker": "s", "s": size, "linewidths": 0, "cmap": colours}
    drawn = axes.scatter(*_places([c for c, _ in shown]), c=[mean for _, mean in shown], **points)
    unstable = [cell for cell, _ in cells if cell.is_unstable]
    axes.scatter(*_places(unstable), marker="x", s=size / 6, color=INK, linewidths=0.8)
    for which, values in zip(("x", "y"), _places(grid.all_cells), strict=True):
        power_of_two_axis(axes, "x" if which == "x" else "y", None)
        (axes.set_xlim if which == "x" else axes.set_ylim)(min(values) / 1.6, max(values) * 1.6)
    axes.set_xlabel(INITIAL_LABEL)
    axes.set_ylabel(FINAL_LABEL)
    if axes.figure is not None and shown:
        axes.figure.colorbar(drawn, ax=axes, shrink=0.85).set_label(label, fontsize=8)


def _draw_optimum(axes: Axes, best: PlaneOptimum | None, *, marker: str) -> None:
    if best is None:
        return
    x, y = best.effective_learning_rate, best.final_learning_rate
    across = [[x - best.interval[0]], [best.interval[1] - x]]
    # The interval belongs to all cells, and the middle of ties along one axis need not be that along the other.
    up = [[max(0.0, y - best.final_interval[0])], [max(0.0, best.final_interval[1] - y)]]
    look: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": INK, "markersize": 6.5, "capsize": 2.0}
    axes.errorbar([x], [y], xerr=across, yerr=up, marker=marker, color=INK, linewidth=1.0, zorder=4, **look)


def _places(cells: Sequence[Cell]) -> tuple[list[float], list[float]]:
    return [cell.effective_learning_rate for cell in cells], [cell.final_learning_rate or 1.0 for cell in cells]
