"""Two regimes read off a sweep: where the optimal learning rate rises with the batch size, and where it stops.

The paper's figure 1c. In the noise dominated regime ε_eff* ∝ B (slope 1 in log2-log2); from the kink on curvature
limits it and it stays level. Momentum leaves the rise as it is and moves the kink to larger batches.

Intervals come from three things: the seeds of every grid, drawn anew; the learning rates, between which an optimum is
known only as well as the parabolas to both sides of it agree (`optimum.py`); and the scatter of the optima about the
line, where it is more than the first two explain. Their coverage is checked by simulation in the tests. Three learning
rates alone do not tell how steep either side is: then that of the plateau is too short where results fall off 20 times
as steeply above the optimum as below it, or five times as steeply below it as above.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.analysis.optimum import Located, locate
from isotherm.core.records import Direction
from isotherm.core.statistics import (
    BrokenLine,
    Floats,
    Interval,
    fit_broken_line,
    fit_broken_lines,
    fit_joint_lines,
    percentile_limits,
)
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Grid
from isotherm.sweep.results import Results, StudyResults

NUM_DRAWS = 2000

# Rising lines of SGD and momentum agree where they are known to lie within so many octaves of each other.
SAME_LINE = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Regimes:
    """The broken line through the optima of one budget and momentum; intervals at 95 %.

    `shortfall` is by how many octaves the optimum at the largest batch stays below the line through the rising part; 0
    where a resampled sweep shows no kink. `kink` is None where the fit has none or most resampled sweeps do not show
    it; its upper limit, and the plateau's, is infinite where more than one in forty do not. Without a kink `plateau` is
    what the line has reached at the largest batch. `at_end` are the batch sizes at which the best learning rate is the
    lowest or highest one tried. `line` is the fit itself, in log2.
    """

    momentum: float
    budget: str
    batch_sizes: tuple[int, ...]
    line: BrokenLine
    slope: Interval
    kink: Interval | None
    plateau: Interval
    shortfall: Interval
    part_with_kink: float
    num_seeds: int
    at_end: tuple[int, ...]

    @property
    def label(self) -> str:
        """The optimiser in words."""
        return "SGD" if self.momentum == 0 else f"momentum {self.momentum:g}"

    @property
    def end_words(self) -> list[str]:
        """Words on optima that are the lowest or highest learning rate tried; none where there are none."""
        if not self.at_end:
            return []
        sizes = ", ".join(map(str, self.at_end))
        return [f"cannot be judged: the optimum is the end of its grid at B = {sizes}"]

    @property
    def doubts(self) -> list[str]:
        """Why the data determine no kink; none where they do."""
        doubts = self.end_words
        if len(self.batch_sizes) < 4:
            doubts.append("three batch sizes are too few")
        elif self.slope.low <= 0:
            doubts.append("the optimum is not seen to rise with the batch size")
        elif self.kink is None or self.shortfall.low <= 0:
            doubts.append(f"{self.part_with_kink:.0%} of resampled sweeps show one")
        return doubts

    @property
    def shows_kink(self) -> bool:
        """Whether the data determine a kink: four points or more, a rise before it, and no rise like it after it."""
        return not self.doubts

    @property
    def slope_words(self) -> str:
        """The law at small batches."""
        return f"ε_eff* ∝ B^{self.slope.estimate:.2f} [{self.slope.low:.2f}, {self.slope.high:.2f}] at small B"

    @property
    def unseen_words(self) -> str:
        """What to say where the data determine no kink."""
        return f"kink not seen below B = {self.batch_sizes[-1]}"

    @property
    def kink_words(self) -> str:
        """Where the kink is and what comes after it, or that it is not seen and why."""
        if self.kink is None or not self.shows_kink:
            return f"{self.unseen_words} ({'; '.join(self.doubts)})"
        kink, plateau = self.kink, self.plateau
        return (
            f"kink at B ≈ {kink.estimate:.0f} [{kink.low:.0f}, {kink.high:.0f}], then ε_eff* ≈ {plateau.estimate:.3g} "
            f"[{plateau.low:.3g}, {plateau.high:.3g}]"
        )

    @property
    def seed_words(self) -> list[str]:
        """What to keep in mind of a sweep without replicates; nothing elsewhere."""
        return ["from one seed: the intervals leave out the luck of seeds"] if self.num_seeds == 1 else []

    def __str__(self) -> str:
        return "; ".join([self.slope_words, self.kink_words, *self.seed_words])


@dataclass(frozen=True, kw_only=True, slots=True)
class JointRegimes:
    """Plain SGD and momentum at one budget: broken lines that share a slope, each with its kink; intervals at 95 %.

    `offset` is by how many octaves momentum's rising line lies above that of plain SGD; the paper finds none.
    `plateau_ratio` is momentum's plateau over that of plain SGD; a limit is 0 or infinite where a plateau is not seen.
    """

    plain: Regimes
    heavy: Regimes
    offset: Interval
    plateau_ratio: Interval

    @property
    def slope(self) -> Interval:
        """The slope of both rising lines."""
        return self.plain.slope

    @property
    def same_line(self) -> bool | None:
        """Whether the two agree below their kinks, to a factor of two either way; None where the data do not say."""
        if not self.offset.contains(0.0):
            return False
        return True if self.offset.low > -SAME_LINE and self.offset.high < SAME_LINE else None

    @property
    def largest_plateau_ratio(self) -> float:
        """(1 + m) / (1 - m): by how much momentum raises the effective learning rate that curvature allows."""
        momentum = self.heavy.momentum
        return (1 + momentum) / (1 - momentum)

    @property
    def words(self) -> list[str]:
        """All findings, one after another."""
        kinks = [f"{found.label}: {found.kink_words}" for found in (self.plain, self.heavy)]
        slope = f"SGD and {self.heavy.label}: {self.plain.slope_words}"
        return [slope, self.line_words, *kinks, self.ratio_words, *self.plain.seed_words]

    @property
    def line_words(self) -> str:
        """Whether the rising lines agree."""
        offset = self.offset
        where = f"{offset.estimate:+.2f} [{offset.low:+.2f}, {offset.high:+.2f}] octaves from that of SGD"
        judged = {True: "they agree to a factor of two", False: "they differ", None: "too wide to tell if they agree"}
        return f"below the kink the line of {self.heavy.label} lies {where}: {judged[self.same_line]}"

    @property
    def ratio_words(self) -> str:
        """The ratio of the plateaus, or what is known of it."""
        ratio, most = self.plateau_ratio, f"curvature allows up to {self.largest_plateau_ratio:.3g}"
        if self.plain.shows_kink and self.heavy.shows_kink:
            return (
                f"plateau of {self.heavy.label} over that of SGD: {ratio.estimate:.3g} [{ratio.low:.3g}, "
                f"{ratio.high:.3g}]; {most}"
            )
        if self.plain.shows_kink:
            return f"plateau of {self.heavy.label} over that of SGD: {ratio.low:.3g} or more; {most}"
        return f"plateau of {self.heavy.label} over that of SGD: not determined; {most}"

    def __str__(self) -> str:
        return "; ".join(self.words)


def series(results: Results) -> list[list[Grid]]:
    """Return the grids that have an optimum, one list over rising batch sizes per budget and momentum."""
    groups: dict[tuple[str, float], list[Grid]] = {}
    for grid in results.optima():
        groups.setdefault((str(grid.axes.budget), grid.axes.momentum), []).append(grid)
    return [sorted(group, key=lambda g: g.axes.batch_size) for group in groups.values()]


def regimes(results: Results) -> list[Regimes]:
    """Return the two regimes of every budget and momentum of a sweep that has three batch sizes or more."""
    return [fit_regimes(grids) for grids in series(results) if len(grids) >= 3]


def joint_regimes(results: Results | StudyResults) -> list[JointRegimes]:
    """Return plain SGD with every momentum at the same budget, of a sweep or of sweeps that differ in momentum alone.

    Series of fewer than three batch sizes are left out.
    """
    sweeps = results.sweeps if isinstance(results, StudyResults) else [results]
    everything = [(sweep.plan, grids) for sweep in sweeps for grids in series(sweep) if len(grids) >= 3]
    return [
        fit_joint_regimes(plain, heavy)
        for plan, plain in everything
        for other, heavy in everything
        if plain[0].axes.momentum == 0 < heavy[0].axes.momentum
        and plain[0].axes.budget == heavy[0].axes.budget
        and same_but_momentum(plan, other)
    ]


def same_but_momentum(plan: SweepPlan, other: SweepPlan) -> bool:
    """Tell whether two sweeps train the same; which batch sizes, budgets and learning rates they try is their own."""
    plans = [
        dataclasses.replace(p, name="", momenta=(), learning_rates=(), batch_sizes=(), budgets=(), max_extensions=0)
        for p in (plan, other)
    ]
    return plans[0] == plans[1]


def fit_regimes(grids: Sequence[Grid], *, num_draws: int = NUM_DRAWS) -> Regimes:
    """Return the broken line through the optima of grids over rising batch sizes, with intervals."""
    sample = _Sample(grids, np.random.default_rng(0), num_draws)
    return _regimes(sample, *fit_broken_lines(sample.x, sample.lines))


def fit_joint_regimes(plain: Sequence[Grid], heavy: Sequence[Grid], *, num_draws: int = NUM_DRAWS) -> JointRegimes:
    """Return the broken lines with one slope through the optima of plain SGD and of momentum, with intervals."""
    generator = np.random.default_rng(0)
    first, second = _Sample(plain, generator, num_draws), _Sample(heavy, generator, num_draws)
    joint = fit_joint_lines((first.x, second.x), (first.lines, second.lines))
    seen, seen_heavy = (~np.isnan(kinks) for kinks in joint.kinks)
    # Where the rising lines meet B = 1; with one slope they are as far apart everywhere.
    starts = joint.plateaus[0] - joint.slopes * np.where(seen, joint.kinks[0], first.x[-1])
    starts_heavy = joint.plateaus[1] - joint.slopes * np.where(seen_heavy, joint.kinks[1], second.x[-1])
    ratios = 2.0 ** (joint.plateaus[1] - joint.plateaus[0])
    return JointRegimes(
        plain=_regimes(first, joint.slopes, joint.kinks[0], joint.plateaus[0]),
        heavy=_regimes(second, joint.slopes, joint.kinks[1], joint.plateaus[1]),
        offset=_interval(starts_heavy - starts),
        plateau_ratio=_interval(
            ratios, lowest=np.where(seen, ratios, 0.0), highest=np.where(seen_heavy, ratios, np.inf)
        ),
    )


def _regimes(sample: _Sample, slopes: Floats, kinks: Floats, plateaus: Floats) -> Regimes:
    """Return what the lines say of a sample, the first of which is through its optima."""
    seen = ~np.isnan(kinks)
    part = float(np.mean(seen[1:]))
    corners, levels = 2.0 ** np.where(seen, kinks, sample.x[-1]), 2.0**plateaus
    axes = sample.grids[0].axes
    return Regimes(
        momentum=axes.momentum,
        budget=str(axes.budget),
        batch_sizes=tuple(grid.axes.batch_size for grid in sample.grids),
        line=BrokenLine(slope=float(slopes[0]), kink=float(kinks[0]) if seen[0] else None, plateau=float(plateaus[0])),
        slope=_interval(slopes),
        kink=_interval(corners, highest=np.where(seen, corners, np.inf)) if seen[0] and part >= 0.5 else None,
        plateau=_interval(levels, highest=np.where(seen, levels, np.inf)),
        shortfall=_interval(slopes * (sample.x[-1] - np.log2(corners))),
        part_with_kink=part,
        num_seeds=len(sample.grids[0].cells[0].results),
        at_end=tuple(grid.axes.batch_size for grid, end in zip(sample.grids, sample.at_end, strict=True) if end),
    )


def _interval(values: Floats, *, lowest: Floats | None = None, highest: Floats | None = None) -> Interval:
    """Return the first value with limits from all others, or from how low and how high these may really be."""
    estimate = float(values[0])
    low, _ = percentile_limits((values if lowest is None else lowest)[1:])
    _, high = percentile_limits((values if highest is None else highest)[1:])
    return Interval(estimate=estimate, low=min(low, estimate), high=max(high, estimate))


class _Sample:
    """The optima of grids over rising batch sizes, and as many that might have been.

    `x` is log2 of the batch sizes. `lines` are log2 of the optima, shape (1 + num_draws, num_grids), of which the first
    are those found. In a draw every optimum moves by itself: to where it is with seeds drawn anew, and between the
    learning rates. All optima on one side of the kink that were found in one way move within their ranges together as
    well, since a line and a grid of learning rates that climb alike miss each other by the same amount everywhere.
    """

    def __init__(self, grids: Sequence[Grid], generator: np.random.Generator, num_draws: int) -> None:
        self.grids = grids
        self.x: list[float] = [math.log2(grid.axes.batch_size) for grid in grids]
        tables = [ResampledGrid(grid) for grid in grids]
        self.at_end = [table.at_end for table in tables]
        found = np.array([table.found for table in tables])
        located = [table.locate(table.seeds(generator, num_draws)) for table in tables]
        reaches = [reach(place) for place in located]
        below, above, alone = (np.stack(parts, axis=1) for parts in zip(*reaches, strict=True))
        num_seeds = len(grids[0].cells[0].results)
        # Seeds drawn from n vary by (n - 1) / n of what new ones would.
        moves = np.stack([place.log_rate for place in located], axis=1) - found
        moves *= math.sqrt(num_seeds / max(1, num_seeds - 1))
        moves += generator.uniform(-1.0, 1.0, size=moves.shape) * alone
        line = fit_broken_line(self.x, found.tolist())
        moves *= _widening(found - line.at(self.x), moves)
        rising = np.array(self.x) <= (self.x[-1] if line.kink is None else line.kink)
        # Mostly near an end of the range: where the loss is steep on one side, one of the parabolas there is right.
        rise, level, steep_rise, steep_level = np.sin(np.pi / 2 * generator.uniform(size=(4, num_draws, 1))) ** 2
        believed = np.stack([place.believed for place in located], axis=1)
        together = np.where(believed, np.where(rising, rise, level), np.where(rising, steep_rise, steep_level))
        self.lines: Floats = np.concatenate([found[None], found + moves - below + together * (below + above)])


def reach(place: Located) -> tuple[Floats, Floats, Floats]:
    """Return how far optima may lie below and above their estimates, all alike, and how far either way by themselves.

    The ends of the range are good to a quarter of a step, which adds in squares. Where nothing two below tells how
    steep the loss is above, half a step is allowed for: enough for five times as steep as below.
    """
    quarter = (place.upper - place.lower) / 8
    below, above = place.log_rate - place.low, place.high - place.log_rate
    below, above = (np.where(place.holds, np.hypot(part, quarter), part) for part in (below, above))
    above = np.where(place.believed & ~place.told, np.minimum(above, 2 * quarter), above)
    return below, above, np.where(place.holds, quarter, 2 * quarter)


def _widening(residuals: Floats, moves: Floats) -> float:
    """Return by how much the optima scatter more about their line than their moves explain; 1 where they do not."""
    freedom = len(residuals) - 3
    if freedom < 1:
        return 1.0
    return max(1.0, math.sqrt(float(np.sum(residuals**2) / freedom / np.mean(np.var(moves, axis=0)))))


class ResampledGrid:
    """A grid whose seeds can be drawn anew: gives log2 of the optimum for every draw.

    Cells that cannot be optimal, and runs that diverged, count as infinitely bad.
    """

    def __init__(self, grid: Grid, objective: str | None = None, direction: Direction | None = None) -> None:
        name = grid.objective if objective is None else objective
        sign = (grid.direction if direction is None else direction).sign
        self._num_seeds, self._num_kept = len(grid.cells[0].results), grid.cells[0].num_kept
        values = [
            [sign * r.quantity(name) for r in cell.results if r is not None]
            if cell.is_usable
            else [math.nan] * self._num_seeds
            for cell in grid.cells
        ]
        self._values: Floats = np.where(np.isnan(values), -np.inf, values)
        self._log_rates: Floats = np.log2([cell.effective_learning_rate for cell in grid.cells])
        steps = np.diff(self._log_rates) if len(self._log_rates) > 1 else np.ones(1)
        self._spacing = float(np.min(steps))
        everyone = np.arange(self._num_seeds)[None]
        self._means_of_all = self._means(everyone)
        self._place = int(np.argmax(self._means_of_all[:, 0]))
        self.at_end = self._place in (0, len(grid.cells) - 1)
        self.found = float(self.locate(everyone).log_rate[0])

    def seeds(self, generator: np.random.Generator, num_draws: int) -> NDArray[np.int64]:
        """Return seeds drawn with replacement, shape (num_draws, num_seeds)."""
        return generator.integers(self._num_seeds, size=(num_draws, self._num_seeds))

    def optima(self, seeds: NDArray[np.int64]) -> Floats:
        """Return log2 of the best learning rate tried, for every draw of seeds, alike for all cells: (num_draws,)."""
        return np.asarray(self._log_rates[self._best(self._means(seeds))])

    def jitter(self, generator: np.random.Generator, num_draws: int) -> Floats:
        """Return how far the true optimum may lie from the best learning rate tried: up to half a step."""
        return generator.uniform(-0.5, 0.5, size=num_draws) * self._spacing

    def locate(self, seeds: NDArray[np.int64]) -> Located:
        """Return where the optimum lies between the learning rates, for every draw of seeds; shapes (num_draws,).

        In a draw in which every cell fails it is that of all seeds.
        """
        means = self._means(seeds)
        return locate(self._log_rates, -np.where(np.isfinite(means).any(axis=0), means, self._means_of_all).T)

    def _means(self, seeds: NDArray[np.int64]) -> Floats:
        """Return every cell's mean over the best runs of a draw, shape (num_cells, num_draws)."""
        best = np.sort(self._values[:, seeds], axis=2)[:, :, self._num_seeds - self._num_kept :]
        return np.asarray(best.mean(axis=2))

    def _best(self, means: Floats) -> NDArray[np.int64]:
        """Return the place of the best cell in every draw; that of all seeds where every cell of a draw fails."""
        best = np.argmax(means, axis=0)
        return np.where(np.isfinite(means[best, np.arange(means.shape[1])]), best, self._place)
