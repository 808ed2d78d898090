"""Budgets that double: what is tuned against the budget, and the updates to a target against the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes

from isotherm.analysis.analysis import SweepAnalysis
from isotherm.analysis.unlimited import BudgetSeries, StepsToTarget, common_target, target_steps
from isotherm.report.axes import INK, power_of_two_axis
from isotherm.report.study.pictures import Picture, Row
from isotherm.report.style import ordered_styles
from isotherm.report.wording import is_percent, metric_label, objective_words, runs_words
from isotherm.sweep.plan import SweepPlan

TABLE = "budgets.csv"


def budget_pictures(sweep: SweepAnalysis) -> list[Picture]:
    """Return a picture for every optimiser of a sweep whose budgets double; none for others."""
    found = []
    for method in sweep.plan.methods:
        series = [one for one in sweep.budgets if one.method == method and one.best is not None]
        if series:
            found.append(_picture(sweep.plan, sorted(series, key=lambda one: one.batch_size)))
    return found


def _picture(plan: SweepPlan, series: Sequence[BudgetSeries]) -> Picture:
    method = series[0].method.label
    target = _target(plan, series)
    steps = [] if target is None else [target_steps(one, target) for one in series]
    return Picture(
        name=f"{plan.name}_budgets_{method}",
        title=f"{plan.name.replace('_', ' ')}, {method}: budgets that double",
        caption=_caption(plan, series, steps),
        num_panels=2 if steps else 1,
        draw=partial(_draw, plan, series, steps),
        table=TABLE,
        rows=tuple(row for one in series for row in _rows(plan, one)),
    )


def _target(plan: SweepPlan, series: Sequence[BudgetSeries]) -> float | None:
    """Return the target of the sweep, or without one the best value that every batch size reaches."""
    return plan.until.target if plan.until is not None and plan.until.target is not None else common_target(series)


def _caption(plan: SweepPlan, series: Sequence[BudgetSeries], steps: Sequence[StepsToTarget]) -> str:
    scale = _scale(plan)
    text = (
        f"{plan.task}. Left: {objective_words(plan.objective, plan.metric)} at the optimal learning rate of every "
        f"budget, mean and standard error of {runs_words(plan)}; {'; '.join(map(str, series))}."
    )
    if not steps:
        return text
    own = plan.until is not None and plan.until.target is not None
    which = "the target" if own else "the best value that every batch size reaches"
    return (
        f"{text} Right: updates to {steps[0].target * scale:.4g}, {which}, with the learning rate tuned for every "
        "budget. Bars span the last budget that misses it and the first that meets it; hollow triangles point beyond a "
        "budget where one of these is missing; the dotted line is updates ∝ 1/B. "
        f"{'; '.join(map(str, steps))}."
    )


def _scale(plan: SweepPlan) -> float:
    return 100.0 if is_percent(plan.metric) and plan.objective.endswith("_metric") else 1.0


def _draw(
    plan: SweepPlan, series: Sequence[BudgetSeries], steps: Sequence[StepsToTarget], axes: Sequence[Axes]
) -> None:
    _draw_budgets(axes[0], plan, series)
    if steps:
        axes[0].axhline(steps[0].target * _scale(plan), color=INK, linewidth=0.8, linestyle=":")
        _draw_steps(axes[1], steps)


def _draw_budgets(panel: Axes, plan: SweepPlan, series: Sequence[BudgetSeries]) -> None:
    scale = _scale(plan)
    for one, style in zip(series, ordered_styles(len(series)), strict=True):
        known = [(b.amount, e) for b, e in zip(one.budgets, one.estimates, strict=True) if e is not None]
        panel.errorbar(
            [amount for amount, _ in known],
            [scale * estimate.mean for _, estimate in known],
            yerr=[scale * estimate.standard_error if estimate.num_kept > 1 else 0.0 for _, estimate in known],
            color=style.colour,
            marker=style.marker,
            markersize=4.5,
            linewidth=1.2,
            capsize=2.0,
            label=f"B = {one.batch_size:,}",
        )
    power_of_two_axis(panel, "x", {float(b.amount) for one in series for b in one.budgets})
    panel.set_xlabel("number of epochs")
    is_metric = plan.objective.endswith("_metric")
    words = objective_words(plan.objective, plan.metric)
    panel.set_ylabel(metric_label(plan.metric, data=plan.tune_on) if is_metric else words)
    panel.legend(fontsize=7, frameon=False)


def _draw_steps(panel: Axes, steps: Sequence[StepsToTarget]) -> None:
    known = [one for one in steps if one.num_steps is not None]
    for one in known:
        assert one.num_steps is not None
        assert one.missed is not None
        assert one.met is not None
        error = [[one.num_steps - one.missed], [one.met - one.num_steps]]
        panel.errorbar(
            [one.batch_size], [one.num_steps], yerr=error, color=INK, marker="o", markersize=4.5, capsize=2.0
        )
    for one in steps:
        end = one.met or one.missed
        if one.num_steps is None and end:
            marker = "v" if one.met else "^"
            panel.plot([one.batch_size], [end], marker=marker, color=INK, markersize=5, markerfacecolor="none")
    if len(known) > 1 and known[0].num_steps is not None:
        sizes = [one.batch_size for one in known]
        panel.plot(sizes, [known[0].num_steps * sizes[0] / size for size in sizes], ":", color=INK, linewidth=0.9)
    power_of_two_axis(panel, "x", {float(one.batch_size) for one in steps})
    power_of_two_axis(panel, "y", None)
    panel.set_xlabel("batch size B")
    panel.set_ylabel("updates to the target")


def _rows(plan: SweepPlan, series: BudgetSeries) -> list[Row]:
    return [
        {
            "sweep": plan.name,
            "batch_size": series.batch_size,
            "optimizer": series.method.label,
            "momentum": series.momentum if plan.has_temperature else None,
            "budget": str(budget),
            "num_steps": num_steps,
            "objective": plan.objective,
            "mean": None if estimate is None else estimate.mean,
            "standard_error": None if estimate is None or estimate.num_kept < 2 else estimate.standard_error,
            "num_runs": None if estimate is None else estimate.num_kept,
            "ends": None if series.reason is None or budget != series.budgets[-1] else str(series.reason),
        }
        for budget, num_steps, estimate in zip(series.budgets, series.num_steps, series.estimates, strict=True)
    ]
