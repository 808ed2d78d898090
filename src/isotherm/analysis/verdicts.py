"""Verdicts: the paper's claims, each computed from results and able to come out either way or to stay open."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.analysis.family import NUM_DRAWS
from isotherm.analysis.regimes import Regimes
from isotherm.analysis.resampling import ResampledGrid
from isotherm.analysis.series import Pair, Series, TunedGrid
from isotherm.core.budget import BudgetUnit
from isotherm.core.records import Direction
from isotherm.core.statistics import Interval, mean_difference, percentile_limits, standard_deviation, welch_interval

SQUARE_ROOT = 0.5  # the slope of the rival rule, ε ∝ √B
TOLERATED_RISE = 0.1  # relative rise of the training loss that still counts as fitting no worse
HARDLY_ANY = 0.05  # if no more than this fraction of resampled sweeps shows a kink, there is none

WIDER_GRIDS = "widen the grids of learning rates, or allow more extensions"
MORE_SEEDS = "run more seeds"

_Both = tuple[int, TunedGrid, TunedGrid]  # a batch size, with plain SGD and with momentum


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A claim, whether these results support it, and the numbers that say so.

    `holds` is None where the results do not tell; `remedy` then says which runs would.
    """

    claim: str
    holds: bool | None
    evidence: str
    remedy: str = ""

    @property
    def state(self) -> str:
        """The verdict in words."""
        return {True: "holds", False: "does not hold", None: "not determined"}[self.holds]

    def __str__(self) -> str:
        remedy = f"; to decide it, {self.remedy}" if self.remedy else ""
        return f"{self.state}: {self.claim} ({self.evidence}{remedy})"


def judge(series: Sequence[Series], pairs: Sequence[Pair], scaling: Sequence[Verdict | None]) -> list[Verdict]:
    """Return a verdict on every claim of the paper that a study can test; it takes at least two seeds.

    Args:
        series: of the study.
        pairs: of plain SGD and momentum among them.
        scaling: what `judge_scaling` says of each series.
    """
    judged = [s for s in series if _can_be_judged(s)]
    verdicts: list[Verdict] = []
    for s, proportional in zip(series, scaling, strict=True):
        if proportional is not None:
            verdicts += [proportional, _kink(s, _law(s))]
    for pair in pairs:
        if _can_be_judged(pair.plain):
            verdicts += _momentum(pair.plain, pair.heavy, _law(pair.plain))
    for s in judged:
        if s.budget.unit is BudgetUnit.STEPS:
            verdicts += [_large_batches(s), _test_above_train(s)]
    return verdicts


def judge_scaling(s: Series) -> Verdict | None:
    """Return whether the optimal learning rate of a series is proportional to the batch size; None if untestable."""
    return _linear_scaling(s, _law(s)) if _can_be_judged(s) else None


def _can_be_judged(s: Series) -> bool:
    return s.law is not None and len(s.plan.seeds) > 1


def _verdict(*, claim: str, holds: bool | None, evidence: str, remedy: str) -> Verdict:
    """Return a verdict; the remedy is for one that stays open."""
    return Verdict(claim=claim, holds=holds, evidence=evidence, remedy=remedy if holds is None else "")


def _law(s: Series) -> Regimes:
    assert s.law is not None
    return s.law


def _linear_scaling(s: Series, fit: Regimes) -> Verdict:
    """Judge by the slope, and by whether one temperature fits the optima that rise: a slope of 1 can be an accident."""
    slope = fit.slope
    law = f"ε_eff* ∝ B^{slope.estimate:.2f}, 95 % interval [{slope.low:.2f}, {slope.high:.2f}]"
    against, wide = [], []
    if not fit.at_end:
        against = _no_common_temperature(s, fit) if slope.contains(1.0) else ["1 lies outside"]
        wide = ["too wide to tell 1 from 1/2"] if slope.contains(1.0) and slope.contains(SQUARE_ROOT) else []
    holds = None if fit.at_end or (wide and not against) else not against
    return _verdict(
        claim=f"{s.label}: at small batches the optimal effective learning rate is proportional to the batch size",
        holds=holds,
        evidence="; ".join([law, *wide, *against, *fit.end_words]),
        remedy=WIDER_GRIDS if fit.at_end else f"add smaller batch sizes or {MORE_SEEDS}",
    )


