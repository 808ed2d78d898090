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
from isotherm.core.multipliers import multipliers
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
from isotherm.report.style import series_styles
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
        maps = [picture.figure() for sweep in finding.analysis.sweeps for picture in final_rate_pictures(sweep)]
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
    """Draw both optimal learning rates against the budget."""
    figure, axes = _panels(2)
    for panel, which, letter in zip(axes, ("initial", "final"), "ab", strict=True):
        _best_rates(panel, finding, which)
        finish(panel, f"{letter}  {which}")
    return figure


def _best_rates(axes: Axes, finding: Finding, which: str) -> None:
    """Draw the best rates with 95 % intervals, for the test metric and for the training objective."""
    assert finding.analysis is not None
    for quantity, style in zip(("test", "train"), series_styles([0.9, 0.5]), strict=True):
        rates = best_rates(finding.analysis, quantity)
        if rates is None:
            continue
        limits = np.array([np.quantile(2.0 ** getattr(r, which), [0.025, 0.5, 0.975]) for r in rates])
        errors = np.abs(limits[:, [0, 2]] - limits[:, [1]]).T
        look: dict[str, Any] = {"marker": style.marker, "color": style.colour, "capsize": 2, "markersize": 4}
        axes.errorbar([r.budget.amount for r in rates], limits[:, 1], yerr=errors, label=f"best for {quantity}", **look)
    power_of_two_axis(axes, "x", {float(budget.amount) for budget in finding.analysis.plan.sweeps[0].budgets})
    power_of_two_axis(axes, "y", None)
    axes.set_xlabel("number of epochs")
    axes.set_ylabel(with_math(f"{which} ε_eff, 95 % interval"))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


# -- figure 10 d ------------------------------------------------------------------------------------------------------


def _has_curves(sweep: SweepAnalysis) -> bool:
    return any(r is not None and r.curve for c in sweep.grids[0].grid.cells for r in c.results)


def _along_training(sweep: SweepAnalysis) -> Figure:
    """Draw the test metric of every run against the update."""
    grid = sweep.grids[0].grid
    return along_training_picture(sweep.plan, [(grid, grid.cells)]).figure()
