"""The two regimes of a sweep: where the optimal learning rate rises with the batch size, and where it stops rising.

The paper's figure 1c. In the noise dominated regime ε_eff* ∝ B (slope 1 in log2-log2); beyond the kink curvature limits
ε_eff*, which stays constant. Momentum leaves the rise unchanged and moves the kink to larger batches.

All numbers come from the posterior of a curve family (`family.py`): estimates are medians, intervals hold 95 % of the
draws. They include the seeds, what the spacing of the learning rates leaves open, the shape of the peaks, and the
scatter of the optima about the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.analysis.family import FamilyFit
from isotherm.core.one_screen import one_screen
from isotherm.core.optimizers import SGD, Optimizer, has_temperature
from isotherm.core.statistics import BrokenLine, Floats, Interval, percentile_limits
from isotherm.sweep.protocol import Grid

# The rising lines of SGD and momentum agree if they are known to lie within this many octaves of each other.
SAME_LINE = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Regimes:
    """The broken line through the optima of one budget and optimiser; intervals at 95 %.

    `line` has the medians, in log2. `kink` is None where most draws have none; its upper limit, and the plateau's, is
    infinite where more than one in forty has none. Without a kink `plateau` is the value of the line at the largest
    batch. `shortfall` is by how many octaves the line at the largest batch stays below the continued rise; 0 where a
    draw has no kink. `at_end` lists the batch sizes whose best learning rate is the lowest or highest one tried; those
    that still have to be run are not tried.
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
    optimizer: Optimizer | None = None

    @property
    def method(self) -> Optimizer:
        """The optimiser, heavy ball included."""
        return self.optimizer or SGD(momentum=self.momentum)

    @property
    def label(self) -> str:
        """The optimiser in words."""
        return self.method.label

    @property
    def symbol(self) -> str:
        """The optimal learning rate: the effective one of SGD, the optimiser's own of others."""
        return "ε_eff*" if has_temperature(self.method) else "ε*"

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
            doubts.append(f"{self.part_with_kink:.0%} of the lines that fit have one")
        return doubts

    @property
    def shows_kink(self) -> bool:
        """Whether the data determine a kink: at least four points, a rise up to it and less of a rise beyond."""
        return not self.doubts

    @property
    def slope_words(self) -> str:
        """The law at small batches, in words; with optima at the end of what was tried it is held against no rule."""
        law = f"{self.symbol} ∝ B^{self.slope.estimate:.2f} [{self.slope.low:.2f}, {self.slope.high:.2f}] at small B"
        return law if has_temperature(self.method) or self.at_end else f"{law} ({self.power_words})"

    @property
    def power_words(self) -> str:
        """Which of the two usual rules the exponent agrees with: ε ∝ √B, ε ∝ B, both or neither."""
        root, linear = (self.slope.contains(power) for power in (0.5, 1.0))
        if root and linear:
            return "this agrees with √B and with B"
        if root:
            return "this agrees with √B, not with B"
        return "this agrees with B, not with √B" if linear else "this agrees with neither √B nor B"

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
            f"kink at B ≈ {kink.estimate:.0f} [{kink.low:.0f}, {kink.high:.0f}], then {self.symbol} ≈ "
            f"{plateau.estimate:.3g} [{plateau.low:.3g}, {plateau.high:.3g}]"
        )

    @property
    def seed_words(self) -> list[str]:
        """A caveat for sweeps with a single seed; else empty."""
        return ["one seed only: the intervals do not include variation between seeds"] if self.num_seeds == 1 else []

    def __str__(self) -> str:
        return "; ".join([self.slope_words, self.kink_words, *self.seed_words])

    def __repr__(self) -> str:
        return one_screen([f"{type(self).__name__}: {self}"])