def _no_common_temperature(s: Series, fit: Regimes) -> list[str]:
    """Return the temperatures of the optima up to the kink where no single one fits them all; else nothing.

    Each optimum allows a range of temperatures, from its seeds and the spacing of its learning rates; the level is
    corrected for the number of optima.
    """
    rising = [g for g in s.grids if fit.kink is None or g.axes.batch_size <= fit.kink.estimate * 2**0.25]
    generator = np.random.default_rng(0)
    limits = []
    for grid in rising:
        table = ResampledGrid(grid.grid)
        drawn = table.optima(table.seeds(generator, NUM_DRAWS)) + table.jitter(generator, NUM_DRAWS)
        limits.append(percentile_limits(drawn - math.log2(grid.axes.batch_size), level=1 - 0.05 / len(rising)))
    if max(low for low, _ in limits) <= min(high for _, high in limits):
        return []
    found = ", ".join(f"{g.axes.batch_size}: {g.temperature:.2g}" for g in rising)
    return [f"no one temperature fits all batch sizes: ε_eff*/B = {found}"]


def _kink(s: Series, fit: Regimes) -> Verdict:
    rates = ", ".join(f"{g.axes.batch_size}: {g.rate:.4g}" for g in s.grids)
    short = f"the largest batch stays {fit.shortfall.estimate:.1f} [{fit.shortfall.low:.1f}, {fit.shortfall.high:.1f}]"
    evidence = [fit.kink_words, f"{short} octaves below the line"] if fit.shows_kink else [fit.kink_words]
    rises_on = not fit.at_end and len(fit.batch_sizes) > 3 and fit.slope.low > 0 and fit.part_with_kink <= HARDLY_ANY
    holds = True if fit.shows_kink else False if rises_on else None
    return _verdict(
        claim=f"{s.label}: proportionality ends at a kink, above which the optimal learning rate no longer rises",
        holds=holds,
        evidence="; ".join([*evidence, f"optima {rates}"]),
        remedy=""
        if holds is not None
        else WIDER_GRIDS
        if fit.at_end
        else f"add batch sizes at both ends, or {MORE_SEEDS}",
    )


def _momentum(plain: Series, heavy: Series, fit: Regimes) -> list[Verdict]:
    """Compare momentum with plain SGD below and above the kink of plain SGD."""
    if fit.kink is None or not fit.shows_kink:
        return [
            Verdict(
                claim=f"{plain.budget}: momentum does not help below the kink of plain SGD, and helps above it",
                holds=None,
                evidence="plain SGD shows no kink here",
                remedy="find the kink of plain SGD first",
            )
        ]
    by_size = {g.axes.batch_size: g for g in heavy.grids}
    pairs = [(g.axes.batch_size, g, by_size[g.axes.batch_size]) for g in plain.grids if g.axes.batch_size in by_size]
    # Batch sizes resolve the kink to about half a step; one less than that above it is on neither side.
    below = [pair for pair in pairs if pair[0] <= fit.kink.estimate * 2**0.25]
    above = [pair for pair in pairs if pair[0] > fit.kink.estimate * 2**0.75]
    return [
        *([_no_help_below(plain, heavy, below)] if below else []),
        *([_help_above(plain, heavy, above)] if above else []),
    ]


def _no_help_below(plain: Series, heavy: Series, pairs: Sequence[_Both]) -> Verdict:
    gain, spread = _gain(plain, heavy, pairs), _run_to_run(plain, heavy, pairs)
    holds = True if gain.high < spread else False if gain.low > 0.0 else None
    return _verdict(
        claim=f"{plain.budget}: below the kink of plain SGD momentum does not help",
        holds=holds,
        evidence=f"{_gain_text(gain, pairs, _unit(plain))}; standard deviation over seeds {spread:.2f}",
        remedy=MORE_SEEDS,
    )


def _help_above(plain: Series, heavy: Series, pairs: Sequence[_Both]) -> Verdict:
    gain, spread = _gain(plain, heavy, pairs), _run_to_run(plain, heavy, pairs)
    holds = True if gain.low > 0.0 else False if gain.high < spread else None
    return _verdict(
        claim=f"{plain.budget}: above the kink of plain SGD momentum helps",
        holds=holds,
        evidence=_gain_text(gain, pairs, _unit(plain)),
        remedy=MORE_SEEDS,
    )


def _gain(plain: Series, heavy: Series, pairs: Sequence[_Both]) -> Interval:
    return mean_difference([(_goodness(heavy, h), _goodness(plain, p)) for _, p, h in pairs])


def _run_to_run(plain: Series, heavy: Series, pairs: Sequence[_Both]) -> float:
    """Return the pooled standard deviation of single runs: a smaller gain would go unnoticed."""
    samples = [values for _, p, h in pairs for values in (_goodness(plain, p), _goodness(heavy, h))]
    return math.sqrt(float(np.mean([standard_deviation(values) ** 2 for values in samples])))


