"""Grids at their optima, each found once, and the series that they form over rising batch sizes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.analysis.family import LEAST_FOR_LINE, FamilyCurves, FamilyFit, family_curves, fit_families
from isotherm.analysis.regimes import JointRegimes, Regimes, joint_regimes_of, regimes_of
from isotherm.core.budget import Budget
from isotherm.core.optimizers import Optimizer, has_temperature, heavy_ball_momentum
from isotherm.core.rates import tidy
from isotherm.core.records import Direction
from isotherm.core.statistics import Floats
from isotherm.core.temperature import bare_learning_rate, temperature
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.protocol import Edge, Estimate, Grid, Optimum, SelectionBias
from isotherm.sweep.results import Results


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TunedGrid:
    """A grid with its optima: for the quantity that was tuned, and for others.

    `test`, `train_loss` and `train_objective` are what is reported at the tuned optimum: over the confirming seeds,
    without those over the runs kept there. `selected` and `confirmed` are the test metric over either; `selection_bias`
    is the former less the latter. `train_optimum` is for training loss plus L2 penalty, `train_loss_optimum` for the
    loss alone. All are None where no learning rate is stable.
    """

    grid: Grid
    edge: Edge
    optimum: Optimum | None
    test_optimum: Optimum | None
    train_optimum: Optimum | None
    train_loss_optimum: Optimum | None
    test: Estimate | None
    train_loss: Estimate | None
    train_objective: Estimate | None
    selected: Estimate | None
    confirmed: Estimate | None
    selection_bias: SelectionBias | None

    @property
    def axes(self) -> GridAxes:
        """Batch size, budget and optimiser."""
        return self.grid.axes

    @property
    def is_confirmed(self) -> bool:
        """Whether what is reported comes from confirming seeds."""
        return self.confirmed is not None and bool(self.confirmed.values_all)

    @property
    def rate(self) -> float | None:
        """The optimal learning rate: the effective one of SGD, the optimiser's own of others."""
        return None if self.optimum is None else self.optimum.effective_learning_rate

    @property
    def temperature(self) -> float | None:
        """T = ε_eff / B at the optimum of SGD; None for others."""
        if self.rate is None or not has_temperature(self.axes.method):
            return None
        return temperature(self.rate, self.axes.batch_size)

    def rate_over(self, power: float) -> float | None:
        """Return ε / B^power at the optimum of an optimiser without a temperature; None for SGD."""
        if self.rate is None or has_temperature(self.axes.method):
            return None
        return float(self.rate / self.axes.batch_size**power)

    @property
    def learning_rate(self) -> float | None:
        """ε = ε_eff (1 - m) at the optimum: the optimiser's own."""
        return None if self.rate is None else tidy(bare_learning_rate(self.rate, momentum=self.axes.momentum))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Series:
    """The grids of one sweep, budget and optimiser that have an optimum, over rising batch sizes.

    `fit` is the curve family of the tuned quantity, `test_fit` that of the test metric and `train_fit` that of training
    loss plus L2 penalty; None where runs lack the quantity. `law` is the broken line through the optima of `fit`; None
    below three of them.
    """

    plan: SweepPlan
    grids: tuple[TunedGrid, ...]
    fit: FamilyFit | None
    test_fit: FamilyFit | None
    train_fit: FamilyFit | None
    law: Regimes | None

    @property
    def momentum(self) -> float:
        """The momentum of all runs; 0 of optimisers other than SGD."""
        return self.grids[0].axes.momentum

    @property
    def method(self) -> Optimizer:
        """The optimiser of all runs, as it was given."""
        return self.grids[0].axes.method

    @property
    def budget(self) -> Budget:
        """The budget of all runs."""
        return self.grids[0].axes.budget

    @property
    def label(self) -> str:
        """Sweep and optimiser in words."""
        return f"{self.plan.name}, {self.method.label}"

    @property
    def is_percent(self) -> bool:
        """Whether the metric is shown in percent."""
        return self.plan.metric == "accuracy"

    @property
    def scale(self) -> float:
        """The factor by which the metric is shown."""
        return 100.0 if self.is_percent else 1.0

    @property
    def tuned_on_test(self) -> bool:
        """Whether learning rates are chosen on the test set, as in the paper."""
        return self.plan.objective == "test_metric"

    def test_values(self) -> Floats:
        """Return draws of the test metric at the learning rates that were tuned, shape (num_draws, num_grids).

        Where the test set took no part in choosing them, it is not taken at its own best learning rates.
        """
        assert self.fit is not None
        assert self.test_fit is not None
        if self.tuned_on_test:
            return self.test_fit.heights
        values = self.test_fit.values_at(self.fit.optima)
        return values if self.plan.metric_bounds is None else np.clip(values, *self.plan.metric_bounds)

    def pairs_with(self, other: Series) -> bool:
        """Tell whether this is plain SGD, and the other the same with momentum, both with a law."""
        return (
            heavy_ball_momentum(self.method) == 0
            and (heavy_ball_momentum(other.method) or 0) > 0
            and self.budget == other.budget
            and self.law is not None
            and other.law is not None
            and same_but_momentum(self.plan, other.plan)
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pair:
    """Plain SGD and momentum at one budget, and how their laws compare."""

    plain: Series
    heavy: Series
    joint: JointRegimes


def tuned_grids(results: Results) -> tuple[TunedGrid, ...]:
    """Return every grid of a sweep at its optimum, in the plan's order."""
    return tuple(tuned_grid(grid, results.plan.metric_direction) for grid in results.grids())


def fitted_series(sweeps: Iterable[tuple[SweepPlan, Iterable[TunedGrid]]]) -> list[list[Series]]:
    """Return the series of every sweep, one per budget and optimiser, with their fits."""
    unfitted = [[_Unfitted.of(plan, group) for group in _groups(grids)] for plan, grids in sweeps]
    families = [family for members in unfitted for one in members for family in one.families]
    fits = iter(fit_families(families))
    return [[one.fitted(fits) for one in members] for members in unfitted]


def _groups(grids: Iterable[TunedGrid]) -> list[list[TunedGrid]]:
    """Return the grids that have an optimum, by budget and optimiser, over rising batch sizes."""
    groups: dict[tuple[Budget, Optimizer], list[TunedGrid]] = {}
    for grid in grids:
        if grid.optimum is not None:
            groups.setdefault((grid.axes.budget, grid.axes.method), []).append(grid)
    return [sorted(group, key=lambda g: g.axes.batch_size) for group in groups.values()]


def pairs_of(series: Sequence[Series]) -> list[Pair]:
    """Return the pairs of plain SGD and momentum in a study, and how their laws compare."""
    found = []
    for plain, heavy in itertools.product(series, series):
        if plain.pairs_with(heavy):
            assert plain.law is not None
            assert plain.fit is not None
            assert heavy.law is not None
            assert heavy.fit is not None
            joint = joint_regimes_of((plain.law, plain.fit), (heavy.law, heavy.fit))
            found.append(Pair(plain=plain, heavy=heavy, joint=joint))
    return found


def same_but_momentum(plan: SweepPlan, other: SweepPlan) -> bool:
    """Tell whether two sweeps train the same; batch sizes, budgets and learning rates may differ."""
    plans = [
        dataclasses.replace(
            p,
            name="",
            momenta=(),
            learning_rates=(),
            batch_sizes=(),
            budgets=(),
            max_extensions=0,
            rates_are_bare=False,
        )
        for p in (plan, other)
    ]
    return plans[0] == plans[1]


def tuned_grid(grid: Grid, metric_direction: Direction) -> TunedGrid:
    """Return a grid at its optima."""
    best = grid.optimum()

    cell = None if best is None else grid.cells[best.index]
    kept = () if best is None else best.kept

    def at_best(quantity: str) -> Estimate | None:
        return None if cell is None else cell.reported(quantity, kept=kept)

    tuned_on_test = grid.objective == "test_metric"
    return TunedGrid(
        grid=grid,
        edge=grid.edge(),
        optimum=best,
        test_optimum=best if tuned_on_test else grid.optimum("test_metric", metric_direction),
        train_optimum=grid.train_optimum(),
        train_loss_optimum=grid.train_loss_optimum(),
        test=at_best("test_metric"),
        train_loss=at_best("train_loss"),
        train_objective=at_best("train_objective"),
        selected=None if cell is None else cell.estimate("test_metric", kept=kept),
        confirmed=None if cell is None else cell.confirmation("test_metric"),
        selection_bias=None if cell is None else cell.selection_bias("test_metric", kept=kept),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unfitted:
    """A series with the curves of its quantities; None where some grid has no optimum for one."""

    plan: SweepPlan
    grids: tuple[TunedGrid, ...]
    curves: dict[str, FamilyCurves | None]

    @classmethod
    def of(cls, plan: SweepPlan, tuned: Sequence[TunedGrid]) -> _Unfitted:
        """Return the series with one entry per quantity; the tuned one may be the test metric, or the training loss."""
        directions = {
            "train_objective": Direction.MINIMISE,
            "test_metric": plan.metric_direction,
            plan.objective: plan.direction,
        }
        grids = [grid.grid for grid in tuned]
        return cls(
            plan=plan,
            grids=tuple(tuned),
            curves={quantity: _curves(grids, quantity, way) for quantity, way in directions.items()},
        )

    @property
    def families(self) -> list[FamilyCurves]:
        """What is to be fitted."""
        return [family for family in self.curves.values() if family is not None]

    def fitted(self, fits: Iterator[FamilyFit]) -> Series:
        """Return the series with the next fits, one for each of its families."""
        by_quantity = {quantity: None if family is None else next(fits) for quantity, family in self.curves.items()}
        fit, grids = by_quantity[self.plan.objective], [grid.grid for grid in self.grids]
        has_law = fit is not None and len(grids) >= LEAST_FOR_LINE
        return Series(
            plan=self.plan,
            grids=self.grids,
            fit=fit,
            test_fit=by_quantity["test_metric"],
            train_fit=by_quantity["train_objective"],
            law=regimes_of(fit, grids) if fit is not None and has_law else None,
        )


def _curves(grids: Sequence[Grid], objective: str, direction: Direction) -> FamilyCurves | None:
    """Return the curves of a quantity; None where some grid has no optimum for it."""
    if any(grid.optimum(objective, direction) is None for grid in grids):
        return None
    own = [grid.for_quantity(objective, direction) for grid in grids]
    return family_curves(own, objective=objective, direction=direction)
