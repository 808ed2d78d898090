"""Claims about one batch size at several budgets: how metric, training objective and optima follow the budget."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.family import FamilyFit
from isotherm.analysis.series import Series, TunedGrid
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import independent, interval_text
from isotherm.analysis.verdicts.margins import SAME_RATE
from isotherm.analysis.verdicts.obstacles import Obstacle, obstacle
from isotherm.analysis.verdicts.remedies import finish
from isotherm.core.statistics import Floats
from isotherm.studies.paper.claims.common import (
    HALF_STEP,
    Test,
    beyond,
    fit_of,
    interval_words,
    losses_of,
    margin_of,
    plan_named,
    scale_of,
    series_named,
    unfinished,
    within,
)
from isotherm.sweep.protocol import Optimum


def metric_falls_in_the_end(name: str) -> Test:
    """Claim that the test metric is worse at the largest budget than at the best one."""

    def test(text: str, found: Sequence[Series], columns: Floats) -> Claim:
        losses = columns[:, [-1]] - columns[:, :-1]
        best = int(np.argmax(np.median(losses, axis=0)))
        scale, margin = _shown(found)
        return Claim(
            text=text,
            evidence=(
                f"from {found[best].budget} to {found[-1].budget} it gets worse by "
                f"{interval_words(scale * losses[:, best])}; margin {scale * margin:.2g}"
            ),
            plan=found[0].plan,
            holds=(Excess(draws=losses[:, best], limit=0.0, num_tried=losses.shape[1]),),
            fails=((Excess(draws=-losses.max(axis=1), limit=-margin),),),
        )

    return _heights(test, name, "test")


def metric_saturates(name: str) -> Test:
    """Claim that the last doubling of the budget changes the test metric by no more than the margin."""

    def test(text: str, found: Sequence[Series], columns: Floats) -> Claim:
        change = columns[:, -2] - columns[:, -1]
        scale, margin = _shown(found)
        return Claim(
            text=text,
            evidence=(
                f"from {found[-2].budget} to {found[-1].budget} it improves by "
                f"{interval_words(scale * change, sign=True)}; margin {scale * margin:.2g}"
            ),
            plan=found[0].plan,
            holds=within(change, margin),
            fails=beyond(change, margin),
        )

    return _heights(test, name, "test")


def no_smaller_budget_is_better(name: str) -> Test:
    """Claim that no budget below the largest has a better test metric."""

    def test(text: str, found: Sequence[Series], columns: Floats) -> Claim:
        leads = columns[:, [-1]] - columns[:, :-1]
        best = int(np.argmax(np.median(leads, axis=0)))
        scale, margin = _shown(found)
        return Claim(
            text=text,
            evidence=(
                f"{found[best].budget} is ahead of {found[-1].budget} by "
                f"{interval_words(scale * leads[:, best], sign=True)}; margin {scale * margin:.2g}"
            ),
            plan=found[0].plan,
            holds=tuple(Excess(draws=-leads[:, k], limit=-margin) for k in range(leads.shape[1])),
            fails=((Excess(draws=leads[:, best], limit=0.0, num_tried=leads.shape[1]),),),
        )

    return _heights(test, name, "test")


def training_falls(name: str) -> Test:
    """Claim that the training objective falls with every doubling of the budget."""

    def test(text: str, found: Sequence[Series], columns: Floats) -> Claim:
        falls = columns[:, :-1] - columns[:, 1:]
        least = int(np.argmin(np.median(falls, axis=0)))
        num = falls.shape[1]
        return Claim(
            text=text,
            evidence=(
                f"the smallest fall is {interval_words(falls[:, least], sign=True)}, from "
                f"{found[least].budget} to {found[least + 1].budget}"
            ),
            plan=found[0].plan,
            holds=tuple(Excess(draws=falls[:, k], limit=0.0) for k in range(num)),
            fails=tuple((Excess(draws=-falls[:, k], limit=0.0, num_tried=num),) for k in range(num)),
        )

    return _heights(test, name, "train")


def rate_stays(name: str, quantity: str, *, octaves: float = 0.0) -> Test:
    """Claim that the optimum falls by at most so many octaves from the first budget to the last, and does not rise.

    Half a step of the paper's grid is added to either side.
    """

    def test(text: str, found: Sequence[Series], optima: Floats) -> Claim:
        falls = optima[:, 0] - optima[:, -1]
        low, high = -HALF_STEP, octaves + HALF_STEP
        return Claim(
            text=text,
            evidence=f"{_fall_words(found, falls)}; the claim allows {low:+g} to {high:+g}",
            plan=found[0].plan,
            holds=(Excess(draws=falls, limit=low), Excess(draws=-falls, limit=-high)),
            fails=((Excess(draws=-falls, limit=-low, num_tried=2),), (Excess(draws=falls, limit=high, num_tried=2),)),
        )

    return _optima(test, name, quantity)


def rate_falls(name: str, quantity: str) -> Test:
    """Claim that the optimum falls from the first budget to the last."""

    def test(text: str, found: Sequence[Series], optima: Floats) -> Claim:
        falls = optima[:, 0] - optima[:, -1]
        return Claim(
            text=text,
            evidence=f"{_fall_words(found, falls)}; margin {SAME_RATE:g}",
            plan=found[0].plan,
            holds=(Excess(draws=falls, limit=0.0),),
            fails=((Excess(draws=-falls, limit=-SAME_RATE),),),
        )

    return _optima(test, name, quantity)


def train_rate_falls_faster(name: str) -> Test:
    """Claim that the training optimum falls further than the test optimum."""

    def test(text: str, analysis: Analysis) -> Claim:
        found = _ready(text, analysis, name, "train")
        if isinstance(found, Claim):
            return found
        train, metric = (_columns(found, functools.partial(_optimum_draws, quantity=q)) for q in ("train", "test"))
        more = (train[:, 0] - train[:, -1]) - independent(metric[:, 0] - metric[:, -1], seed=5)
        return Claim(
            text=text,
            evidence=f"it falls by {interval_text(more, sign=True)} octaves more; margin {SAME_RATE:g}",
            plan=found[0].plan,
            holds=(Excess(draws=more, limit=0.0),),
            fails=((Excess(draws=-more, limit=-SAME_RATE),),),
        )

    return test


# -- shared -----------------------------------------------------------------------------------------------------------

_Test = Callable[[str, Sequence[Series], Floats], Claim]


def _heights(test: _Test, name: str, quantity: str) -> Test:
    """Return the test given draws of what grows where training gets worse, one column per budget."""

    def tested(text: str, analysis: Analysis) -> Claim:
        found = _ready(text, analysis, name, quantity)
        if isinstance(found, Claim):
            return found
        return test(text, found, _columns(found, lambda s: losses_of(s, _fit(s, quantity), quantity)[:, 0]))

    return tested


def _optima(test: _Test, name: str, quantity: str) -> Test:
    """Return the test given draws of log2 of the optima, one column per budget."""

    def tested(text: str, analysis: Analysis) -> Claim:
        found = _ready(text, analysis, name, quantity)
        if isinstance(found, Claim):
            return found
        return test(text, found, _columns(found, functools.partial(_optimum_draws, quantity=quantity)))

    return tested


def _ready(text: str, analysis: Analysis, name: str, quantity: str) -> list[Series] | Claim:
    """Return the series of all budgets, or the claim that cannot be tested yet."""
    plan = plan_named(analysis, name)
    found = series_named(analysis, name)
    if len(found) < len(plan.budgets):
        return unfinished(text, plan)

    def optimum(g: TunedGrid) -> Optimum | None:
        return g.test_optimum if quantity == "test" else g.train_optimum

    heights = optimum if quantity == "test" else None
    blocked = obstacle(found, [optimum], heights=heights, least_sizes=1)
    if blocked is not None or any(fit_of(s, quantity) is None for s in found):
        return Claim.blocked(text, plan, blocked or Obstacle(words="runs lack the quantity", remedy=finish()))
    return found


def _fit(s: Series, quantity: str) -> FamilyFit:
    fit = fit_of(s, quantity)
    assert fit is not None
    return fit


def _optimum_draws(s: Series, *, quantity: str) -> Floats:
    return _fit(s, quantity).optima[:, 0]


def _columns(found: Sequence[Series], draws: Callable[[Series], Floats]) -> Floats:
    """Return draws of all budgets, which do not go together."""
    return np.stack([independent(draws(s), seed=k) for k, s in enumerate(found)], axis=1)


def _shown(found: Sequence[Series]) -> tuple[float, float]:
    """Return the factor by which the test metric is shown, and its margin."""
    fits = [_fit(s, "test") for s in found]
    return scale_of(found[0], "test"), margin_of(found[0], fits, "test")


def _fall_words(found: Sequence[Series], falls: Floats) -> str:
    return f"from {found[0].budget} to {found[-1].budget} it falls by {interval_text(falls, sign=True)} octaves"
