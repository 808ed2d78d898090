"""Runs, their results, and the key under which a run is stored. No torch here."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, Self

from isotherm.core.l2 import L2Scope
from isotherm.core.optimizers import SGD, Optimizer, heavy_ball_momentum, optimizer_json, optimizer_of
from isotherm.core.run_schedule import RunSchedule
from isotherm.core.temperature import bare_learning_rate

# Part of every key. Raise it when the same RunSpec gives different numbers than before.
RUN_VERSION = 1

# "mixed": matmuls and convolutions in bfloat16; weights, optimiser, statistics and losses in float32.
# "tf32": float32, but matmuls and convolutions round their inputs to 10 bits; on GPUs only.
Precision = Literal["float32", "float64", "mixed", "tf32"]


class Outcome(enum.StrEnum):
    """How a run ended. Divergence is a finding; a failure says nothing about the setting."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"


class Direction(enum.StrEnum):
    """Which way a quantity improves."""

    MAXIMISE = "maximise"
    MINIMISE = "minimise"

    @property
    def sign(self) -> int:
        """+1 where larger is better, -1 where smaller is."""
        return 1 if self is Direction.MAXIMISE else -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What the results of a task are stored under: two content hashes and the named parts they are made of."""

    data_id: str
    model_id: str
    data_parts: dict[str, str]
    model_parts: dict[str, str]

    @property
    def ids(self) -> tuple[str, str]:
        """The pair by which runs refer to a task."""
        return self.data_id, self.model_id


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSpec:
    """Everything that determines one run's numbers.

    `data_id` and `model_id` are those of `Identity`; `task` is a label for display and not part of the key. Without an
    `optimizer` it is heavy ball, or plain SGD, with `momentum`. Another than SGD has no momentum here, so that
    `effective_learning_rate` is its learning rate.
    """

    task: str
    data_id: str
    model_id: str
    batch_size: int
    num_steps: int
    effective_learning_rate: float
    momentum: float
    gamma: float
    l2: float
    l2_scope: L2Scope
    precision: Precision
    num_evaluations: int
    seed: int
    clip_norm: float | None = None  # the gradient is clipped to this norm before momentum
    schedule: RunSchedule | None = None  # None is the paper's, without a warm-up
    optimizer: Optimizer | None = None

    def __post_init__(self) -> None:
        if self.optimizer is not None:
            assert self.momentum == (self.optimizer.momentum if isinstance(self.optimizer, SGD) else 0)
            if heavy_ball_momentum(self.optimizer) is not None:  # one setting, one key
                object.__setattr__(self, "optimizer", None)
        for name in ("effective_learning_rate", "momentum", "gamma", "l2"):  # 1 and 1.0 are one setting, one key
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.clip_norm is not None:
            object.__setattr__(self, "clip_norm", float(self.clip_norm))

    @property
    def learning_rate(self) -> float:
        """The optimiser's ε = ε_eff (1 - m)."""
        return bare_learning_rate(self.effective_learning_rate, momentum=self.momentum)

    @property
    def method(self) -> Optimizer:
        """The optimiser, heavy ball included."""
        return self.optimizer or SGD(momentum=self.momentum)

    @property
    def key(self) -> str:
        """The content hash under which this run is stored."""
        return content_hash(self.key_content())

    def key_content(self) -> dict[str, Any]:
        """Return what the key is made of; an unused setting changes no key."""
        content = self.to_json()
        del content["task"]
        if content["clip_norm"] is None:
            del content["clip_norm"]
        content["version"] = RUN_VERSION
        return content

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON, without schedule and optimiser where they are the paper's."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        schedule, optimizer = content.pop("schedule"), content.pop("optimizer")
        content |= {} if schedule is None else {"schedule": schedule.to_json()}
        return content if optimizer is None else {**content, "optimizer": optimizer_json(optimizer)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the spec that `to_json` wrote."""
        schedule, optimizer = content.get("schedule"), content.get("optimizer")
        parts = {
            "schedule": None if schedule is None else RunSchedule.from_json(schedule),
            "optimizer": None if optimizer is None else optimizer_of(optimizer),
        }
        return cls(**{**content, **parts})


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """The test set evaluated after `step` updates."""

    step: int
    test_loss: float
    test_metric: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of one run. A quantity that does not exist (diverged, failed, no validation set) is None.

    `train_loss_running` averages the batch losses in training mode over the last epoch's worth of updates;
    `train_loss` is over the whole training set in evaluation mode; both exclude the L2 term, which is given as
    `l2_penalty` = (λ/2)‖w‖² over the penalised parameters. `clipped_fraction` is the fraction of updates whose
    gradient was clipped; `test_metric_running` is the test metric with the running averages of ghost batch norm, where
    `test_metric` uses statistics re-estimated with the final weights.
    """

    outcome: Outcome
    train_loss_running: float | None = None
    last_batch_loss: float | None = None
    train_loss: float | None = None
    train_metric: float | None = None
    l2_penalty: float | None = None
    weight_norm_squared: float | None = None
    validation_loss: float | None = None
    validation_metric: float | None = None
    test_loss: float | None = None
    test_metric: float | None = None
    test_metric_running: float | None = None
    clipped_fraction: float | None = None
    loss_scale: float = 1.0  # SGD minimises this times the loss, plus the penalty
    divergence_step: int | None = None
    curve: tuple[CurvePoint, ...] = ()
    error: str | None = None

    @property
    def train_objective(self) -> float | None:
        """What SGD minimises, at the final weights: training loss in evaluation mode plus L2 penalty, per unit of loss.

        The paper's reported training loss fits `train_loss_running` plus `l2_penalty` better, see docs/calibration.md.
        """
        if self.train_loss is None or self.l2_penalty is None:
            return None
        return self.train_loss + self.l2_penalty / self.loss_scale

    def quantity(self, name: str) -> float:
        """Return a quantity by name; NaN where the run has none."""
        value = getattr(self, name)
        return math.nan if value is None else float(value)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the result that `to_json` wrote."""
        fields = dict(content)
        fields["outcome"] = Outcome(fields["outcome"])
        fields["curve"] = tuple(CurvePoint(**point) for point in fields["curve"])
        return cls(**fields)


QUANTITIES = (
    "test_metric",
    "test_loss",
    "validation_metric",
    "validation_loss",
    "train_loss",
    "train_metric",
    "train_loss_running",
    "train_objective",
)


def content_hash(content: object) -> str:
    """Return the SHA-256 of plain values in canonical JSON: sorted keys, no spaces, floats by shortest repr.

    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    >>> content_hash({"a": 1}) == content_hash({"a": 1.5})
    False
    """
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def canonical_json(content: object) -> str:
    """Return what `content_hash` hashes."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
