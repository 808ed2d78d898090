"""Makes the figure records of an analysis.

Sweeps that differ in momentum alone, or in an optimiser other than SGD, share a figure. Where a sweep has one batch
size and several budgets, the budget takes the batch size's place.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from isotherm.analysis.analysis import Analysis, SweepAnalysis
from isotherm.analysis.regimes import JointRegimes
from isotherm.analysis.series import TunedGrid
from isotherm.core.budget import BudgetUnit
from isotherm.core.optimizers import Optimizer
from isotherm.report.study.along_training import along_training_pictures
from isotherm.report.study.budgets import budget_pictures
from isotherm.report.study.figures import (
    BATCH_SIZE_LABEL,
    CellState,
    LearningRateFigure,
    LearningRatePoint,
    LearningRateSeries,
    Line,
    MissingGrid,
    Spread,
    StudyFigures,
    SweepFigure,
    SweepPoint,
    SweepSeries,
)
from isotherm.report.study.final_rates import final_rate_pictures
from isotherm.report.study.pictures import Picture
from isotherm.report.wording import (
    end_sign,
    is_percent,
    kept_words,
    metric_label,
    objective_words,
    runs_words,
)
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.protocol import Cell, Estimate

# The guide line ε_eff ∝ B ends at this many times the largest learning rate shown, so as not to flatten the panel.
GUIDE_HEADROOM = 2.0


def study_figures(analysis: Analysis) -> StudyFigures:
    """Return the figures of a study: one per group of sweeps, and one per grid family."""
    groups = figure_groups(analysis.sweeps)
    return StudyFigures(
        sweeps=tuple(sweep_figure(*group, joint=analysis.joint_regimes) for group in groups),
        learning_rates=tuple(record for sweep in analysis.sweeps for record in learning_rate_figures(sweep)),
        pictures=tuple(picture for sweep in analysis.sweeps for picture in _pictures(sweep)),
    )


def _pictures(sweep: SweepAnalysis) -> list[Picture]:
    return [*budget_pictures(sweep), *final_rate_pictures(sweep), *along_training_pictures(sweep)]


def figure_groups(sweeps: Sequence[SweepAnalysis]) -> list[list[SweepAnalysis]]:
    """Return the sweeps in groups that differ in momentum or optimiser alone, in the study's order."""
    groups: list[list[SweepAnalysis]] = []
    for sweep in sweeps:
        for group in groups:
            methods = {method for member in group for method in member.plan.methods}
            first = group[0].plan
            same_protocol = _but_optimizer(first) == _but_optimizer(sweep.plan)
            same_rates = first.has_temperature == sweep.plan.has_temperature
            if same_protocol and same_rates and methods.isdisjoint(sweep.plan.methods):
                group.append(sweep)
                break
        else:
            groups.append([sweep])
    return groups


def sweep_figure(sweep: SweepAnalysis, *others: SweepAnalysis, joint: Sequence[JointRegimes] = ()) -> SweepFigure:
    """Return the figure of a sweep, or of several that share one.

    Of the comparisons between plain SGD and momentum, those of these sweeps are kept.
    """
    members = (sweep, *others)
    plan = sweep.plan
    lines = [(member, family, _sweep_points(family, member.plan)) for member in members for family in families(member)]
    drawn = [(member, family[0].axes, points) for member, family, points in lines if points]
    everything = [point for _, _, points in drawn for point in points]
    series = tuple(
        SweepSeries(
            label=_series_label(plan, axes),
            momentum=axes.momentum if plan.has_temperature else None,
            points=points,
            guide=None if _is_over_budgets(plan) else _guide(points, everything),
            root_guide=None
            if _is_over_budgets(plan) or plan.has_temperature
            else _guide(points, everything, power=0.5),
            law=None if _is_over_budgets(plan) else member.law(axes.budget, axes.method),
        )
        for member, axes, points in drawn
    )
    laws = {id(s.law) for s in series}
    return SweepFigure(
        name=_common_name([member.plan.name for member in members]),
        setting=_setting(plan, plan.methods if len(members) == 1 else ()),
        has_temperature=plan.has_temperature,
        x_label=_x_label(plan),
        test_label=metric_label(plan.metric),
        tuned_on=objective_words(plan.objective, plan.metric),
        percent=is_percent(plan.metric),
        runs=runs_words(plan),
        series=series,
        joint=tuple(pair for pair in joint if {id(pair.plain), id(pair.heavy)} <= laws),
        missing=tuple(
            MissingGrid(sweep=member.plan.name, axes=tuned.axes, reason=tuned.edge)
            for member, family, _ in lines
            for tuned in family
            if _sweep_point(tuned, member.plan) is None
        ),
    )


