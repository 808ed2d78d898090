"""The numbers of every figure, separate from drawing.

A `SweepFigure` has the form of the paper's figure 1: test metric, training loss and optimal effective learning rate
against batch size, one series per budget and optimiser. A `LearningRateFigure` has the form of its figure 5: test
metric and training loss against effective learning rate, one series per batch size. `figure_data` makes these records.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from isotherm.analysis.regimes import JointRegimes, Regimes
from isotherm.report.study.pictures import Picture
from isotherm.sweep.plan import GridAxes
from isotherm.sweep.protocol import Edge

BATCH_SIZE_LABEL = "batch size B"
TRAIN_LOSS_LABEL = "training loss"
RATE_LABEL = "effective learning rate ε_eff"
# Of SGD, and of optimisers that have no effective one.
_RATE_LABELS = {True: RATE_LABEL, False: "learning rate ε"}


# Two points.
Line = tuple[tuple[float, float], tuple[float, float]]


class CellState(enum.StrEnum):
    """The state of one learning rate."""

    STABLE = "stable"
    UNSTABLE = "unstable"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A quantity over the runs that count, and over all that have it."""

    mean: float
    standard_deviation: float
    mean_all: float
    standard_deviation_all: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingGrid:
    """A grid that has no optimum and so no point in the figure."""

    sweep: str
    axes: GridAxes
    reason: Edge

    def __str__(self) -> str:
        return f"{self.sweep}, {self.axes}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPoint:
    """One grid at its optimum; `test` and `train_loss` are over the same runs.

    The training optimum is that of loss + L2, with that of the loss alone beside it. `train_end_sign` is "≤ " or "≥ "
    where it is the lowest or highest learning rate tried: grids may grow for the tuned optimum alone.
    """

    x: float
    axes: GridAxes
    num_steps: int
    test: Spread
    train_loss: Spread
    effective_learning_rate: float
    interval: tuple[float, float]
    edge: Edge
    train_optimal_effective_learning_rate: float
    train_end_sign: str
    train_loss_optimal_effective_learning_rate: float

    @property
    def at_edge(self) -> bool:
        """Whether the true optimum may lie beyond the learning rates run so far."""
        return self.edge is not Edge.INTERIOR


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSeries:
    """The optima of one optimiser, and budget where several are swept, over rising x.

    `guide` is the line ε_eff ∝ B through the first point, as its two ends; None where x is not the batch size. For
    optimisers without a temperature `root_guide` is the line ε ∝ √B beside it. `momentum` is None for these. `law` is
    the broken line through the optima; None where x is not the batch size, and below three points.
    """

    label: str
    momentum: float | None
    points: tuple[SweepPoint, ...]
    guide: Line | None
    law: Regimes | None
    root_guide: Line | None = None

    @property
    def corners(self) -> list[tuple[float, float]]:
        """The corners of the broken line, as batch size and learning rate; none where there is no law."""
        if self.law is None:
            return []
        line, sizes = self.law.line, self.law.batch_sizes
        x = [math.log2(sizes[0]), *([] if line.kink is None else [line.kink]), math.log2(sizes[-1])]
        return [(2.0**a, 2.0**b) for a, b in zip(x, line.at(x).tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFigure:
    """Three panels against batch size or budget; series without points are left out.

    `runs` says in words from which runs the numbers come.
    """

    name: str
    setting: str
    x_label: str
    test_label: str
    tuned_on: str
    percent: bool
    runs: str
    series: tuple[SweepSeries, ...]
    joint: tuple[JointRegimes, ...]
    missing: tuple[MissingGrid, ...]
    has_temperature: bool = True

    @property
    def symbol(self) -> str:
        """The sign of a learning rate."""
        return "ε_eff" if self.has_temperature else "ε"

    @property
    def optimum_label(self) -> str:
        """The axis of optimal learning rates."""
        return f"optimal {_RATE_LABELS[self.has_temperature]}"

    @property
    def findings(self) -> list[str]:
        """The two regimes in words: every series, then SGD beside momentum."""
        several = len({series.law.budget for series in self.series if series.law is not None}) > 1
        found = [f"{pair.plain.budget}: {words}" if several else words for pair in self.joint for words in pair.words]
        alone = [f"{series.label}: {series.law}" for series in self.series if series.law is not None]
        return [*alone, *found]

    @property
    def points(self) -> list[SweepPoint]:
        """The points of all series."""
        return [point for series in self.series for point in series.points]


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRatePoint:
    """One cell; its quantities are None where it is unstable or incomplete."""

    effective_learning_rate: float
    state: CellState
    num_diverged: int
    test: Spread | None
    train_loss: Spread | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRateSeries:
    """One grid: all its learning rates, rising; optimum and interval None where no cell is stable."""

    label: str
    axes: GridAxes
    points: tuple[LearningRatePoint, ...]
    optimum: float | None
    interval: tuple[float, float] | None
    edge: Edge

    @property
    def stable(self) -> list[LearningRatePoint]:
        """The points that have values."""
        return [point for point in self.points if point.state is CellState.STABLE]


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRateFigure:
    """Two panels against effective learning rate, one series per grid; `family` names it within its sweep.

    `runs` says in words from which runs the numbers come: those that choose, also where others confirm.
    """

    name: str
    family: str
    setting: str
    test_label: str
    tuned_on: str
    percent: bool
    runs: str
    num_seeds: int
    series: tuple[LearningRateSeries, ...]
    has_temperature: bool = True

    @property
    def symbol(self) -> str:
        """The sign of a learning rate."""
        return "ε_eff" if self.has_temperature else "ε"

    @property
    def rate_label(self) -> str:
        """The axis of learning rates."""
        return _RATE_LABELS[self.has_temperature]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFigures:
    """The numbers of all figures of a study."""

    sweeps: tuple[SweepFigure, ...]
    learning_rates: tuple[LearningRateFigure, ...]
    pictures: tuple[Picture, ...] = ()