@dataclass(frozen=True, kw_only=True, slots=True)
class JointRegimes:
    """Plain SGD and momentum at one budget; intervals at 95 %.

    `plain` and `heavy` are the laws of the two. `offset` is how many octaves momentum's rising line lies above that of
    plain SGD in the middle of the batch sizes at which both rise; the paper finds none. `plateau_ratio` is momentum's
    plateau over that of plain SGD; a limit is 0 or infinite where a plateau is not seen.
    """

    plain: Regimes
    heavy: Regimes
    offset: Interval
    plateau_ratio: Interval

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
        """How the two compare."""
        return [self.line_words, self.ratio_words]

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

    def __repr__(self) -> str:
        return one_screen([f"{type(self).__name__}: {self}"])


def regimes_of(fit: FamilyFit, grids: Sequence[Grid]) -> Regimes:
    """Return the broken line of a family, with intervals."""
    seen = ~np.isnan(fit.kinks)
    part = float(np.mean(seen))
    log_last = math.log2(fit.batch_sizes[-1])
    log_corners = np.where(seen, fit.kinks, log_last)
    corners, levels = 2.0**log_corners, 2.0**fit.plateaus
    has_kink = part >= 0.5
    return Regimes(
        momentum=grids[0].axes.momentum,
        budget=str(grids[0].axes.budget),
        batch_sizes=fit.batch_sizes,
        line=BrokenLine(
            slope=float(np.median(fit.slopes)),
            kink=float(np.median(log_corners)) if has_kink else None,
            plateau=float(np.median(fit.plateaus)),
        ),
        slope=_interval(fit.slopes),
        kink=_interval(corners, highest=np.where(seen, corners, np.inf)) if has_kink else None,
        plateau=_interval(levels, highest=np.where(seen, levels, np.inf)),
        shortfall=_interval(fit.slopes * (log_last - log_corners)),
        part_with_kink=part,
        num_seeds=len(grids[0].cells[0].results),
        optimizer=grids[0].axes.optimizer,
        at_end=tuple(grid.axes.batch_size for grid in grids if _is_at_end(grid)),
    )


def joint_regimes_of(plain: tuple[Regimes, FamilyFit], heavy: tuple[Regimes, FamilyFit]) -> JointRegimes:
    """Return how two laws compare, whose draws are independent of each other."""
    (law, fit), (heavy_law, heavy_fit) = plain, heavy
    where = _middle_of_rise(law, heavy_law)
    seen, seen_heavy = (~np.isnan(one.kinks) for one in (fit, heavy_fit))
    ratios = 2.0 ** (heavy_fit.plateaus - fit.plateaus)
    return JointRegimes(
        plain=law,
        heavy=heavy_law,
        offset=_interval(_rising_lines(heavy_fit, where) - _rising_lines(fit, where)),
        plateau_ratio=_interval(
            ratios, lowest=np.where(seen, ratios, 0.0), highest=np.where(seen_heavy, ratios, np.inf)
        ),
    )


def _middle_of_rise(*laws: Regimes) -> float:
    """Return log2 of the batch size in the middle of those at which all optima rise."""
    first = max(law.batch_sizes[0] for law in laws)
    ends = [law.batch_sizes[-1] if law.kink is None else law.kink.estimate for law in laws]
    return (math.log2(first) + max(math.log2(first), math.log2(min(ends)))) / 2


def _rising_lines(fit: FamilyFit, log_size: float) -> Floats:
    """Return where the rising lines pass a batch size, in log2."""
    ends = np.where(np.isnan(fit.kinks), math.log2(fit.batch_sizes[-1]), fit.kinks)
    return np.asarray(fit.plateaus - fit.slopes * (ends - log_size))


def _is_at_end(grid: Grid) -> bool:
    best = grid.optimum()
    return best is not None and best.lies_at_end_of(grid)


def _interval(values: Floats, *, lowest: Floats | None = None, highest: Floats | None = None) -> Interval:
    """Return the median with limits from all draws, or from separate ones for either limit."""
    estimate = float(np.median(values))
    low, _ = percentile_limits(values if lowest is None else lowest)
    _, high = percentile_limits(values if highest is None else highest)
    return Interval(estimate=estimate, low=min(low, estimate), high=max(high, estimate))
