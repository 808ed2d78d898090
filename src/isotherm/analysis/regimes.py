"""The two regimes of a sweep: where the optimal learning rate rises with the batch size, and where it stops rising.

The paper's figure 1c. In the noise dominated regime ε_eff* ∝ B (slope 1 in log2-log2); beyond the kink curvature limits
ε_eff*, which stays constant. Momentum leaves the rise unchanged and moves the kink to larger batches.

Intervals combine three sources of error: resampled seeds; the spacing of the learning rates, between which an optimum
is known only as well as the parabolas on both sides of it agree (`optimum.py`); and the scatter of the optima about the
line, where it exceeds the first two. Tests check their coverage by simulation. Grids of three learning rates do not
show how steep either side is: the interval of the plateau is then too short where results fall off 20 times as steeply
above the optimum as below it, or five times as steeply below it as above.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.analysis.resampling import Sample
from isotherm.core.statistics import (
    BrokenLine,
    Floats,
    Interval,
    fit_broken_lines,
    fit_joint_lines,
    percentile_limits,
)
from isotherm.sweep.protocol import Grid

NUM_DRAWS = 2000

# The rising lines of SGD and momentum agree if they are known to lie within this many octaves of each other.
SAME_LINE = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Regimes:
    """The broken line through the optima of one budget and momentum; intervals at 95 %.

    `line` is the fit itself, in log2. `kink` is None where the fit has none or most resampled sweeps show none; its
    upper limit, and the plateau's, is infinite where more than one in forty shows none. Without a kink `plateau` is the
    value of the line at the largest batch. `shortfall` is by how many octaves the line at the largest batch stays below
    the continued rise; 0 where a resampled sweep shows no kink. `at_end` lists the batch sizes whose best learning rate
    is the lowest or highest one tried.
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
        """A warning where optima are the lowest or highest learning rate tried; else empty."""
        if not self.at_end:
            return []
        sizes = ", ".join(map(str, self.at_end))
        return [f"cannot be judged: the optimum lies at the end of its grid at B = {sizes}"]

    @property
    def doubts(self) -> list[str]:
        """Why the data determine no kink; empty where they do."""
        doubts = self.end_words
        if len(self.batch_sizes) < 4:
            doubts.append("three batch sizes are not enough")
        elif self.slope.low <= 0:
            doubts.append("the optimum does not clearly rise with the batch size")
        elif self.kink is None or self.shortfall.low <= 0:
            doubts.append(f"{self.part_with_kink:.0%} of resampled sweeps show one")
        return doubts

    @property
    def shows_kink(self) -> bool:
        """Whether the data determine a kink: at least four points, a rise up to it and less of a rise beyond."""
        return not self.doubts

    @property
    def slope_words(self) -> str:
        """The law at small batches, in words."""
        return f"ε_eff* ∝ B^{self.slope.estimate:.2f} [{self.slope.low:.2f}, {self.slope.high:.2f}] at small B"

    @property
    def unseen_words(self) -> str:
        """The sentence for data that determine no kink."""
        return f"kink not seen below B = {self.batch_sizes[-1]}"

    @property
    def kink_words(self) -> str:
        """The kink and the plateau beyond it, or why no kink is seen."""
        if self.kink is None or not self.shows_kink:
            return f"{self.unseen_words} ({'; '.join(self.doubts)})"
        kink, plateau = self.kink, self.plateau
        return (
            f"kink at B ≈ {kink.estimate:.0f} [{kink.low:.0f}, {kink.high:.0f}], then ε_eff* ≈ {plateau.estimate:.3g} "
            f"[{plateau.low:.3g}, {plateau.high:.3g}]"
        )

    @property
    def seed_words(self) -> list[str]:
        """A caveat for sweeps with a single seed; else empty."""
        return ["one seed only: the intervals do not include variation between seeds"] if self.num_seeds == 1 else []

    def __str__(self) -> str:
        return "; ".join([self.slope_words, self.kink_words, *self.seed_words])


