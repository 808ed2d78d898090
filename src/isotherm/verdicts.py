"""Verdicts: the paper's claims, each computed from results and able to come out the other way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.budget import BudgetUnit
from isotherm.protocol import Grid
from isotherm.records import Direction
from isotherm.regimes import NUM_DRAWS, Regimes, ResampledGrid, fit_regimes, series
from isotherm.results import Results, StudyResults
from isotherm.statistics import Interval, mean_difference, percentile_limits, welch_interval

SQUARE_ROOT = 0.5  # the slope of the rival rule, ε ∝ √B


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A claim, whether these results support it, and the numbers that say so."""

    claim: str
    holds: bool
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Series:
    """Grids over rising batch sizes at one budget and momentum."""

    sweep: str
    grids: tuple[Grid, ...]
    metric: str
    direction: Direction

    @property
    def momentum(self) -> float:
        return self.grids[0].axes.momentum

    @property
    def label(self) -> str:
        return f"{self.sweep}, {'SGD' if self.momentum == 0 else f'momentum {self.momentum:g}'}"

    def values(self, grid: Grid, quantity: str) -> tuple[float, ...]:
        estimate = grid.at_optimum(quantity)
        assert estimate is not None
        scale = 100.0 if quantity.endswith("_metric") and self.metric == "accuracy" else 1.0
        return tuple(scale * value for value in estimate.values_all)

    @property
    def unit(self) -> str:
        return "points" if self.metric == "accuracy" else self.metric


def judge(results: StudyResults) -> list[Verdict]:
    """Return a verdict on every claim of the paper that the study's results can speak to."""
    everything = [s for sweep in results.sweeps for s in _all_series(sweep)]
    fits = {id(s): fit_regimes(s.grids) for s in everything}
    verdicts: list[Verdict] = []
    for s in everything:
        verdicts += [_linear_scaling(s, fits[id(s)]), _kink(s, fits[id(s)])]
    for plain in (s for s in everything if s.momentum == 0):
        partners = [s for s in everything if s.momentum > 0 and s.grids[0].axes.budget == plain.grids[0].axes.budget]
        for heavy in partners:
            verdicts += _momentum(plain, heavy, fits[id(plain)])
    for s in everything:
        if s.grids[0].axes.budget.unit is BudgetUnit.STEPS:
            verdicts += [_large_batches(s), _test_above_train(s)]
    return verdicts


def _all_series(results: Results) -> list[_Series]:
    plan = results.plan
    return [
        _Series(sweep=plan.name, grids=tuple(grids), metric=plan.metric, direction=plan.metric_direction)
        for grids in series(results)
        if len(grids) >= 3
    ]


def _linear_scaling(s: _Series, fit: Regimes) -> Verdict:
    holds = fit.slope.contains(1.0) and not fit.slope.contains(SQUARE_ROOT)
    evidence = f"ε_eff* ∝ B^{fit.slope.estimate:.2f}, 95 % interval [{fit.slope.low:.2f}, {fit.slope.high:.2f}]"
    if not holds:
        evidence += "; too wide to tell 1 from 1/2" if fit.slope.contains(1.0) else "; 1 lies outside"
    return Verdict(
        claim=f"{s.label}: at small batches the optimal effective learning rate is proportional to the batch size",
        holds=holds,
        evidence=evidence,
    )


def _kink(s: _Series, fit: Regimes) -> Verdict:
    rates = ", ".join(f"{g.axes.batch_size}: {_rate(g):.4g}" for g in s.grids)
    claim = f"{s.label}: proportionality ends at a kink, above which the optimal learning rate no longer rises"
    if fit.kink is None:
        evidence = f"no kink seen up to B = {fit.batch_sizes[-1]} (in {fit.part_with_kink:.0%} of resampled sweeps)"
        return Verdict(claim=claim, holds=False, evidence=f"{evidence}; optima {rates}")
    where = f"kink at B ≈ {fit.kink.estimate:.0f} [{fit.kink.low:.0f}, {fit.kink.high:.0f}]"
    return Verdict(claim=claim, holds=True, evidence=f"{where}, plateau ε_eff* ≈ {fit.plateau:.3g}; optima {rates}")


