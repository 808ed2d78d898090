"""Claims about single learning rates: plain SGD beside momentum, and the metric along training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.series import TunedGrid
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import widened
from isotherm.analysis.verdicts.margins import TOLERATED_RISE, metric_margin
from isotherm.analysis.verdicts.obstacles import Obstacle
from isotherm.analysis.verdicts.remedies import LEAST_SEEDS, Remedy, finish, first_seeds, wider_grids
from isotherm.core.budget import BudgetUnit
from isotherm.core.records import RunResult
from isotherm.studies.paper.claims.common import (
    Test,
    beyond,
    interval_words,
    plan_named,
    series_named,
    t_draws,
    unfinished,
    within,
)
from isotherm.studies.paper.settings import EQUAL_EPOCHS, EQUAL_STEPS
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Cell, Grid

SMALL, LARGE = 4.0, 4.0  # times below and above the optimum of plain SGD


def same_at_small_rates(which: int, *, quantity: str = "test_metric") -> Test:
    """Claim that SGD and momentum agree at a batch size where the learning rate is far below the optimum."""

    def test(text: str, analysis: Analysis) -> Claim:
        found = _grids(analysis, which)
        plan = plan_named(analysis, EQUAL_EPOCHS, 0.0)
        if found is None:
            return unfinished(text, plan)
        cells = _common(*found, lambda rate, best: rate * SMALL <= best)
        usable = [(plain, heavy) for plain, heavy in cells if plain.is_usable and heavy.is_usable]
        if not usable:
            words = f"no learning rate tried lies {SMALL:g} times below the optimum of SGD"
            return Claim.blocked(text, plan, Obstacle(words=words, remedy=wider_grids(plan)))
        plain, heavy = usable[-1]
        gains = _gains(plain, heavy, quantity)
        if len(gains) < LEAST_SEEDS:
            return Claim.blocked(text, plan, Obstacle(words="too few seeds", remedy=first_seeds(plan)))
        draws = _sign(plan, quantity) * t_draws(gains)
        margin = _margin(plan, quantity, [_mean(plain, quantity), _mean(heavy, quantity)])
        scale = _scale(plan, quantity)
        return Claim(
            text=text,
            evidence=(
                f"at B = {found[0].axes.batch_size}, ε_eff = {plain.effective_learning_rate:g} momentum gains "
                f"{interval_words(scale * draws, sign=True)}; margin {scale * margin:.2g}"
            ),
            plan=plan,
            holds=within(draws, margin),
            fails=beyond(draws, margin),
        )

    return test


def worse_at_large_rates(which: int, *, quantity: str = "test_metric") -> Test:
    """Claim that SGD is worse than momentum at a learning rate far above its optimum, or does not train there."""

    def test(text: str, analysis: Analysis) -> Claim:
        found = _grids(analysis, which)
        plan = plan_named(analysis, EQUAL_EPOCHS, 0.0)
        if found is None:
            return unfinished(text, plan)
        cells = _common(*found, lambda rate, best: rate >= LARGE * best)
        usable = [(plain, heavy) for plain, heavy in cells if heavy.is_usable and plain.is_complete]
        if not usable:
            words = f"no learning rate {LARGE:g} times above the optimum of SGD was tried at which momentum trains"
            return Claim.blocked(text, plan, Obstacle(words=words, remedy=wider_grids(plan)))
        plain, heavy = usable[0]
        where = f"at B = {found[0].axes.batch_size}, ε_eff = {plain.effective_learning_rate:g}"
        if plain.is_unstable:
            sure = np.ones(1000)
            words = (
                f"{where} {plain.num_diverged} of {len(plain.results)} runs of SGD diverged, none too many of momentum"
            )
            return Claim(
                text=text,
                evidence=words,
                plan=plan,
                holds=(Excess(draws=sure, limit=0.0),),
                fails=((Excess(draws=-sure, limit=0.0),),),
            )
        gains = [_sign(plan, quantity) * gain for gain in _gains(plain, heavy, quantity)]
        if len(gains) < LEAST_SEEDS:
            return Claim.blocked(text, plan, Obstacle(words="too few seeds", remedy=first_seeds(plan)))
        draws, scale = t_draws(gains), _scale(plan, quantity)
        return Claim(
            text=text,
            evidence=f"{where} momentum gains {interval_words(scale * draws, sign=True)}",
            plan=plan,
            holds=(Excess(draws=draws, limit=0.0),),
            fails=((Excess(draws=-draws, limit=0.0),),),
        )

    return test


def optimum_gain(which: int, *, helps: bool, quantity: str = "test_metric") -> Test:
    """Claim that at their optima momentum is as good as SGD at a batch size, or better.

    The optima are those of what was tuned, also for the training objective.
    """

    def test(text: str, analysis: Analysis) -> Claim:
        found = _grids(analysis, which)
        plan = plan_named(analysis, EQUAL_EPOCHS, 0.0)
        if found is None:
            return unfinished(text, plan)
        reported = [tuned.test if quantity == "test_metric" else tuned.train_objective for tuned in found]
        estimates = [estimate for estimate in reported if estimate is not None]
        if len(estimates) < len(reported):
            return unfinished(text, plan)
        if any(len(estimate.values_all) < LEAST_SEEDS for estimate in estimates):
            return Claim.blocked(text, plan, Obstacle(words="too few seeds", remedy=first_seeds(plan)))
        plain, heavy = (t_draws(estimate.values_all) for estimate in estimates)
        sign, scale = _sign(plan, quantity), _scale(plan, quantity)
        gains = widened(sign * (heavy - np.random.default_rng(6).permutation(plain)))
        margin = _margin(plan, quantity, [estimate.mean_all for estimate in estimates])
        return Claim(
            text=text,
            evidence=(
                f"at B = {found[0].axes.batch_size} momentum gains "
                f"{interval_words(scale * gains, sign=True)}; margin {scale * margin:.2g}"
            ),
            plan=plan,
            holds=(Excess(draws=gains, limit=0.0),) if helps else within(gains, margin),
            fails=((Excess(draws=-gains, limit=-margin),),) if helps else beyond(gains, margin),
        )

    return test


def changes_with_batch_size(rate: float, quantity: str, *, rises: bool) -> Test:
    """Claim that a quantity rises, or falls, with the batch size at one learning rate, seed by seed.

    The smallest batch is compared with the largest that has enough runs there.
    """

    def test(text: str, analysis: Analysis) -> Claim:
        plan = plan_named(analysis, EQUAL_STEPS)
        grids = [tuned.grid for sweep in analysis.sweeps if sweep.plan is plan for tuned in sweep.grids]
        cells = {grid.axes.batch_size: cell for grid in grids if (cell := _cell_at(grid, rate)) is not None}
        if not cells:
            words = f"ε_eff = {rate:g}, the published learning rate, is not part of this scale"
            return Claim.blocked(text, plan, Obstacle(words=words, remedy=Remedy(what="run the scale gpu or paper")))
        values = {size: _values(cell.results, quantity) for size, cell in cells.items()}
        known = [size for size, found in values.items() if sum(map(math.isfinite, found)) >= LEAST_SEEDS]
        if len(known) < 2:
            return Claim.blocked(text, plan, Obstacle(words="too few runs have finished", remedy=finish()))
        first, last = min(known), max(known)
        pairs = zip(values[first], values[last], strict=True)
        changes = [b - a for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        if len(changes) < LEAST_SEEDS:
            return Claim.blocked(text, plan, Obstacle(words="too few seeds have finished at both", remedy=finish()))
        draws = t_draws(changes)
        wanted = draws if rises else -draws
        return Claim(
            text=text,
            evidence=(
                f"at ε_eff = {rate:g} it changes by {interval_words(draws, sign=True)} from B = {first} to "
                f"{last}, {len(changes)} seeds, paired"
            ),
            plan=plan,
            holds=(Excess(draws=wanted, limit=0.0),),
            fails=((Excess(draws=-wanted, limit=0.0),),),
        )

    return test


def rises_before_first_drop(name: str, which: int, *, rises: bool) -> Test:
    """Claim that the test error rises, or falls, in the second quarter of training, up to the first drop.

    `which` is the index of the learning rate.
    """

    def test(text: str, analysis: Analysis) -> Claim:
        plan = plan_named(analysis, name)
        sweep = next(sweep for sweep in analysis.sweeps if sweep.plan.name == name)
        cell = sweep.grids[0].grid.cells[which]
        changes = [_change(run) for run in (*cell.results, *cell.confirmed) if run is not None and run.curve]
        changes = [change for change in changes if math.isfinite(change)]
        if len(changes) < LEAST_SEEDS:
            return Claim.blocked(text, plan, Obstacle(words="too few runs recorded the metric", remedy=finish()))
        draws = t_draws(changes)
        wanted = draws if rises else -draws
        return Claim(
            text=text,
            evidence=(
                f"at ε_eff = {cell.effective_learning_rate:g} it changes by "
                f"{interval_words(draws, sign=True)} from a quarter to half of training, {len(changes)} runs"
            ),
            plan=plan,
            holds=(Excess(draws=wanted, limit=0.0),),
            fails=((Excess(draws=-wanted, limit=0.0),),),
        )

    return test


def overfits_at_budgets_over(name: str, num_epochs: float, rate: float) -> Test:
    """Claim that at one learning rate the test error rises before the first drop, at every budget of more epochs."""

    def test(text: str, analysis: Analysis) -> Claim:
        plan = plan_named(analysis, name)
        grids = [
            tuned.grid
            for sweep in analysis.sweeps
            for tuned in sweep.grids
            if sweep.plan is plan
            and tuned.axes.budget.unit is BudgetUnit.EPOCHS
            and tuned.axes.budget.amount > num_epochs
        ]
        found = [(grid.axes.budget, cell) for grid in grids if (cell := _cell_at(grid, rate)) is not None]
        if not found:
            words = f"no budget above {num_epochs:g} epochs at ε_eff = {rate:g} is part of this scale"
            return Claim.blocked(text, plan, Obstacle(words=words, remedy=Remedy(what="run the scale paper")))
        changes = [[_change(run) for run in cell.results if run is not None and run.curve] for _, cell in found]
        changes = [[change for change in of_cell if math.isfinite(change)] for of_cell in changes]
        if any(len(of_cell) < LEAST_SEEDS for of_cell in changes):
            return Claim.blocked(text, plan, Obstacle(words="too few runs recorded the metric", remedy=finish()))
        draws = [-plan.metric_direction.sign * t_draws(of_cell) for of_cell in changes]
        least = int(np.argmin([np.median(one) for one in draws]))
        return Claim(
            text=text,
            evidence=(
                f"at ε_eff = {rate:g} the smallest rise from a quarter to half of training, of {len(found)} budgets, "
                f"is {interval_words(draws[least], sign=True)}, at {found[least][0]}"
            ),
            plan=plan,
            holds=tuple(Excess(draws=one, limit=0.0) for one in draws),
            fails=tuple((Excess(draws=-one, limit=0.0, num_tried=len(draws)),) for one in draws),
        )

    return test


def _grids(analysis: Analysis, which: int) -> tuple[TunedGrid, TunedGrid] | None:
    """Return plain SGD and momentum at the batch size of an index; None where one has no optimum."""
    pair = [series_named(analysis, EQUAL_EPOCHS, momentum) for momentum in (0.0, 0.9)]
    size = sorted(plan_named(analysis, EQUAL_EPOCHS, 0.0).batch_sizes)[which]
    found = [g for series in pair for s in series for g in s.grids if g.axes.batch_size == size]
    return (found[0], found[1]) if len(found) == 2 and all(g.grid.is_complete for g in found) else None


def _common(plain: TunedGrid, heavy: TunedGrid, wanted: Callable[[float, float], bool]) -> list[tuple[Cell, Cell]]:
    """Return the cells at learning rates of both, chosen by rate and optimum of plain SGD."""
    assert plain.rate is not None
    others = {cell.effective_learning_rate: cell for cell in heavy.grid.cells}
    return [
        (cell, others[cell.effective_learning_rate])
        for cell in plain.grid.cells
        if cell.effective_learning_rate in others and wanted(cell.effective_learning_rate, plain.rate)
    ]


def _gains(plain: Cell, heavy: Cell, quantity: str) -> list[float]:
    """Return the differences of a quantity, seed by seed, where both finished."""
    pairs = zip(_values(plain.results, quantity), _values(heavy.results, quantity), strict=True)
    return [b - a for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _cell_at(grid: Grid, rate: float) -> Cell | None:
    return next((cell for cell in grid.cells if math.isclose(cell.effective_learning_rate, rate)), None)


def _values(results: Sequence[RunResult | None], quantity: str = "test_metric") -> list[float]:
    return [math.nan if r is None else r.quantity(quantity) for r in results]


def _mean(cell: Cell, quantity: str) -> float:
    return float(np.nanmean(_values(cell.results, quantity)))


def _change(run: RunResult) -> float:
    """Return the change of the test metric from a quarter to half of training."""
    last = run.curve[-1].step

    def at(part: float) -> float:
        return min(run.curve, key=lambda point: abs(point.step - part * last)).test_metric

    return at(0.5) - at(0.25)


def _scale(plan: SweepPlan, quantity: str) -> float:
    return 100.0 if quantity == "test_metric" and plan.metric == "accuracy" else 1.0


def _sign(plan: SweepPlan, quantity: str) -> int:
    """Return 1 where more of a quantity is better, -1 where less is: of the training objective."""
    return plan.metric_direction.sign if quantity == "test_metric" else -1


def _margin(plan: SweepPlan, quantity: str, means: Sequence[float]) -> float:
    """Return the difference that is too small to matter; of the training objective, a tenth of it."""
    if quantity == "test_metric":
        return metric_margin(plan.metric_bounds, [np.array([[mean] for mean in means])])
    return TOLERATED_RISE * float(np.median(np.abs(means)))
