"""Claims about initial and final learning rates that are tuned apart: one sweep per final rate, several budgets.

The draws of every sweep say how high its curve is at its best initial rate. In every draw the best final rate is the
one with the highest curve; it is known to half a step of the final rates, which is added as noise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.series import Series
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import independent, interval_text
from isotherm.analysis.verdicts.margins import SAME_RATE
from isotherm.analysis.verdicts.obstacles import obstacle
from isotherm.core.budget import Budget
from isotherm.core.statistics import Floats
from isotherm.studies.paper.claims.common import HALF_STEP, Test, fit_of, losses_of, unfinished


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BestRates:
    """Draws of log2 of the best initial and final learning rates at one budget, and of the quantity there."""

    budget: Budget
    initial: Floats
    final: Floats
    loss: Floats


def best_rates(analysis: Analysis, quantity: str) -> list[BestRates] | None:
    """Return the best pair of rates at every budget; None where a sweep has no optimum yet."""
    found = []
    for budget in analysis.plan.sweeps[0].budgets:
        series = [s for sweep in analysis.sweeps for s in sweep.series if s.budget == budget]
        if len(series) < len(analysis.plan.sweeps) or any(fit_of(s, quantity) is None for s in series):
            return None
        found.append(_best(budget, series, quantity))
    return found


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
        ratios = np.array([np.log2(_spread(r.final) / max(_spread(r.initial), 1e-9)) for r in rates])
        draws = np.quantile(ratios, np.linspace(0, 1, 1000))
        return Claim(
            text=text,
            evidence=(
                "the spread of draws of the final rate is "
                + ", ".join(f"{2.0**ratio:.1f}" for ratio in ratios)
                + f" times that of the initial one at {', '.join(str(r.budget) for r in rates)}"
            ),
            plan=analysis.plan.sweeps[0],
            holds=(Excess(draws=draws, limit=0.0),),
            fails=((Excess(draws=-draws, limit=0.0),),),
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
            evidence=(
                f"the smallest fall is {interval_text(fall[least], digits=4, sign=True)}, to {rates[least + 1].budget}"
            ),
            plan=analysis.plan.sweeps[0],
            holds=tuple(Excess(draws=one, limit=0.0) for one in fall),
            fails=tuple((Excess(draws=-one, limit=0.0, num_tried=len(fall)),) for one in fall),
        )

    return _of_rates(test, "train")


def _best(budget: Budget, series: list[Series], quantity: str) -> BestRates:
    finals = np.log2([s.plan.schedule.final_effective_learning_rate for s in series])  # type: ignore[arg-type]
    fits = [fit_of(s, quantity) for s in series]
    losses = np.stack([losses_of(s, f, quantity)[:, 0] for s, f in zip(series, fits, strict=True) if f], axis=1)
    initial = np.stack([f.optima[:, 0] for f in fits if f], axis=1)
    best = np.argmin(losses, axis=1)
    rows = np.arange(len(best))
    half = float(np.min(np.diff(np.sort(finals)))) / 2 if len(finals) > 1 else 0.0
    noise = np.random.default_rng(7).uniform(-half, half, len(best))
    return BestRates(budget=budget, initial=initial[rows, best], final=finals[best] + noise, loss=losses[rows, best])


def _of_rates(test: Callable[[str, Analysis, list[BestRates]], Claim], quantity: str) -> Test:
    def tested(text: str, analysis: Analysis) -> Claim:
        plan = analysis.plan.sweeps[0]
        rates = best_rates(analysis, quantity)
        if rates is None or best_rates(analysis, "train") is None:
            return unfinished(text, plan)
        series = [s for sweep in analysis.sweeps for s in sweep.series]
        blocked = obstacle(series, [lambda g: g.test_optimum], least_sizes=1)
        return Claim.blocked(text, plan, blocked) if blocked is not None else test(text, analysis, rates)

    return tested


def _spread(draws: Floats) -> float:
    low, high = np.quantile(draws, [0.16, 0.84])
    return float(high - low)
