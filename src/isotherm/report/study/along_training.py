"""The test metric along training, every run of a cell: the paper's figure 10d."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes

from isotherm.analysis.analysis import SweepAnalysis
from isotherm.analysis.series import TunedGrid
from isotherm.core.records import CurvePoint, Direction
from isotherm.core.run_table import first_of
from isotherm.report.axes import FAINT, with_math
from isotherm.report.study.pictures import Picture, Row
from isotherm.report.style import series_styles
from isotherm.report.wording import TRAIN_OBJECTIVE, is_percent, metric_label, rate_column, rate_symbol, rate_text
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Cell, Grid

TABLE = "along_training.csv"
MAX_PANELS = 3
MAX_RUNS = 50  # more lines of one cell are a band that hides what they do


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCurve:
    """One run: the test set evaluated along training; fewer points where it diverged."""

    effective_learning_rate: float
    seed: int
    points: tuple[CurvePoint, ...]


def training_curves(plan: SweepPlan, cell: Cell) -> list[TrainingCurve]:
    """Return the curves of the runs of a cell that have one, the confirming seeds last; the first of very many."""
    if len(cell.results) > MAX_RUNS:
        runs = zip(plan.seeds, first_of(cell.results, MAX_RUNS), strict=False)
    else:
        seeds = [*plan.seeds, *plan.confirming_seeds[: len(cell.confirmed)]]
        runs = zip(seeds, (*cell.results, *cell.confirmed), strict=True)
    return [
        TrainingCurve(effective_learning_rate=cell.effective_learning_rate, seed=seed, points=result.curve)
        for seed, result in runs
        if result is not None and result.curve
    ]


def along_training_pictures(sweep: SweepAnalysis) -> list[Picture]:
    """Return a picture for every optimiser of a sweep; none where nothing was evaluated along training."""
    plan = sweep.plan
    found = []
    for method in plan.methods:
        grids = [tuned for tuned in sweep.grids if tuned.axes.method == method and _cells(tuned)]
        shown = [(tuned.grid, _cells(tuned)) for tuned in _spread_out(grids)]
        if any(training_curves(plan, cell) for _, cells in shown for cell in cells):
            found.append(along_training_picture(plan, shown))
    return found


def along_training_picture(plan: SweepPlan, shown: Sequence[tuple[Grid, Sequence[Cell]]]) -> Picture:
    """Return the curves of some cells of some grids of one optimiser, a panel for each grid."""
    method = shown[0][0].axes.method.label
    return Picture(
        name=f"{plan.name}_along_training_{method}",
        title=f"{plan.name.replace('_', ' ')}, {method}: along training",
        caption=(
            f"{plan.task}, {method}. {metric_label(plan.metric)} during training, {_which(plan)}. Solid: the "
            f"learning rate that was chosen; dashed: the one with the lowest {TRAIN_OBJECTIVE}, where it is another. "
            f"{_fall_words(plan)}"
        ).rstrip(),
        num_panels=len(shown),
        draw=partial(_draw, plan, shown),
        table=TABLE,
        rows=tuple(_rows(plan, shown)),
    )


def _which(plan: SweepPlan) -> str:
    num = len(plan.seeds)
    return f"one line for each of the first {MAX_RUNS} of {num:,} runs" if num > MAX_RUNS else "one line for every run"


def _fall_words(plan: SweepPlan) -> str:
    """Say what happens at the vertical line, where there is one."""
    if plan.schedule.first_fall(1) is None:
        return ""
    verb = "first drops" if plan.schedule.shape == "paper" else "begins to fall"
    return f"The learning rate {verb} at the vertical line."


def _cells(tuned: TunedGrid) -> list[Cell]:
    """Return the cells to show of a grid: the one that was chosen, and the training optimum where it is another."""
    if tuned.optimum is None:
        return []
    cells = [tuned.grid.cells[tuned.optimum.index]]
    if tuned.train_optimum is not None:
        own = tuned.grid.for_quantity("train_objective", Direction.MINIMISE)
        other = own.cells[tuned.train_optimum.index]
        rates = [(cell.effective_learning_rate, cell.final_learning_rate) for cell in (cells[0], other)]
        cells += [other] if rates[0] != rates[1] else []
    return cells


def _spread_out(grids: Sequence[TunedGrid]) -> list[TunedGrid]:
    """Return the first grid, the last and some between, at most as many as there are panels.

    >>> _spread_out([1, 2, 3, 4, 5])
    [1, 3, 5]
    """
    if len(grids) <= MAX_PANELS:
        return list(grids)
    return [grids[round(k * (len(grids) - 1) / (MAX_PANELS - 1))] for k in range(MAX_PANELS)]


def _draw(plan: SweepPlan, shown: Sequence[tuple[Grid, Sequence[Cell]]], axes: Sequence[Axes]) -> None:
    for panel, (grid, cells) in zip(axes, shown, strict=True):
        _draw_grid(panel, plan, grid, cells)
    axes[0].set_ylabel(metric_label(plan.metric))


def _draw_grid(panel: Axes, plan: SweepPlan, grid: Grid, cells: Sequence[Cell]) -> None:
    scale = 100.0 if is_percent(plan.metric) else 1.0
    if (fall := plan.schedule.first_fall(grid.num_steps)) is not None:
        panel.axvline(fall, color=FAINT, zorder=0)
    styles = zip(cells, series_styles([1.0] * len(cells)), ("-", "--", ":", "-.") * len(cells), strict=False)
    for cell, style, line in styles:
        for index, curve in enumerate(training_curves(plan, cell)):
            label = (
                with_math(f"{rate_symbol(plan)} = {rate_text(cell.effective_learning_rate)}") if index == 0 else None
            )
            steps = [point.step for point in curve.points]
            values = [scale * point.test_metric for point in curve.points]
            panel.plot(steps, values, color=style.colour, linestyle=line, linewidth=0.9, alpha=0.8, label=label)
    panel.set_xlabel(f"update (B = {grid.axes.batch_size:,}, {grid.axes.budget})")
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=7, frameon=False)


def _rows(plan: SweepPlan, shown: Sequence[tuple[Grid, Sequence[Cell]]]) -> list[Row]:
    return [
        {
            "sweep": plan.name,
            "batch_size": grid.axes.batch_size,
            "budget": str(grid.axes.budget),
            "optimizer": grid.axes.method.label,
            "momentum": grid.axes.momentum if plan.has_temperature else None,
            rate_column(plan): cell.effective_learning_rate,
            "final_learning_rate": cell.final_learning_rate,
            "seed": curve.seed,
            "step": point.step,
            "test_loss": point.test_loss,
            "test_metric": point.test_metric,
        }
        for grid, cells in shown
        for cell in cells
        for curve in training_curves(plan, cell)
        for point in curve.points
    ]
