"""The record of a diagnosis: what was measured, what follows from it, and what is missing. Plain values throughout.

An interval is None if the data do not determine it; `missing` then says why and what would help.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isotherm.core.json import plain
from isotherm.core.schedule import Schedule
from isotherm.core.statistics import Interval
from isotherm.core.temperature import bare_learning_rate
from isotherm.core.views import Shown, view

Regime = Literal["noise dominated", "curvature dominated", "near the boundary", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """How often short runs fail, against the effective learning rate, at one batch size and momentum.

    A run fails if it diverges or makes less than half the progress of the best learning rate.

    Args:
        momentum: of the runs.
        batch_size: of the runs.
        num_steps: updates per run.
        rates: effective learning rates, rising.
        num_runs: at each.
        num_failed: at each.
        initial_loss: before any update.
        best_loss: mean final training loss at the best learning rate.
        limit: the effective learning rate at which half of the runs fail; None if no run failed, or all did.
    """

    momentum: float
    batch_size: int
    num_steps: int
    rates: tuple[float, ...]
    num_runs: tuple[int, ...]
    num_failed: tuple[int, ...]
    initial_loss: float
    best_loss: float
    limit: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortGrid:
    """The held-out metric after a short training against the effective learning rate, at one batch size and length.

    `optimum` is the peak of the parabola through the best mean and its neighbours; None if the best mean is at an edge
    of the grid. A mean is infinite where all runs failed; `num_seeds` is the number of runs behind each mean.
    """

    batch_size: int
    momentum: float
    num_steps: int
    rates: tuple[float, ...]
    means: tuple[float, ...]
    standard_deviations: tuple[float, ...]
    num_seeds: int
    optimum: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Isotherm:
    """The law of the optima, at the length of the intended training.

    Args:
        temperature: ε_eff*/B at `at_batch_size`; None if the optima follow no law.
        slope: of log ε_eff* against log B; 1 on an isotherm. None with fewer than two batch sizes.
        batch_sizes: those below the stability limit, on which it rests.
        exponent: of log ε_eff* against the log of the training's length. None with fewer than two lengths.
        used_slope: of log ε_eff* against log B in the answer, at the length that each batch size is trained for. At
            equal epochs 1 exactly, or `slope` where its interval excludes 1 or another slope than 1 is more probable.
        used_interval: of `used_slope`; None if it is not known.
        at_batch_size: the middle of the batch sizes.
        longest_part: the longest short runs, as a part of the intended training.
        is_plateau: whether the metric hardly depends on the learning rate; the interval is then the range in which it
            does not.
    """

    temperature: Interval | None
    slope: Interval | None
    batch_sizes: tuple[int, ...]
    exponent: Interval | None = None
    used_slope: float = 1.0
    used_interval: Interval | None = None
    at_batch_size: float = 1.0
    longest_part: float = 1.0
    is_plateau: bool = False

    def rate(self, batch_size: float) -> float | None:
        """Return the best effective learning rate at a batch size, below the stability limit."""
        if self.temperature is None:
            return None
        middle = self.temperature.estimate * self.at_batch_size
        return float(middle * (batch_size / self.at_batch_size) ** self.used_slope)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Curvature and gradient noise at one point of training.

    Args:
        step: updates made before.
        sharpness: the largest eigenvalue of the Hessian, over `num_examples` training examples.
        noise_scale: B_simple = tr Σ / ‖G‖².
        num_examples: training examples of the Hessian.
        mode: of the module for the noise: "train", or "evaluate" if training mode couples examples.
    """

    step: int
    sharpness: Interval | None
    noise_scale: Interval | None
    num_examples: int
    mode: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """An estimate of B*, the batch size above which curvature limits the learning rate."""

    source: Literal["sweep", "curvature", "noise scale"]
    momentum: float
    batch_size: Interval | None
    how: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What to use at one batch size, and what it costs.

    Args:
        batch_size: of the choice.
        regime: of plain SGD.
        rates: effective learning rates by momentum.
        num_steps: updates of the intended training.
        has_enough_steps: whether short runs with as few updates lost nothing against smaller batches.
        speed: training examples per second of one run on this machine.
        epoch_seconds: follow from it.
        extra_epochs: by momentum, the factor by which more epochs are expected to be needed than below the boundary, as
            the learning rate lags behind the isotherm by that factor.
    """

    batch_size: int
    regime: Regime
    rates: Mapping[float, Interval]
    num_steps: int
    has_enough_steps: bool
    speed: float | None
    epoch_seconds: float | None
    extra_epochs: Mapping[float, float]

    def learning_rate(self, momentum: float) -> float:
        """Return the learning rate to pass to an optimiser."""
        return bare_learning_rate(self.rates[momentum].estimate, momentum=momentum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Current:
    """The setting in use, and what it would cost.

    Args:
        batch_size: given.
        learning_rate: given, as an optimiser gets it.
        momentum: given.
        effective_learning_rate: follows from it.
        temperature: follows from it.
        regime: of the batch size with this momentum.
        words: what to change.
        num_steps: updates of the intended training.
        factor: the learning rate as a multiple of the best one at this batch size.
        lost: what the metric is expected to lose by it, in its own units; None if unknown.
        is_stable: whether the learning rate is below the largest stable one; None if that is unknown.
        extra_epochs: as in `Choice`.
        speed: as in `Choice`.
        epoch_seconds: as in `Choice`.
    """

    batch_size: int
    learning_rate: float
    momentum: float
    effective_learning_rate: float
    temperature: float
    regime: Regime
    words: str
    num_steps: int
    factor: float | None
    lost: float | None
    is_stable: bool | None
    extra_epochs: float | None
    speed: float | None
    epoch_seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What the diagnosis itself cost."""

    seconds: float
    num_runs: int
    num_examples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis(Shown):
    """Everything found, and the answer.

    Args:
        task: its name.
        momentum: the one recommended besides plain SGD.
        num_train: training examples.
        budget: the length of the intended training, in words.
        schedule: of the intended training and, fitted to their length, of the short runs.
        metric: its name; short runs are judged by it.
        stability: without and with momentum.
        grids: short grids over rising batch sizes.
        isotherm: through their optima.
        probes: along a short training.
        boundaries: estimates of B* side by side.
        agreement: what it means that they agree or disagree.
        current: the setting in use, if given.
        choices: over rising batch sizes; empty if the data support none.
        recommended: the batch size to use, by momentum; empty if the data support none.
        expectations: the effect of doubling the batch or the epochs.
        missing: what could not be determined, why, and what would help.
        cost: of the diagnosis.
        settings: that reproduce it.
        code: the lines of PyTorch that train as recommended, by momentum, to paste.
    """

    task: str
    momentum: float
    num_train: int
    budget: str
    metric: str
    stability: tuple[Stability, ...]
    grids: tuple[ShortGrid, ...]
    isotherm: Isotherm
    probes: tuple[Probe, ...]
    boundaries: tuple[Boundary, ...]
    agreement: str
    current: Current | None
    choices: tuple[Choice, ...]
    recommended: Mapping[float, int]
    expectations: tuple[str, ...]
    missing: tuple[str, ...]
    cost: Cost
    settings: Mapping[str, Any]
    schedule: Schedule = field(default_factory=Schedule)
    code: Mapping[float, tuple[str, ...]] = field(default_factory=dict)

    @property
    def choice(self) -> Choice | None:
        """The recommended choice with momentum, or of plain SGD if nothing is known about momentum."""
        return self.choice_with(self.momentum) or self.choice_with(0.0)

    @property
    def choice_code(self) -> tuple[str, ...]:
        """The lines to paste of the recommended choice."""
        momentum = 0.0 if self.choice_with(self.momentum) is None else self.momentum
        return self.code.get(momentum, ())

    def choice_with(self, momentum: float) -> Choice | None:
        """Return the recommended choice of one optimiser."""
        size = self.recommended.get(momentum)
        return next((choice for choice in self.choices if choice.batch_size == size), None)

    def limit(self, momentum: float) -> Interval | None:
        """Return the largest stable effective learning rate with a momentum."""
        return next((s.limit for s in self.stability if s.momentum == momentum), None)

    def boundary(self, momentum: float, source: str = "sweep") -> Interval | None:
        """Return an estimate of B*."""
        found = (b.batch_size for b in self.boundaries if (b.momentum, b.source) == (momentum, source))
        return next(found, None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; numbers that are not finite become null."""
        content: dict[str, Any] = plain(dataclasses.asdict(self))
        return content

    def __repr__(self) -> str:
        return str(view("diagnosis")(self))