def learning_rate_figures(sweep: SweepAnalysis) -> list[LearningRateFigure]:
    """Return the learning-rate figures of a sweep: one per optimiser, and per budget unless that is the axis."""
    plan = sweep.plan
    return [
        LearningRateFigure(
            name=plan.name,
            family=_series_label(plan, family[0].axes),
            setting=_family_setting(plan, family[0].axes),
            test_label=metric_label(plan.metric),
            tuned_on=objective_words(plan.objective, plan.metric),
            percent=is_percent(plan.metric),
            runs=kept_words(plan),
            num_seeds=len(plan.seeds),
            has_temperature=plan.has_temperature,
            series=tuple(_learning_rate_series(tuned, plan) for tuned in family),
        )
        for family in families(sweep)
    ]


def families(sweep: SweepAnalysis) -> list[list[TunedGrid]]:
    """Return the grids by line of a figure: one per optimiser, and per budget unless that is the axis."""
    found: dict[tuple[object, ...], list[TunedGrid]] = {}
    over_budgets = _is_over_budgets(sweep.plan)
    for tuned in sweep.grids:
        family = (tuned.axes.method,) if over_budgets else (tuned.axes.budget, tuned.axes.method)
        found.setdefault(family, []).append(tuned)
    return [sorted(family, key=lambda tuned: _x(tuned, sweep.plan)) for family in found.values()]


def _sweep_points(family: Sequence[TunedGrid], plan: SweepPlan) -> tuple[SweepPoint, ...]:
    return tuple(point for tuned in family if (point := _sweep_point(tuned, plan)) is not None)


def _sweep_point(tuned: TunedGrid, plan: SweepPlan) -> SweepPoint | None:
    best, train_best, test, train_loss = tuned.optimum, tuned.train_optimum, tuned.test, tuned.train_loss
    plain_best = tuned.train_loss_optimum
    if best is None or train_best is None or plain_best is None or test is None or train_loss is None:
        return None
    return SweepPoint(
        x=_x(tuned, plan),
        axes=tuned.axes,
        num_steps=tuned.grid.num_steps,
        test=_spread(test, scale=_scale(plan)),
        train_loss=_spread(train_loss),
        effective_learning_rate=best.effective_learning_rate,
        interval=best.interval,
        edge=best.edge,
        train_optimal_effective_learning_rate=train_best.effective_learning_rate,
        train_end_sign=end_sign(train_best, tuned.grid),
        train_loss_optimal_effective_learning_rate=plain_best.effective_learning_rate,
    )


def _learning_rate_series(tuned: TunedGrid, plan: SweepPlan) -> LearningRateSeries:
    label = str(tuned.axes.budget) if _is_over_budgets(plan) else f"B = {tuned.axes.batch_size:,}"
    return LearningRateSeries(
        label=label,
        axes=tuned.axes,
        points=tuple(_learning_rate_point(cell, plan) for cell in tuned.grid.cells),
        optimum=tuned.rate,
        interval=None if tuned.optimum is None else tuned.optimum.interval,
        edge=tuned.edge,
    )


def _learning_rate_point(cell: Cell, plan: SweepPlan) -> LearningRatePoint:
    state = CellState.UNSTABLE if cell.is_unstable else CellState.STABLE if cell.is_complete else CellState.INCOMPLETE
    test = train_loss = None
    if state is CellState.STABLE:
        kept = cell.kept(plan.objective, plan.direction)
        test = _spread(cell.estimate("test_metric", kept=kept), scale=_scale(plan))
        train_loss = _spread(cell.estimate("train_loss", kept=kept))
    return LearningRatePoint(
        effective_learning_rate=cell.effective_learning_rate,
        state=state,
        num_diverged=cell.num_diverged,
        test=test,
        train_loss=train_loss,
    )


