"""Grids at their optima, each found once, and the series that they form over rising batch sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from isotherm.analysis.regimes import JointRegimes, Regimes, fit_joint_regimes, fit_regimes
from isotherm.core.budget import Budget
from isotherm.core.rates import tidy
from isotherm.core.records import Direction
from isotherm.core.temperature import bare_learning_rate, temperature
from isotherm.sweep.plan import GridAxes, SweepPlan
from isotherm.sweep.protocol import Edge, Estimate, Grid, Optimum, SelectionBias
from isotherm.sweep.results import Results

# The fewest optima that a broken line is fitted to.
LEAST_FOR_LAW = 3


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
        """Batch size, budget and momentum."""
        return self.grid.axes

    @property
    def is_confirmed(self) -> bool:
        """Whether what is reported comes from confirming seeds."""
        return self.confirmed is not None and bool(self.confirmed.values_all)

    @property
    def rate(self) -> float | None:
        """The optimal effective learning rate."""
        return None if self.optimum is None else self.optimum.effective_learning_rate

    @property
    def temperature(self) -> float | None:
        """T = ε_eff / B at the optimum."""
        return None if self.rate is None else temperature(self.rate, self.axes.batch_size)

    @property
    def learning_rate(self) -> float | None:
        """ε = ε_eff (1 - m) at the optimum: the optimiser's own."""
        return None if self.rate is None else tidy(bare_learning_rate(self.rate, momentum=self.axes.momentum))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Series:
    """The grids of one sweep, budget and momentum that have an optimum, over rising batch sizes.

    `law` is the broken line through the optima; None below three of them.
    """

    plan: SweepPlan
    grids: tuple[TunedGrid, ...]
    law: Regimes | None

    @property
    def momentum(self) -> float:
        """The momentum of all runs."""
        return self.grids[0].axes.momentum

    @property
    def budget(self) -> Budget:
        """The budget of all runs."""
        return self.grids[0].axes.budget

    @property
    def label(self) -> str:
        """Sweep and optimiser in words."""
        return f"{self.plan.name}, {'SGD' if self.momentum == 0 else f'momentum {self.momentum:g}'}"

    @property
    def is_percent(self) -> bool:
        """Whether the metric is shown in percent."""
        return self.plan.metric == "accuracy"

    @property
    def scale(self) -> float:
        """The factor by which the metric is shown."""
        return 100.0 if self.is_percent else 1.0

    def pairs_with(self, other: Series) -> bool:
        """Tell whether this is plain SGD, and the other the same with momentum, both with a law."""
        return (
            self.momentum == 0 < other.momentum
            and self.budget == other.budget
            and min(len(self.grids), len(other.grids)) >= LEAST_FOR_LAW
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
    return tuple(_tuned(grid, results.plan.metric_direction) for grid in results.grids())


def series_without_laws(plan: SweepPlan, grids: Iterable[TunedGrid]) -> list[Series]:
    """Return the series of a sweep, one per budget and momentum."""
    groups: dict[tuple[Budget, float], list[TunedGrid]] = {}
    for grid in grids:
        if grid.optimum is not None:
            groups.setdefault((grid.axes.budget, grid.axes.momentum), []).append(grid)
    return [
        Series(plan=plan, grids=tuple(sorted(group, key=lambda g: g.axes.batch_size)), law=None)
        for group in groups.values()
    ]


def with_laws(found: list[Series]) -> tuple[list[Series], list[Pair]]:
    """Return the series of a whole study with their laws, and the pairs of plain SGD and momentum.

    Plain SGD and its only momentum are fitted together, with one slope. Every other series is fitted alone; offset and
    ratio of plateaus of a pair then still come from lines that share a slope.
    """
    partners = {
        index: [k for k, other in enumerate(found) if one.pairs_with(other) or other.pairs_with(one)]
        for index, one in enumerate(found)
    }
    laws: dict[int, Regimes] = {}
    joints: dict[tuple[int, int], JointRegimes] = {}
    for plain, heavy in _pairs(found):
        joint = fit_joint_regimes(*([g.grid for g in found[k].grids] for k in (plain, heavy)))
        joints[plain, heavy] = joint
        if partners[plain] == [heavy] and partners[heavy] == [plain]:
            laws |= {plain: joint.plain, heavy: joint.heavy}
    for index, one in enumerate(found):
        if index not in laws and len(one.grids) >= LEAST_FOR_LAW:
            laws[index] = fit_regimes([g.grid for g in one.grids])
    series = [dataclasses.replace(one, law=laws.get(index)) for index, one in enumerate(found)]
    return series, [
        Pair(plain=series[a], heavy=series[b], joint=joint.beside(laws[a], laws[b])) for (a, b), joint in joints.items()
    ]


def same_but_momentum(plan: SweepPlan, other: SweepPlan) -> bool:
    """Tell whether two sweeps train the same; batch sizes, budgets and learning rates may differ."""
    plans = [
        dataclasses.replace(p, name="", momenta=(), learning_rates=(), batch_sizes=(), budgets=(), max_extensions=0)
        for p in (plan, other)
    ]
    return plans[0] == plans[1]


def _tuned(grid: Grid, metric_direction: Direction) -> TunedGrid:
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


def _pairs(found: list[Series]) -> list[tuple[int, int]]:
    return [(a, b) for a, one in enumerate(found) for b, other in enumerate(found) if one.pairs_with(other)]