def _gain_text(gain: Interval, pairs: Sequence[_Both], unit: str) -> str:
    sizes = ", ".join(str(size) for size, _, _ in pairs)
    text = f"mean gain on the test set {gain.estimate:+.2f} {unit} [{gain.low:+.2f}, {gain.high:+.2f}] over B = {sizes}"
    return text + ("; momentum is worse there" if gain.high < 0 else "")


def _large_batches(s: Series) -> Verdict:
    """Compare the largest batch with the best one; the level is corrected for picking the best."""
    best = max(s.grids, key=lambda g: float(np.mean(_goodness(s, g))))
    last = s.grids[-1]
    claim = f"{s.label}: at equal steps the largest batch generalises worse although it fits no worse"
    sizes = best.axes.batch_size, last.axes.batch_size
    if best is last:
        evidence = f"the largest batch, B = {sizes[1]}, is the best on the test set"
        return Verdict(claim=claim, holds=False, evidence=evidence)
    loss = welch_interval(_goodness(s, best), _goodness(s, last), level=1 - 0.05 / (len(s.grids) - 1))
    fits = _train_losses(best)
    rise = welch_interval(_train_losses(last), fits)
    tolerated = TOLERATED_RISE * float(np.mean(fits))
    holds = False if rise.low > tolerated else True if loss.low > 0.0 and rise.high <= tolerated else None
    return _verdict(
        claim=claim,
        holds=holds,
        evidence=(
            f"from B = {sizes[0]} to {sizes[1]} the test metric loses {loss.estimate:.2f} {_unit(s)} "
            f"[{loss.low:.2f}, {loss.high:.2f}], the training loss changes by {rise.estimate:+.4f} "
            f"[{rise.low:+.4f}, {rise.high:+.4f}] from {np.mean(fits):.4f}"
        ),
        remedy=f"add larger batch sizes or {MORE_SEEDS}",
    )


def _test_above_train(s: Series) -> Verdict:
    """Compare the two optima at every batch size.

    The interval comes from resampled seeds and the spacing of the learning rates, half a step for either optimum.
    """
    way = s.plan.metric_direction
    generator = np.random.default_rng(0)
    ratios, drawn, num_at_end = [], [], 0
    for grid in s.grids:
        tests_best, fits_best = grid.test_optimum, grid.train_optimum
        assert tests_best is not None
        assert fits_best is not None
        num_at_end += tests_best.lies_at_end_of(grid.grid) or fits_best.lies_at_end_of(grid.grid)
        ratios.append(math.log2(tests_best.effective_learning_rate / fits_best.effective_learning_rate))
        test = ResampledGrid(grid.grid, "test_metric", way)
        train = ResampledGrid(grid.grid, "train_objective", Direction.MINIMISE)
        seeds = test.seeds(generator, NUM_DRAWS)
        gap = test.jitter(generator, NUM_DRAWS) - train.jitter(generator, NUM_DRAWS)
        drawn.append(test.optima(seeds) - train.optima(seeds) + gap)
    low, high = percentile_limits(np.mean(drawn, axis=0))
    above, below = sum(r > 0 for r in ratios), sum(r < 0 for r in ratios)
    ends = f"; at {num_at_end} an optimum lies at the end of its grid" if num_at_end else ""
    holds = None if num_at_end else True if low > 0.0 else False if high <= 0.0 else None
    return _verdict(
        claim=f"{s.label}: the learning rate that is best on the test set lies above the one that fits best",
        holds=holds,
        evidence=(
            f"mean log2 ratio {np.mean(ratios):+.2f} [{low:+.2f}, {high:+.2f}]; above at {above}, equal at "
            f"{len(ratios) - above - below}, below at {below} of {len(ratios)} batch sizes{ends}"
        ),
        remedy=""
        if holds is not None
        else WIDER_GRIDS
        if num_at_end
        else f"use a finer grid of learning rates or {MORE_SEEDS}",
    )


def _goodness(s: Series, grid: TunedGrid) -> tuple[float, ...]:
    """Return the test metric of all seeds at the optimum, signed so that larger is better; accuracy in percent."""
    assert grid.test is not None
    scale = s.plan.metric_direction.sign * s.scale
    return tuple(scale * value for value in grid.test.values_all)


def _train_losses(grid: TunedGrid) -> tuple[float, ...]:
    assert grid.train_loss is not None
    return grid.train_loss.values_all


def _unit(s: Series) -> str:
    return "points" if s.is_percent else s.plan.metric
