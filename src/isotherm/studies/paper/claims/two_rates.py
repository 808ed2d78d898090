"""Claims about initial and final learning rates that are tuned apart, at several budgets.

The best of all final rates at every initial one make a curve over initial rates, and the other way round. Both are
fitted, and their draws say where the two optima lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.family import fit_family
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import independent, interval_text
from isotherm.analysis.verdicts.margins import SAME_RATE
from isotherm.analysis.verdicts.obstacles import Obstacle, obstacle
from isotherm.analysis.verdicts.remedies import wider_grids
from isotherm.core.budget import Budget
from isotherm.core.records import Direction
from isotherm.core.statistics import Floats
from isotherm.studies.paper.claims.common import HALF_STEP, Test, interval_words, unfinished
from isotherm.sweep.plane import plane_optimum, transposed
from isotherm.sweep.protocol import TRAIN_OBJECTIVE, Grid


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BestRates:
    """Draws of log2 of the best initial and final learning rates at one budget, and of the quantity there."""

    budget: Budget
    initial: Floats
    final: Floats
    loss: Floats


def best_rates(analysis: Analysis, quantity: str) -> list[BestRates] | None:
    """Return the best pair of rates at every budget; None where one has no optimum yet."""
    plan, grids = analysis.plan.sweeps[0], analysis.sweeps[0].grids
    name, way = ("test_metric", plan.metric_direction) if quantity == "test" else TRAIN_OBJECTIVE
    if any(plane_optimum(tuned.grid, name, way) is None for tuned in grids):
        return None
    return [_best(tuned.grid, name, way, sign=-way.sign) for tuned in grids]


def initial_stays(quantity: str = "test", *, upper_half: bool = True) -> Test:
    """Claim that the best initial rate does not change over the upper half of the budgets."""

    def test(text: str, analysis: Analysis, rates: list[BestRates]) -> Claim:
        first = rates[len(rates) // 2 if upper_half else 0]
        falls = first.initial - rates[-1].initial
        return Claim(
            text=text,
            evidence=(
                f"from {first.budget} to {rates[-1].budget} it falls by {interval_text(falls, sign=True)} octaves; "
                f"margin {HALF_STEP:g}"
            ),
            plan=analysis.plan.sweeps[0],
            holds=(Excess(draws=falls, limit=-HALF_STEP), Excess(draws=-falls, limit=-HALF_STEP)),
            fails=(
                (Excess(draws=falls, limit=HALF_STEP, num_tried=2),),
                (Excess(draws=-falls, limit=HALF_STEP, num_tried=2),),
            ),
        )

    return _of_rates(test, quantity)


def falls(which: str, quantity: str) -> Test:
    """Claim that the best initial or final rate falls from the first budget to the last."""

    def test(text: str, analysis: Analysis, rates: list[BestRates]) -> Claim:
        fall = getattr(rates[0], which) - getattr(rates[-1], which)
        return Claim(
            text=text,
            evidence=(
                f"from {rates[0].budget} to {rates[-1].budget} it falls by {interval_text(fall, sign=True)} octaves; "
                f"margin {SAME_RATE:g}"
            ),
            plan=analysis.plan.sweeps[0],
            holds=(Excess(draws=fall, limit=0.0),),
            fails=((Excess(draws=-fall, limit=-SAME_RATE),),),
        )

    return _of_rates(test, quantity)


def test_above_train(which: str, *, sign: int) -> Test:
    """Claim that the best rate on the test set lies above (or below, sign -1) that of training, over all budgets."""

    def test(text: str, analysis: Analysis, rates: list[BestRates]) -> Claim:
        train = best_rates(analysis, "train")
        assert train is not None
        apart = np.mean(
            [
                getattr(a, which) - independent(getattr(b, which), seed=k)
                for k, (a, b) in enumerate(zip(rates, train, strict=True))
            ],
            axis=0,
        )
        return Claim(
            text=text,
            evidence=f"mean log2 of test over training optimum {interval_text(apart, sign=True)}; margin {SAME_RATE:g}",
            plan=analysis.plan.sweeps[0],
            holds=(Excess(draws=sign * apart, limit=0.0),),
            fails=((Excess(draws=-sign * apart, limit=-SAME_RATE),),),
        )

    return _of_rates(test, "test")


def wider_final() -> Test:
    """Claim that the final rate is known less well than the initial one: it matters less."""

    def test(text: str, analysis: Analysis, rates: list[BestRates]) -> Claim:
        ratios = [_spread(r.final) / max(_spread(r.initial), 1e-9) for r in rates]
        num_wider = sum(ratio > 1 for ratio in ratios)
        return Claim(
            text=text,
            evidence=(
                f"the spread of draws of the final rate is {', '.join(f'{ratio:.1f}' for ratio in ratios)} times that "
                f"of the initial one at {', '.join(str(r.budget) for r in rates)}; sign test"
            ),
            plan=analysis.plan.sweeps[0],
            holds=(_sign_test(num_wider, len(ratios)),),
            fails=((_sign_test(len(ratios) - num_wider, len(ratios)),),),
        )

    return _of_rates(test, "test")


def metric_saturates() -> Test:
    """Claim that the last doubling of the budget no longer improves the test metric."""

    def test(text: str, analysis: Analysis, rates: list[BestRates]) -> Claim:
        gain = rates[-2].loss - rates[-1].loss
        scale = 100.0 if analysis.plan.sweeps[0].metric == "accuracy" else 1.0
        margin = 0.005 if scale > 1 else 0.01 * abs(float(np.median(rates[-1].loss)))
        return Claim(
            text=text,
            evidence=(
                f"from {rates[-2].budget} to {rates[-1].budget} it gains {interval_text(scale * gain, sign=True)}; "
                f"margin {scale * margin:.2g}"
            ),
            plan=analysis.plan.sweeps[0],
            holds=(Excess(draws=-gain, limit=-margin),),
            fails=((Excess(draws=gain, limit=margin),),),
        )

    return _of_rates(test, "test")


def training_falls() -> Test:
    """Claim that the training objective falls with the budget."""

    def test(text: str, analysis: Analysis, rates: list[BestRates]) -> Claim:
        fall = [a.loss - b.loss for a, b in itertools.pairwise(rates)]
        least = int(np.argmin([np.median(one) for one in fall]))
        return Claim(
            text=text,
            evidence=(f"the smallest fall is {interval_words(fall[least], sign=True)}, to {rates[least + 1].budget}"),
            plan=analysis.plan.sweeps[0],
            holds=tuple(Excess(draws=one, limit=0.0) for one in fall),
            fails=tuple((Excess(draws=-one, limit=0.0, num_tried=len(fall)),) for one in fall),
        )

    return _of_rates(test, "train")


def _best(grid: Grid, name: str, way: Direction, *, sign: int) -> BestRates:
    initial, final = (
        fit_family([side.for_quantity(name, way)], objective=name, direction=way) for side in (grid, transposed(grid))
    )
    return BestRates(
        budget=grid.axes.budget,
        initial=initial.optima[:, 0],
        final=final.optima[:, 0],
        loss=sign * initial.heights[:, 0],
    )


def _of_rates(test: Callable[[str, Analysis, list[BestRates]], Claim], quantity: str) -> Test:
    def tested(text: str, analysis: Analysis) -> Claim:
        plan = analysis.plan.sweeps[0]
        rates = best_rates(analysis, quantity)
        if rates is None or best_rates(analysis, "train") is None:
            return unfinished(text, plan)
        if (blocked := _obstacle(analysis, quantity)) is not None:
            return Claim.blocked(text, plan, blocked)
        return test(text, analysis, rates)

    return tested


def _obstacle(analysis: Analysis, quantity: str) -> Obstacle | None:
    """Return what stands in the way: missing runs, few seeds, or an optimum at an end of either learning rate."""
    found = obstacle(
        analysis.sweeps[0].series, [lambda g: g.test_optimum if quantity == "test" else g.train_optimum], least_sizes=1
    )
    if found is not None:
        return found
    plan = analysis.plan.sweeps[0]
    name, way = ("test_metric", plan.metric_direction) if quantity == "test" else TRAIN_OBJECTIVE
    for tuned in analysis.sweeps[0].grids:
        side = transposed(tuned.grid)
        best = side.optimum(name, way)
        if best is None or best.lies_at_end_of(side):
            words = f"the best final learning rate lies at the end of its grid at {tuned.axes.budget}"
            return Obstacle(words=words, remedy=wider_grids(plan))
    return None


def _sign_test(num_successes: int, num: int) -> Excess:
    """Return an excess whose probability is that of so many heads or more of a fair coin, at least 1 %."""
    p = max(0.01, float(stats.binom.sf(num_successes - 1, num, 0.5)))
    return Excess(draws=np.where(np.arange(10_000) < p * 10_000, -1.0, 1.0), limit=0.0)


def _spread(draws: Floats) -> float:
    low, high = np.quantile(draws, [0.16, 0.84])
    return float(high - low)
