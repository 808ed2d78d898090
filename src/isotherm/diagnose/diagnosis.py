"""The record of a diagnosis: what was measured, what follows from it, and what is missing. Plain values throughout.

An interval is None if the data do not determine it; `missing` then says why and what would help.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from isotherm.core.json import plain
from isotherm.core.statistics import Interval
from isotherm.core.temperature import bare_learning_rate

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
    """Held-out loss after a short training against the effective learning rate, at one batch size.

    `optimum` is the minimum of the parabola through the lowest mean and its neighbours; None if the lowest mean is at
    an edge of the grid. `seeds` is the number of runs behind each mean.
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
    """The temperature of the optima, and whether they lie on one isotherm.

    Args:
        temperature: ε_eff*/B over the batch sizes below the stability limit; None if there are none.
        slope: of log ε_eff* against log B there; 1 on an isotherm. None with fewer than two batch sizes.
        batch_sizes: those used.
    """

    temperature: Interval | None
    slope: Interval | None
    batch_sizes: tuple[int, ...]


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

    `rates` maps each momentum to its effective learning rate. `speed` is in training examples per second of one run
    on this machine; `epoch_seconds` follows from it. `extra_epochs` is the factor by which plain SGD is expected to
    need more epochs than below the boundary, as its learning rate lags behind the isotherm by that factor.
    """

    batch_size: int
    regime: Regime
    rates: Mapping[float, Interval]
    speed: float | None
    epoch_seconds: float | None
    extra_epochs: float

    def learning_rate(self, momentum: float) -> float:
        """Return the learning rate to pass to an optimiser."""
        return bare_learning_rate(self.rates[momentum].estimate, momentum=momentum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Current:
    """The setting in use."""

    batch_size: int
    learning_rate: float
    momentum: float
    effective_learning_rate: float
    temperature: float
    regime: Regime
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What the diagnosis itself cost."""

    seconds: float
    num_runs: int
    num_examples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Everything found, and the answer.

    Args:
        task: its name.
        momentum: the one recommended besides plain SGD.
        num_train: training examples.
        stability: without and with momentum.
        grids: short grids over rising batch sizes.
        isotherm: through their optima.
        probes: along a short training.
        boundaries: estimates of B* side by side.
        agreement: what it means that they agree or disagree.
        current: the setting in use, if given.
        choices: over rising batch sizes; empty if the data support none.
        recommended: the batch size of the recommended choice; None if there is none.
        expectations: the effect of doubling the batch or the epochs.
        missing: what could not be determined, why, and what would help.
        cost: of the diagnosis.
        settings: that reproduce it.
    """

    task: str
    momentum: float
    num_train: int
    stability: tuple[Stability, ...]
    grids: tuple[ShortGrid, ...]
    isotherm: Isotherm
    probes: tuple[Probe, ...]
    boundaries: tuple[Boundary, ...]
    agreement: str
    current: Current | None
    choices: tuple[Choice, ...]
    recommended: int | None
    expectations: tuple[str, ...]
    missing: tuple[str, ...]
    cost: Cost
    settings: Mapping[str, Any]

    @property
    def choice(self) -> Choice | None:
        """The recommended choice."""
        return next((choice for choice in self.choices if choice.batch_size == self.recommended), None)

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
