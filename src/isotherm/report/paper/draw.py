"""An object's figure in the paper's form."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isotherm.analysis.analysis import SweepAnalysis
from isotherm.core.budget import Budget
from isotherm.core.multipliers import multipliers
from isotherm.core.statistics import Floats
from isotherm.report.axes import (
    DOTS_PER_INCH,
    INK,
    METADATA,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    RC,
    Format,
    finish,
    power_of_two_axis,
    with_math,
)
from isotherm.report.paper.finding import Finding
from isotherm.report.study.along_training import along_training_picture
from isotherm.report.study.draw import figure_of
from isotherm.report.study.figure_data import figure_groups, sweep_figure
from isotherm.report.study.final_rates import final_rate_pictures
from isotherm.report.style import Style, series_styles
from isotherm.report.wording import TRAIN_OBJECTIVE, is_percent, metric_label, momentum_label
from isotherm.studies.paper.claims.two_rates import best_rates
from isotherm.studies.paper.definition import Form
from isotherm.studies.paper.settings import ALONG
from isotherm.sweep.protocol import Cell


def figures(finding: Finding) -> list[tuple[str, Figure]]:
    """Return the figures of an object by name, drawn; those without a point are left out."""
    wanted = finding.wanted
    if wanted.form is Form.SCHEDULE:
        return [(wanted.identifier, _schedule())]
    if finding.analysis is None:
        return []
    if wanted.form is Form.LEARNING_RATES:
        return [(wanted.identifier, _learning_rates(finding.analysis.sweeps))]
    if wanted.form is Form.TWO_RATES:
        maps = [one for sweep in finding.analysis.sweeps for one in _maps(sweep)]
        return _numbered(wanted.identifier, [_two_rates(finding), *maps])
    sweeps = [sweep for sweep in finding.analysis.sweeps if sweep.plan.name != ALONG]
    records = [sweep_figure(*group, joint=finding.analysis.joint_regimes) for group in figure_groups(sweeps)]
    drawn = [figure_of(record) for record in records if record.points]
    along = [sweep for sweep in finding.analysis.sweeps if sweep.plan.name == ALONG]
    drawn += [_along_training(sweep) for sweep in along if _has_curves(sweep)]
    return _numbered(wanted.identifier, drawn)


def _numbered(identifier: str, drawn: Sequence[Figure]) -> list[tuple[str, Figure]]:
    names = [identifier, *(f"{identifier}-{k}" for k in range(2, len(drawn) + 1))]
    return list(zip(names, drawn, strict=False))


def rendered(finding: Finding, form: Format = "png") -> list[tuple[str, bytes]]:
    """Return the figures of an object by name, as the bytes of a file."""
    found = []
    with matplotlib.rc_context(RC):
        for name, figure in figures(finding):
            content = io.BytesIO()
            figure.savefig(content, format=form, dpi=DOTS_PER_INCH, metadata=METADATA[form])
            found.append((name, content.getvalue()))
    return found


def _panels(num_columns: int, num_rows: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(PANEL_WIDTH * num_columns, PANEL_HEIGHT * num_rows), layout="constrained")
    return figure, [figure.add_subplot(num_rows, num_columns, k + 1) for k in range(num_columns * num_rows)]


# -- figure 4 ---------------------------------------------------------------------------------------------------------


def _schedule() -> Figure:
    figure, (axes,) = _panels(1)
    num = 2000
    axes.step(np.arange(num) / num, multipliers(num, gamma=2.0), where="post", color=INK, linewidth=1.4)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("part of training")
    axes.set_ylabel("learning rate / initial learning rate")
    finish(axes, "")
    return figure


# -- figure 5 ---------------------------------------------------------------------------------------------------------


def _learning_rates(sweeps: Sequence[SweepAnalysis]) -> Figure:
    """Draw the test metric, then the training loss, against the learning rate at the smallest and largest batch."""
    every = sorted({size for sweep in sweeps for size in sweep.plan.batch_sizes})
    shown = list(dict.fromkeys((every[0], every[-1])))
    figure, axes = _panels(2 * len(shown))
    plan = sweeps[0].plan
    styles = dict(zip((0.0, 0.9), series_styles([0.0, 0.9]), strict=True))
    for k, (size, quantity) in enumerate((size, q) for q in ("test_metric", "train_objective") for size in shown):
        panel = axes[k]
        for sweep in sweeps:
            for tuned in sweep.grids:
                if tuned.axes.batch_size != size:
                    continue
                cells = [cell for cell in tuned.grid.cells if cell.is_usable]
                points = [_mean(cell, quantity, plan.metric) for cell in cells]
                style = styles[tuned.axes.momentum]
                panel.errorbar(
                    [cell.effective_learning_rate for cell in cells],
                    [mean for mean, _ in points],
                    yerr=[deviation for _, deviation in points],
                    color=style.colour,
                    marker=style.marker,
                    markersize=4,
                    capsize=2,
                    label=momentum_label(tuned.axes.momentum),
                )
        power_of_two_axis(panel, "x", None)
        panel.set_xlabel(with_math("effective learning rate ε_eff"))
        panel.set_ylabel(metric_label(plan.metric) if quantity == "test_metric" else TRAIN_OBJECTIVE)
        finish(panel, f"{'abcd'[k]}  B = {size:,}")
    axes[0].legend(frameon=False)
    return figure


def _mean(cell: Cell, quantity: str, metric: str) -> tuple[float, float]:
    estimate = cell.estimate(quantity, kept=range(len(cell.results)))
    scale = 100.0 if quantity == "test_metric" and is_percent(metric) else 1.0
    return scale * estimate.mean_all, scale * estimate.standard_deviation_all


# -- figure 3 ---------------------------------------------------------------------------------------------------------


def _two_rates(finding: Finding) -> Figure:
    """Draw, against the budget: the best test metric, the least training objective, and the two rates of either."""
    figure, axes = _panels(4)
    assert finding.analysis is not None
    plan = finding.analysis.plan.sweeps[0]
    styles = series_styles([0.9, 0.5])
    for k, quantity in enumerate(("test", "train")):
        rates = best_rates(finding.analysis, quantity)
        if rates is None:
            continue
        heights, rates_panel = axes[k], axes[k + 2]
        sign = -plan.metric_direction.sign if quantity == "test" else 1
        scale = 100.0 if quantity == "test" and is_percent(plan.metric) else 1.0
        _against_budget(heights, [r.budget for r in rates], [scale * sign * r.loss for r in rates], styles[0], "")
        for which, style in zip(("initial", "final"), styles, strict=True):
            found = [2.0 ** getattr(r, which) for r in rates]
            _against_budget(rates_panel, [r.budget for r in rates], found, style, f"{which} learning rate")
        rates_panel.legend(frameon=False)
    labels = (metric_label(plan.metric), TRAIN_OBJECTIVE, *(f"best {name} ε_eff" for name in ("test", "training")))
    for k, (panel, label) in enumerate(zip(axes, labels, strict=True)):
        power_of_two_axis(panel, "x", {float(budget.amount) for budget in plan.budgets})
        if k >= 2:
            power_of_two_axis(panel, "y", None)
        panel.set_xlabel(f"number of {plan.budgets[0].unit}")
        panel.set_ylabel(with_math(f"{label}, 95 % interval"))
        finish(panel, "abcd"[k])
    return figure


def _maps(sweep: SweepAnalysis) -> list[Figure]:
    """Draw the test metric and the training objective over both rates, with the optima, at every budget."""
    drawn = [picture.figure() for picture in final_rate_pictures(sweep)]
    for figure, tuned in zip(drawn, sweep.grids, strict=True):
        figure.suptitle(str(tuned.axes.budget), fontsize="medium")
    return drawn


def _against_budget(axes: Axes, budgets: Sequence[Budget], draws: Sequence[Floats], style: Style, label: str) -> None:
    """Draw medians with 95 % intervals."""
    limits = np.array([np.quantile(one, [0.025, 0.5, 0.975]) for one in draws])
    errors = np.abs(limits[:, [0, 2]] - limits[:, [1]]).T
    look: dict[str, Any] = {"marker": style.marker, "color": style.colour, "capsize": 2, "markersize": 4}
    axes.errorbar([budget.amount for budget in budgets], limits[:, 1], yerr=errors, label=label, **look)


# -- figure 10 d ------------------------------------------------------------------------------------------------------


def _has_curves(sweep: SweepAnalysis) -> bool:
    return any(r is not None and r.curve for c in sweep.grids[0].grid.cells for r in c.results)


def _along_training(sweep: SweepAnalysis) -> Figure:
    """Draw the test metric of every run against the update."""
    grid = sweep.grids[0].grid
    return along_training_picture(sweep.plan, [(grid, grid.cells)]).figure()