def _spread(estimate: Estimate, *, scale: float = 1.0) -> Spread:
    return Spread(
        mean=scale * estimate.mean,
        standard_deviation=scale * estimate.standard_deviation,
        mean_all=scale * estimate.mean_all,
        standard_deviation_all=scale * estimate.standard_deviation_all,
    )


def _scale(plan: SweepPlan) -> float:
    return 100.0 if is_percent(plan.metric) else 1.0


def _guide(points: Sequence[SweepPoint], everything: Sequence[SweepPoint], *, power: float = 1.0) -> Line | None:
    """Return the line through the first point on which the learning rate is proportional to this power of x."""
    if len({point.x for point in everything}) < 2:
        return None
    first = points[0]
    top = GUIDE_HEADROOM * max(point.interval[1] for point in everything)
    steepest = (top / first.effective_learning_rate) ** (1 / power)
    factor = min(max(point.x for point in everything) / first.x, steepest)
    end = (first.x * factor, first.effective_learning_rate * factor**power)
    return (first.x, first.effective_learning_rate), end


def _but_optimizer(plan: SweepPlan) -> SweepPlan:
    """Return what two plans must have in common to share a figure.

    Learning rates may differ: SGD and momentum need different ones.
    """
    return dataclasses.replace(
        plan, name="", momenta=(), optimizers=(), learning_rates=(), rates_are_bare=False, max_extensions=0
    )


def _is_over_budgets(plan: SweepPlan) -> bool:
    return len(plan.batch_sizes) == 1 and len(plan.budgets) > 1


def _in_epochs(plan: SweepPlan) -> bool:
    return all(budget.unit is BudgetUnit.EPOCHS for budget in plan.budgets)


def _x_label(plan: SweepPlan) -> str:
    if not _is_over_budgets(plan):
        return BATCH_SIZE_LABEL
    return "number of epochs" if _in_epochs(plan) else "number of steps"


def _x(tuned: TunedGrid, plan: SweepPlan) -> float:
    if not _is_over_budgets(plan):
        return float(tuned.axes.batch_size)
    return float(tuned.axes.budget.amount if _in_epochs(plan) else tuned.grid.num_steps)


def _series_label(plan: SweepPlan, axes: GridAxes) -> str:
    several_budgets = len(plan.budgets) > 1 and not _is_over_budgets(plan)
    return f"{axes.method.label}, {axes.budget}" if several_budgets else axes.method.label


def _setting(plan: SweepPlan, methods: Sequence[Optimizer]) -> str:
    parts = [plan.task]
    if len(plan.budgets) == 1:
        parts.append(str(plan.budgets[0]))
    if len(plan.batch_sizes) == 1:
        parts.append(f"B = {plan.batch_sizes[0]:,}")
    if len(methods) == 1:
        parts.append(methods[0].label)
    return ", ".join(parts)


def _family_setting(plan: SweepPlan, axes: GridAxes) -> str:
    fixed = f"B = {axes.batch_size:,}" if _is_over_budgets(plan) else str(axes.budget)
    return f"{plan.task}, {fixed}, {axes.method.label}"


def _common_name(names: Sequence[str]) -> str:
    """Return the words with which all names begin, or all names where they share none.

    >>> _common_name(["constant_epochs m=0", "constant_epochs m=0.9"]), _common_name(["with", "without"])
    ('constant_epochs', 'with and without')
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    words = [re.findall(r"[^\s_,\-]+", name) for name in distinct]
    num_shared = 0
    while all(len(w) > num_shared for w in words) and len({w[num_shared] for w in words}) == 1:
        num_shared += 1
    if num_shared == 0:
        return " and ".join(distinct)
    ends = [match.end() for match in re.finditer(r"[^\s_,\-]+", distinct[0])]
    return distinct[0][: ends[num_shared - 1]]
