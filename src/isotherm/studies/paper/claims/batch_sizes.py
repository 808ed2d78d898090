"""Claims about a metric or an optimum against the batch size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from isotherm.analysis.analysis import Analysis
from isotherm.analysis.series import Series
from isotherm.analysis.verdicts import generalisation, scaling
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import independent, interval_text, limits_of_kink, mean_over_sizes, widened
from isotherm.analysis.verdicts.margins import PROPORTIONAL, SAME_RATE, TOLERATED_RISE
from isotherm.analysis.verdicts.momentum import momentum_claims
from isotherm.analysis.verdicts.obstacles import Obstacle, obstacle
from isotherm.analysis.verdicts.remedies import finish, more_batch_sizes
from isotherm.core.statistics import Floats
from isotherm.studies.paper.claims.common import (
    HALF_STEP,
    Test,
    beyond,
    fit_of,
    interval_words,
    losses_of,
    margin_of,
    pair_named,
    plan_named,
    scale_of,
    series_named,
    unfinished,
    within,
    without_optimum,
)
from isotherm.studies.paper.settings import EQUAL_EPOCHS, EQUAL_STEPS
from isotherm.sweep.plan import SweepPlan

_SeriesTest = Callable[[str, Series], Claim]


def flat_below_kink(momentum: float, *, quantity: str = "test") -> Test:
    """Claim that a quantity does not depend on the batch size below the kink of the optimal learning rate."""

    def test(text: str, s: Series) -> Claim:
        fit = fit_of(s, quantity)
        below = _below(s)
        if fit is None:
            return without_optimum(text, s.plan)
        if len(below) < 2:
            return _no_sizes(text, s, "below", smaller=True)
        losses = losses_of(s, fit, quantity)[:, below]
        away = widened(losses - losses.mean(axis=1, keepdims=True))
        margin, scale = margin_of(s, [fit], quantity), scale_of(s, quantity)
        largest = int(np.argmax(np.abs(np.median(away, axis=0))))
        columns = range(len(below))
        return Claim(
            text=text,
            evidence=(
                f"over B = {_listed(s, below)} the largest distance from the mean is "
                f"{interval_words(-scale * away[:, largest], sign=True)} at B = "
                f"{fit.batch_sizes[below[largest]]}; margin {scale * margin:.2g}"
            ),
            plan=s.plan,
            holds=tuple(one for k in columns for one in within(away[:, k], margin)),
            fails=tuple(one for k in columns for one in beyond(away[:, k], margin, num_tried=len(below))),
        )

    return _of_series(test, EQUAL_EPOCHS, momentum, least_sizes=4)


def worse_above_kink(momentum: float, *, quantity: str = "test") -> Test:
    """Claim that a quantity is worse at the largest batch size than below the kink."""

    def test(text: str, s: Series) -> Claim:
        fit = fit_of(s, quantity)
        below = _below(s)
        if fit is None:
            return without_optimum(text, s.plan)
        if not below or below[-1] == len(fit.batch_sizes) - 1:
            return _no_sizes(text, s, "on either side of", smaller=not below)
        losses = losses_of(s, fit, quantity)
        rises = widened(losses[:, -1] - mean_over_sizes(fit, losses, below))
        margin, scale = margin_of(s, [fit], quantity), scale_of(s, quantity)
        return Claim(
            text=text,
            evidence=(
                f"from the mean over B = {_listed(s, below)} to B = {fit.batch_sizes[-1]} it gets worse by "
                f"{interval_words(scale * rises)}; margin {scale * margin:.2g}"
            ),
            plan=s.plan,
            holds=(Excess(draws=rises, limit=0.0),),
            fails=((Excess(draws=-rises, limit=-margin),),),
        )

    return _of_series(test, EQUAL_EPOCHS, momentum, least_sizes=4)


def proportional(momentum: float, *, name: str = EQUAL_EPOCHS) -> Test:
    """Claim that the optimum is proportional to the batch size, up to the kink: that its temperature is constant."""
    return _of_series(lambda text, s: _named(scaling.proportional(s), text), name, momentum)


def proportional_throughout(momentum: float) -> Test:
    """Claim that the optimum is proportional to the batch size over all batch sizes."""

    def test(text: str, s: Series) -> Claim:
        assert s.fit is not None
        slopes = _end_to_end(s)
        low, high = PROPORTIONAL
        return Claim(
            text=text,
            evidence=f"end to end ε_eff* ∝ B^{interval_text(slopes)}, proportional within [{low:g}, {high:g}]",
            plan=s.plan,
            holds=(Excess(draws=slopes, limit=low), Excess(draws=-slopes, limit=-high)),
            fails=((Excess(draws=-slopes, limit=-low, num_tried=2),), (Excess(draws=slopes, limit=high, num_tried=2),)),
        )

    return _of_series(test, EQUAL_EPOCHS, momentum)


def less_than_proportional(momentum: float) -> Test:
    """Claim that the optimum rises more slowly than the batch size."""

    def test(text: str, s: Series) -> Claim:
        slopes = _end_to_end(s)
        return Claim(
            text=text,
            evidence=f"end to end ε_eff* ∝ B^{interval_text(slopes)}; less than proportional below {PROPORTIONAL[0]:g}",
            plan=s.plan,
            holds=(Excess(draws=-slopes, limit=-PROPORTIONAL[0]),),
            fails=((Excess(draws=slopes, limit=PROPORTIONAL[0]),),),
        )

    return _of_series(test, EQUAL_EPOCHS, momentum)


def square_root(momentum: float, *, name: str = EQUAL_EPOCHS) -> Test:
    """Claim that the optimum rises as the square root of the batch size, up to the kink."""

    def test(text: str, s: Series) -> Claim:
        assert s.fit is not None
        slopes, (low, high) = s.fit.slopes, (PROPORTIONAL[0] / 2, PROPORTIONAL[1] / 2)
        return Claim(
            text=text,
            evidence=f"ε_eff* ∝ B^{interval_text(slopes)}, a square root within [{low:g}, {high:g}]",
            plan=s.plan,
            holds=(Excess(draws=slopes, limit=low), Excess(draws=-slopes, limit=-high)),
            fails=((Excess(draws=-slopes, limit=-low, num_tried=2),), (Excess(draws=slopes, limit=high, num_tried=2),)),
        )

    return _of_series(test, name, momentum)


def levels_off(momentum: float) -> Test:
    """Claim that the rise of the optimum ends at a kink."""
    return _of_series(lambda text, s: _named(scaling.kink(s), text), EQUAL_EPOCHS, momentum, least_sizes=4)


def no_help_below() -> Test:
    """Claim that momentum does not help below the kink of plain SGD."""
    return _of_pair(0)


def help_above() -> Test:
    """Claim that momentum helps above the kink of plain SGD."""
    return _of_pair(1)


def training_gain(side: str) -> Test:
    """Claim that below the kink of plain SGD momentum has the same training objective, or above it a lower one."""

    def test(text: str, analysis: Analysis) -> Claim:
        pair, plan = pair_named(analysis, EQUAL_EPOCHS), plan_named(analysis, EQUAL_EPOCHS, 0.0)
        if pair is None:
            return unfinished(text, plan)
        plain, heavy = pair.plain.train_fit, pair.heavy.train_fit
        blocked = obstacle([pair.plain, pair.heavy], [lambda g: g.optimum, lambda g: g.train_optimum], least_sizes=4)
        if blocked is not None or plain is None or heavy is None:
            return Claim.blocked(text, plan, blocked)
        common = set(plain.batch_sizes) & set(heavy.batch_sizes)
        sizes = sorted(common & set(_sizes_beside_kink(pair.plain, side)))
        if not sizes:
            return _no_sizes(text, pair.plain, side, smaller=side == "below")
        means = [
            mean_over_sizes(fit, fit.heights, [fit.batch_sizes.index(size) for size in sizes]) for fit in (plain, heavy)
        ]
        gains = widened(means[0] - independent(means[1], seed=7))
        margin = TOLERATED_RISE * abs(float(np.median(means[0])))
        helps = side == "above"
        return Claim(
            text=text,
            evidence=(
                f"over B = {', '.join(map(str, sizes))} momentum lowers it by {interval_words(gains, sign=True)}; "
                f"margin {margin:.2g}"
            ),
            plan=plan,
            holds=(Excess(draws=gains, limit=0.0),) if helps else within(gains, margin),
            fails=((Excess(draws=-gains, limit=-margin),),) if helps else beyond(gains, margin),
        )

    return test


def larger_plateau() -> Test:
    """Claim that momentum reaches larger learning rates than plain SGD."""

    def test(text: str, analysis: Analysis) -> Claim:
        pair, plan = pair_named(analysis, EQUAL_EPOCHS), plan_named(analysis, EQUAL_EPOCHS, 0.0)
        if pair is None or pair.plain.fit is None or pair.heavy.fit is None:
            return unfinished(text, plan)
        blocked = obstacle([pair.plain, pair.heavy], [lambda g: g.optimum])
        if blocked is not None:
            return Claim.blocked(text, plan, blocked)
        more = pair.heavy.fit.plateaus - independent(pair.plain.fit.plateaus, seed=3)
        return _larger(text, plan, more, "the largest ε_eff of momentum over that of SGD")

    return test


def smaller_plateau_than(other: str) -> Test:
    """Claim that plain SGD reaches smaller learning rates than in another sweep of the study."""

    def test(text: str, analysis: Analysis) -> Claim:
        own, others = (series_named(analysis, name, 0.0) for name in (EQUAL_EPOCHS, other))
        plan = plan_named(analysis, EQUAL_EPOCHS, 0.0)
        if not own or not others or own[0].law is None or others[0].law is None:
            return unfinished(text, plan)
        blocked = obstacle([own[0], others[0]], [lambda g: g.optimum])
        if blocked is not None or own[0].fit is None or others[0].fit is None:
            return Claim.blocked(text, plan, blocked)
        more = others[0].fit.plateaus - independent(own[0].fit.plateaus, seed=4)
        return _larger(text, plan, more, f"the largest ε_eff {other} over that without")

    return test


# -- at equal steps ---------------------------------------------------------------------------------------------------


def large_batches_worse() -> Test:
    """Claim that the largest batch generalises worse than the best one although it fits no worse."""
    return _of_series(lambda text, s: _named(generalisation.large_batches(s), text), EQUAL_STEPS, 0.9)


def fits_no_worse() -> Test:
    """Claim that the training objective is no higher at the largest batch size than at the best one on the test set."""

    def test(text: str, s: Series) -> Claim:
        if s.test_fit is None or s.train_fit is None:
            return without_optimum(text, s.plan)
        losses = np.median(losses_of(s, s.test_fit, "test"), axis=0)
        best, sizes = int(np.argmin(losses[:-1])), s.test_fit.batch_sizes
        heights = s.train_fit.heights
        rises = (heights[:, -1] - heights[:, best]) / max(abs(float(np.median(heights[:, best]))), 1e-300)
        return Claim(
            text=text,
            evidence=(
                f"from B = {sizes[best]}, the best of the smaller ones, to {sizes[-1]} it changes by "
                f"{interval_text(100 * rises, digits=1, sign=True)} % (up to {100 * TOLERATED_RISE:+.0f} % counts as "
                "no higher)"
            ),
            plan=s.plan,
            holds=(Excess(draws=-rises, limit=-TOLERATED_RISE),),
            fails=((Excess(draws=rises, limit=TOLERATED_RISE),),),
        )

    return _of_series(test, EQUAL_STEPS, 0.9)


def training_rises_in_the_end() -> Test:
    """Claim that the training objective is higher at the largest batch size than at the smaller one that fits best."""

    def test(text: str, s: Series) -> Claim:
        if s.train_fit is None:
            return without_optimum(text, s.plan)
        heights, sizes = s.train_fit.heights, s.train_fit.batch_sizes
        rises = widened(heights[:, [-1]] - heights[:, :-1])
        best = int(np.argmax(np.median(rises, axis=0)))
        return Claim(
            text=text,
            evidence=f"from B = {sizes[best]} to {sizes[-1]} it rises by {interval_words(rises[:, best], sign=True)}",
            plan=s.plan,
            holds=(Excess(draws=rises[:, best], limit=0.0, num_tried=rises.shape[1]),),
            fails=((Excess(draws=-rises.max(axis=1), limit=0.0),),),
        )

    return _of_series(test, EQUAL_STEPS, 0.9)


def higher_test_optimum() -> Test:
    """Claim that the best learning rate on the test set lies above that of training."""
    return _of_series(lambda text, s: _named(generalisation.higher_test_optimum(s), text), EQUAL_STEPS, 0.9)


def best_batch_beats(which: str) -> Test:
    """Claim that the best batch size has a better test metric than the first or the last, whatever the training."""

    def test(text: str, s: Series) -> Claim:
        if s.test_fit is None:
            return without_optimum(text, s.plan)
        end = 0 if which == "first" else -1
        losses = losses_of(s, s.test_fit, "test")
        leads = widened(np.delete(losses[:, [end]] - losses, end, axis=1))
        others = np.delete(np.asarray(s.test_fit.batch_sizes), end)
        best = int(np.argmax(np.median(leads, axis=0)))
        margin = margin_of(s, [s.test_fit], "test")
        return Claim(
            text=text,
            evidence=(
                f"B = {others[best]} is ahead of B = {s.test_fit.batch_sizes[end]} by "
                f"{interval_words(s.scale * leads[:, best])}; margin {s.scale * margin:.2g}"
            ),
            plan=s.plan,
            holds=(Excess(draws=leads[:, best], limit=0.0, num_tried=leads.shape[1]),),
            fails=((Excess(draws=-leads.max(axis=1), limit=-margin),),),
        )

    return _of_series(test, EQUAL_STEPS, 0.9)


def training_improves() -> Test:
    """Claim that the training objective is lower at the largest batch size than at the smallest."""

    def test(text: str, s: Series) -> Claim:
        if s.train_fit is None:
            return without_optimum(text, s.plan)
        falls = s.train_fit.heights[:, 0] - s.train_fit.heights[:, -1]
        scale = max(abs(float(np.median(s.train_fit.heights[:, 0]))), 1e-300)
        sizes = s.train_fit.batch_sizes
        return Claim(
            text=text,
            evidence=f"from B = {sizes[0]} to {sizes[-1]} it falls by {interval_words(100 * falls / scale)} %",
            plan=s.plan,
            holds=(Excess(draws=falls, limit=0.0),),
            fails=((Excess(draws=-falls, limit=0.0),),),
        )

    return _of_series(test, EQUAL_STEPS, 0.9)


def same_rate() -> Test:
    """Claim that the optimum does not depend on the batch size."""

    def test(text: str, s: Series) -> Claim:
        assert s.fit is not None
        away = s.fit.optima - s.fit.optima.mean(axis=1, keepdims=True)
        num = away.shape[1]
        change = s.fit.optima[:, -1] - s.fit.optima[:, 0]
        return Claim(
            text=text,
            evidence=(
                f"from B = {s.fit.batch_sizes[0]} to {s.fit.batch_sizes[-1]} the optimum moves by "
                f"{interval_text(change, sign=True)} octaves; margin {HALF_STEP:g} about the mean"
            ),
            plan=s.plan,
            holds=tuple(one for k in range(num) for one in within(away[:, k], HALF_STEP)),
            fails=tuple(one for k in range(num) for one in beyond(away[:, k], HALF_STEP, num_tried=num)),
        )

    return _of_series(test, EQUAL_STEPS, 0.9)


# -- shared -----------------------------------------------------------------------------------------------------------


def _of_series(test: _SeriesTest, name: str, momentum: float, *, least_sizes: int = 3) -> Test:
    """Return the test of the one series of a name and momentum, once nothing stands in its way."""

    def tested(text: str, analysis: Analysis) -> Claim:
        found = series_named(analysis, name, momentum)
        plan = plan_named(analysis, name, momentum)
        if not found:
            return unfinished(text, plan)
        if lost := sorted(set(plan.batch_sizes) - {g.axes.batch_size for g in found[0].grids}):
            words = f"there is no optimum at B = {', '.join(map(str, lost))}"
            return Claim.blocked(text, plan, Obstacle(words=words, remedy=finish()))
        needed = [lambda g: g.optimum, lambda g: g.test_optimum]
        blocked = obstacle(found[:1], needed, least_sizes=least_sizes)
        if blocked is not None or found[0].fit is None:
            return Claim.blocked(text, plan, blocked)
        return test(text, found[0])

    return tested


def _of_pair(which: int) -> Test:
    def test(text: str, analysis: Analysis) -> Claim:
        pair = pair_named(analysis, EQUAL_EPOCHS)
        if pair is None:
            return unfinished(text, plan_named(analysis, EQUAL_EPOCHS, 0.0))
        return _named(momentum_claims(pair)[which], text)

    return test


def _named(claim: Claim, text: str) -> Claim:
    return dataclasses.replace(claim, text=text)


def _larger(text: str, plan: SweepPlan, more: Floats, words: str) -> Claim:
    return Claim(
        text=text,
        evidence=f"log2 of {words}: {interval_text(more, sign=True)}; margin {SAME_RATE:g}",
        plan=plan,
        holds=(Excess(draws=more, limit=0.0),),
        fails=((Excess(draws=-more, limit=-SAME_RATE),),),
    )


def _end_to_end(s: Series) -> Floats:
    assert s.fit is not None
    x = np.log2(s.fit.batch_sizes)
    return np.asarray((s.fit.optima[:, -1] - s.fit.optima[:, 0]) / (x[-1] - x[0]))


def _below(s: Series) -> list[int]:
    """Return the columns of the batch sizes below the kink, clear of its 95 % interval; none where there is no kink."""
    assert s.fit is not None
    below = _sizes_beside_kink(s, "below")
    return [k for k, size in enumerate(s.fit.batch_sizes) if size in below]


def _sizes_beside_kink(s: Series, side: str) -> list[int]:
    """Return the batch sizes below or above the kink, clear of its 95 % interval; none where there is no kink."""
    assert s.fit is not None
    low, high = limits_of_kink(s.fit)
    if not np.isfinite(high):
        return []
    return [size for size in s.fit.batch_sizes if (size <= low if side == "below" else size >= high)]


def _no_sizes(text: str, s: Series, side: str, *, smaller: bool) -> Claim:
    remedy = more_batch_sizes(s.plan, smaller=smaller, larger=not smaller)
    return Claim.blocked(text, s.plan, Obstacle(words=f"too few batch sizes lie clearly {side} a kink", remedy=remedy))


def _listed(s: Series, columns: list[int]) -> str:
    assert s.fit is not None
    return ", ".join(str(s.fit.batch_sizes[k]) for k in columns)