@dataclass(frozen=True, kw_only=True, slots=True)
class JointRegimes:
    """Plain SGD and momentum at one budget, compared by broken lines that share a slope; intervals at 95 %.

    `plain` and `heavy` are the laws of the two: these very lines, unless plain SGD has several momenta beside it.
    `offset` is how many octaves momentum's rising line lies above that of plain SGD; the paper finds none.
    `plateau_ratio` is momentum's plateau over that of plain SGD; a limit is 0 or infinite where a plateau is not seen.
    """

    plain: Regimes
    heavy: Regimes
    offset: Interval
    plateau_ratio: Interval

    def beside(self, plain: Regimes, heavy: Regimes) -> JointRegimes:
        """Return the comparison beside the laws that the two series have."""
        return dataclasses.replace(self, plain=plain, heavy=heavy)

    @property
    def shares_slope(self) -> bool:
        """Whether the laws of the two have one slope."""
        return self.plain.slope == self.heavy.slope

    @property
    def slope(self) -> Interval:
        """The slope of both rising lines, where they share one."""
        assert self.shares_slope
        return self.plain.slope

    @property
    def same_line(self) -> bool | None:
        """Whether the two agree below their kinks to a factor of two; None where the data cannot tell."""
        if not self.offset.contains(0.0):
            return False
        return True if self.offset.low > -SAME_LINE and self.offset.high < SAME_LINE else None

    @property
    def largest_plateau_ratio(self) -> float:
        """(1 + m) / (1 - m): the factor by which momentum raises the largest stable effective learning rate."""
        momentum = self.heavy.momentum
        return (1 + momentum) / (1 - momentum)

    @property
    def words(self) -> list[str]:
        """All findings; without the laws of the two where these were fitted alone."""
        if not self.shares_slope:
            return [self.line_words, self.ratio_words]
        kinks = [f"{found.label}: {found.kink_words}" for found in (self.plain, self.heavy)]
        slope = f"SGD and {self.heavy.label}: {self.plain.slope_words}"
        return [slope, self.line_words, *kinks, self.ratio_words, *self.plain.seed_words]

    @property
    def line_words(self) -> str:
        """Whether the rising lines agree."""
        offset = self.offset
        where = f"{offset.estimate:+.2f} [{offset.low:+.2f}, {offset.high:+.2f}] octaves from that of SGD"
        agree = "they agree to a factor of two"
        judged = {True: agree, False: "they differ", None: "too uncertain to tell if they agree"}
        return f"below the kink the line of {self.heavy.label} lies {where}: {judged[self.same_line]}"

    @property
    def ratio_words(self) -> str:
        """The ratio of the plateaus, or what is known about it."""
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


def fit_regimes(grids: Sequence[Grid], *, num_draws: int = NUM_DRAWS) -> Regimes:
    """Return the broken line through the optima of grids over rising batch sizes, with intervals."""
    sample = Sample(grids, np.random.default_rng(0), num_draws)
    return _regimes(sample, *fit_broken_lines(sample.x, sample.lines))


def fit_joint_regimes(plain: Sequence[Grid], heavy: Sequence[Grid], *, num_draws: int = NUM_DRAWS) -> JointRegimes:
    """Return the broken lines with one slope through the optima of plain SGD and of momentum, with intervals."""
    generator = np.random.default_rng(0)
    first, second = Sample(plain, generator, num_draws), Sample(heavy, generator, num_draws)
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


def _regimes(sample: Sample, slopes: Floats, kinks: Floats, plateaus: Floats) -> Regimes:
    """Return the regimes of a sample from its lines, the first of which goes through the optima found."""
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
    """Return the first value with limits from all others, or from separate values for either limit."""
    estimate = float(values[0])
    low, _ = percentile_limits((values if lowest is None else lowest)[1:])
    _, high = percentile_limits((values if highest is None else highest)[1:])
    return Interval(estimate=estimate, low=min(low, estimate), high=max(high, estimate))