def _momentum(plain: _Series, heavy: _Series, fit: Regimes) -> list[Verdict]:
    """Compare momentum with plain SGD on either side of plain SGD's kink."""
    by_size = {g.axes.batch_size: g for g in heavy.grids}
    pairs = [(g.axes.batch_size, g, by_size[g.axes.batch_size]) for g in plain.grids if g.axes.batch_size in by_size]
    budget = plain.grids[0].axes.budget
    # The grid resolves the kink to about half a step of the batch sizes; sizes nearer than that take no side.
    below = [pair for pair in pairs if pair[0] <= fit.boundary * 2**0.25]
    above = [pair for pair in pairs if pair[0] > fit.boundary * 2**0.75]
    verdicts = []
    if below:
        gain = _gain(plain, heavy, below)
        verdicts.append(
            Verdict(
                claim=f"{budget}: below the kink of plain SGD momentum does not help",
                holds=gain.low <= 0.0,
                evidence=_gain_text(gain, below, plain.unit),
            )
        )
    if above:
        gain = _gain(plain, heavy, above)
        verdicts.append(
            Verdict(
                claim=f"{budget}: above the kink of plain SGD momentum helps",
                holds=gain.low > 0.0,
                evidence=_gain_text(gain, above, plain.unit),
            )
        )
    return verdicts


def _gain(plain: _Series, heavy: _Series, pairs: Sequence[tuple[int, Grid, Grid]]) -> Interval:
    sign = plain.direction.sign
    samples = [
        ([sign * v for v in heavy.values(h, "test_metric")], [sign * v for v in plain.values(p, "test_metric")])
        for _, p, h in pairs
    ]
    return mean_difference(samples)


def _gain_text(gain: Interval, pairs: Sequence[tuple[int, Grid, Grid]], unit: str) -> str:
    sizes = ", ".join(str(size) for size, _, _ in pairs)
    text = f"mean gain on the test set {gain.estimate:+.2f} {unit} [{gain.low:+.2f}, {gain.high:+.2f}] over B = {sizes}"
    return text + ("; it is even worse there" if gain.high < 0 else "")


def _large_batches(s: _Series) -> Verdict:
    sign = s.direction.sign
    best = max(s.grids, key=lambda g: sign * float(np.mean(s.values(g, "test_metric"))))
    last = s.grids[-1]
    claim = f"{s.label}: at equal steps the largest batch generalises worse although it fits no worse"
    best_size, last_size = best.axes.batch_size, last.axes.batch_size
    if best is last:
        return Verdict(
            claim=claim, holds=False, evidence=f"the largest batch, B = {last_size}, is the best on the test set"
        )
    loss = welch_interval(
        [sign * v for v in s.values(best, "test_metric")], [sign * v for v in s.values(last, "test_metric")]
    )
    rise = welch_interval(s.values(last, "train_loss"), s.values(best, "train_loss"))
    return Verdict(
        claim=claim,
        holds=loss.low > 0.0 and rise.low <= 0.0,
        evidence=(
            f"from B = {best_size} to {last_size} the test metric loses {loss.estimate:.2f} {s.unit} "
            f"[{loss.low:.2f}, {loss.high:.2f}], the training loss changes by {rise.estimate:+.4f} "
            f"[{rise.low:+.4f}, {rise.high:+.4f}]"
        ),
    )


def _test_above_train(s: _Series) -> Verdict:
    """Compare the two optima over the batch sizes at hand.

    The interval comes from resampling seeds and from the spacing of the learning rates, half a step for either optimum.
    """
    pairs = [(ResampledGrid(g), ResampledGrid(g, "train_loss", Direction.MINIMISE)) for g in s.grids]
    ratios = []
    for grid in s.grids:
        fits_best = grid.train_optimum()
        assert fits_best is not None
        ratios.append(math.log2(_rate(grid) / fits_best.effective_learning_rate))
    generator = np.random.default_rng(0)
    drawn = []
    for test, train in pairs:
        seeds = test.seeds(generator, NUM_DRAWS)
        gap = test.jitter(generator, NUM_DRAWS) - train.jitter(generator, NUM_DRAWS)
        drawn.append(test.optima(seeds) - train.optima(seeds) + gap)
    low, high = percentile_limits(np.mean(drawn, axis=0))
    above, below = sum(r > 0 for r in ratios), sum(r < 0 for r in ratios)
    return Verdict(
        claim=f"{s.label}: the learning rate that is best on the test set lies above the one that fits best",
        holds=low > 0.0,
        evidence=(
            f"mean log2 ratio {np.mean(ratios):+.2f} [{low:+.2f}, {high:+.2f}]; above at {above}, equal at "
            f"{len(ratios) - above - below}, below at {below} of {len(ratios)} batch sizes"
        ),
    )


def _rate(grid: Grid) -> float:
    optimum = grid.optimum()
    assert optimum is not None
    return optimum.effective_learning_rate
