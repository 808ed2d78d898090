"""A sweep is the protocol over batch sizes, budgets and momenta: what to run, n seeds at every learning rate.

`Sweep` is what a user writes, with a task in it. `SweepPlan` is the same without tensors: it can be stored, hashed
and turned into runs anywhere.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np

from isotherm.core.budget import Budget, BudgetUnit
from isotherm.core.l2 import L2Scope
from isotherm.core.records import Direction, Identity, Precision, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.core.temperature import effective_learning_rate_at
from isotherm.errors import UserError
from isotherm.tasks.task import Task

TuneOn = Literal["validation", "test", "train"]
TuneQuantity = Literal["metric", "loss"]
ExtendFor = Literal["tuned", "tuned_and_train"]


# Far beyond any use; a slip of the keyboard should not fill a disk.
_MAX_POINTS = 100
_LIMITS = {"num_seeds": 10_000, "num_evaluations": 10_000, "max_extensions": 50, "first_seed": 2**62}


def powers_of_two(lowest: int, highest: int) -> tuple[float, ...]:
    """Return 2^lowest .. 2^highest, both included: the paper's grid.

    >>> powers_of_two(-2, 1)
    (0.25, 0.5, 1.0, 2.0)
    """
    if lowest > highest:
        raise UserError(f"powers_of_two({lowest}, {highest}) is empty; the lower exponent comes first")
    return tuple(2.0**k for k in range(lowest, highest + 1))


def tidy(value: float) -> float:
    """Return a computed learning rate as one would write it, so that it meets the one that was written.

    >>> tidy(0.09 * 3 * 3), tidy(2.0**-30) == 2.0**-30
    (0.81, True)
    """
    is_power_of_two = math.frexp(value)[0] == 0.5
    return value if is_power_of_two else float(f"{value:.15g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class IsothermGrid:
    """Learning rates around an isotherm: at batch size B centred on min(T B, ceiling).

    A guess of the optimal temperature and of the largest useful learning rate, both by a power of the ratio or two,
    is enough: the protocol extends a grid whose optimum lies at its edge.

    >>> IsothermGrid(temperature=2**-5, ceiling=8.0).at(64)
    (0.5, 1.0, 2.0, 4.0, 8.0)
    >>> IsothermGrid(temperature=2**-5, ceiling=8.0, num_below=1, num_above=1).at(4096)
    (4.0, 8.0, 16.0)
    """

    temperature: float
    ceiling: float = math.inf
    num_below: int = 2
    num_above: int = 2
    ratio: float = 2.0

    def __post_init__(self) -> None:
        _require_positive("temperature", self.temperature)
        if not _is_number(self.ceiling) or not self.ceiling > 0:
            raise UserError(f"ceiling={self.ceiling!r} is not positive; it is the largest learning rate worth trying")
        _require_whole("num_below", self.num_below, at_least=0, at_most=_MAX_POINTS)
        _require_whole("num_above", self.num_above, at_least=0, at_most=_MAX_POINTS)
        if not _is_number(self.ratio) or not (math.isfinite(self.ratio) and self.ratio > 1):
            raise UserError(f"ratio={self.ratio!r} is not above 1; neighbouring learning rates differ by this factor")

    def at(self, batch_size: int) -> tuple[float, ...]:
        """Return the effective learning rates to try at a batch size, rising."""
        centre = min(effective_learning_rate_at(self.temperature, batch_size), self.ceiling)
        return tuple(tidy(centre * self.ratio**k) for k in range(-self.num_below, self.num_above + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class GridAxes:
    """What the runs of one grid share: a grid is all learning rates at one batch size, budget and momentum."""

    batch_size: int
    budget: Budget
    momentum: float

    def __str__(self) -> str:
        return f"B={self.batch_size}, {self.budget}, m={self.momentum:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The protocol on one task.

    Args:
        task: what is trained.
        batch_sizes: the first axis.
        effective_learning_rates: ε_eff = ε / (1 - m); one grid for all batch sizes, or an `IsothermGrid`.
        budget: one `Budget` or several.
        momentum: heavy-ball momentum, one value or several; 0 is plain SGD.
        l2: coefficient λ of the penalty (λ/2)‖w‖²; None, here and for the next three, takes what the task says.
        l2_scope: "weights" penalises what has two dimensions or more, "all" everything.
        clip_norm: the gradient's norm is cut to this, before momentum; infinity cuts nothing.
        schedule: hold, then ten drops.
        num_seeds: runs of every cell.
        num_kept: how many of them, the best, make up the paper's mean; default four fifths of the seeds.
        tune_on: the data on which the learning rate is chosen. "test" is the paper's way; "validation" uses the
            task's validation set, or holds out `validation_fraction` of the training set.
        tune_quantity: choose by the task's metric or by its loss; on training data always by the loss.
        num_evaluations: looks at the test set along the way.
        max_extensions: how often a grid whose optimum or interval touches an edge grows by two points there.
        extend_for: "tuned" extends a grid for the optimum tuned for; "tuned_and_train" also until the learning rate
            with the lowest training loss is not at an edge.
        first_seed: seeds are first_seed .. first_seed + num_seeds - 1.
        name: for people and reports.
        precision: of the computation: "float32", "float64", or "mixed", bfloat16 with weights in float32.
        validation_fraction: see `tune_on`.
    """

    task: Task
    batch_sizes: Sequence[int]
    effective_learning_rates: Sequence[float] | IsothermGrid
    budget: Budget | Sequence[Budget]
    momentum: float | Sequence[float] = 0.9
    l2: float | None = None
    l2_scope: L2Scope | None = None
    clip_norm: float | None = None
    schedule: Schedule = field(default_factory=Schedule)
    num_seeds: int = 5
    num_kept: int | None = None
    tune_on: TuneOn = "validation"
    tune_quantity: TuneQuantity = "metric"
    validation_fraction: float = 0.1
    num_evaluations: int = 10
    max_extensions: int = 3
    extend_for: ExtendFor = "tuned"
    first_seed: int = 0
    name: str = "sweep"
    precision: Precision | None = None

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "effective_learning_rates", "momentum"):
            if isinstance(getattr(self, name), np.ndarray):
                object.__setattr__(self, name, getattr(self, name).tolist())
        if not isinstance(self.task, Task):
            raise UserError(f"task is {type(self.task).__name__}; give an isotherm.Task, or isotherm.get_task(name)")
        if not isinstance(self.name, str) or not self.name:
            raise UserError(f"a sweep's name is {self.name!r}; give a non-empty string")
        _require_choice("tune_on", self.tune_on, get_args(TuneOn))
        _require_choice("tune_quantity", self.tune_quantity, get_args(TuneQuantity))
        _require_choice("extend_for", self.extend_for, get_args(ExtendFor))
        for name, kind in (("l2_scope", L2Scope), ("precision", Precision)):
            if getattr(self, name) is not None:
                _require_choice(name, getattr(self, name), get_args(kind))
        for name in ("num_seeds", "num_evaluations", "max_extensions", "first_seed"):
            _require_whole(name, getattr(self, name), at_least=1 if name == "num_seeds" else 0, at_most=_LIMITS[name])
        if self.num_kept is not None:
            _require_whole("num_kept", self.num_kept, at_least=1)
            if self.num_kept > self.num_seeds:
                raise UserError(
                    f"num_kept={self.num_kept} is more than num_seeds={self.num_seeds}; "
                    "the best k of n runs need k <= n: lower num_kept or raise num_seeds"
                )
        if self.clip_norm is not None and (not _is_number(self.clip_norm) or not self.clip_norm > 0):
            raise UserError(f"clip_norm={self.clip_norm!r} is not above 0; use e.g. 5.0, or infinity to clip nothing")
        if self.l2 is not None and (not _is_number(self.l2) or not (math.isfinite(self.l2) and self.l2 >= 0)):
            raise UserError(f"l2={self.l2!r} is not a number >= 0; use 0 for no penalty")
        if not isinstance(self.schedule, Schedule):
            raise UserError(f"schedule={self.schedule!r} is {type(self.schedule).__name__}; give an isotherm.Schedule")
        if not _is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise UserError(f"validation_fraction={self.validation_fraction!r} is not between 0 and 1; use e.g. 0.1")
        for momentum in self.momenta:
            if not _is_number(momentum) or not 0 <= momentum < 1:
                raise UserError(f"momentum={momentum!r} is not in [0, 1); the paper uses 0.9, and 0 is plain SGD")
        if not isinstance(self.effective_learning_rates, IsothermGrid):
            _require_some("effective_learning_rates", self.effective_learning_rates)
            for value in self.effective_learning_rates:
                _require_positive("effective learning rate", value)
        _require_some("batch_sizes", self.batch_sizes)
        _require_some("budget", self.budgets)
        _require_some("momentum", self.momenta)
        for budget in self.budgets:
            if not isinstance(budget, Budget):
                raise UserError(f"budget is {budget!r}; give Budget.steps(n) or Budget.epochs(n)")
        num_train, unroll = self.task.num_train - self._num_held_out, self.task.unroll
        for batch_size in self.batch_sizes:
            _require_whole("batch size", batch_size, at_least=1)
            if batch_size > num_train:
                raise UserError(
                    f"batch size {batch_size} is larger than the training set of {num_train} examples"
                    f"{self._held_out_note()}; use at most {num_train}"
                )
            for budget in self.budgets:  # refuses a budget of no whole update
                budget.num_steps(num_train=num_train, batch_size=batch_size, unroll=unroll)
            if unroll is not None:  # refuses streams too short for one window
                Budget.epochs(1).num_steps(num_train=num_train, batch_size=batch_size, unroll=unroll)

    @property
    def momenta(self) -> tuple[float, ...]:
        """The momenta as an axis."""
        return tuple(self.momentum) if _is_axis(self.momentum) else (self.momentum,)  # type: ignore[arg-type,return-value]

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets as an axis."""
        return tuple(self.budget) if _is_axis(self.budget) else (self.budget,)  # type: ignore[arg-type,return-value]

    @property
    def prepared_task(self) -> Task:
        """The task with the validation set this sweep needs."""
        return self.task.with_validation(self.validation_fraction) if self.tune_on == "validation" else self.task

    def plan(self) -> SweepPlan:
        """Return the sweep without tensors; hashes the data and builds the model once."""
        task = self.prepared_task
        return self.plan_of(task, task.identify())

    def plan_of(self, task: Task, identity: Identity) -> SweepPlan:
        """Return the sweep without tensors, with its prepared task identified already."""
        return SweepPlan(
            name=self.name,
            task=task.name,
            data_id=identity.data_id,
            model_id=identity.model_id,
            num_train=task.num_train,
            metric=task.metric_definition.name,
            metric_direction=task.metric_definition.direction,
            batch_sizes=tuple(dict.fromkeys(int(b) for b in self.batch_sizes)),
            learning_rates=tuple(self._learning_rates_at(int(b)) for b in dict.fromkeys(self.batch_sizes)),
            budgets=tuple(dict.fromkeys(self.budgets)),
            momenta=tuple(dict.fromkeys(float(m) for m in self.momenta)),
            l2=float(task.l2 if self.l2 is None else self.l2),
            l2_scope=self.l2_scope or task.l2_scope,
            schedule=self.schedule,
            seeds=tuple(range(self.first_seed, self.first_seed + self.num_seeds)),
            num_kept=max(1, round(0.8 * self.num_seeds)) if self.num_kept is None else self.num_kept,
            tune_on=self.tune_on,
            tune_quantity=self.tune_quantity,
            num_evaluations=self.num_evaluations,
            max_extensions=self.max_extensions,
            extend_for=self.extend_for,
            precision=self.precision or task.precision,
            clip_norm=self._clip_norm(),
            unroll=task.unroll,
        )

    def _clip_norm(self) -> float | None:
        value = self.task.clip_norm if self.clip_norm is None else float(self.clip_norm)
        return None if value is None or math.isinf(value) else float(value)

    def _learning_rates_at(self, batch_size: int) -> tuple[float, ...]:
        grid = self.effective_learning_rates
        values = grid.at(batch_size) if isinstance(grid, IsothermGrid) else grid
        return tuple(sorted({float(value) for value in values}))

    @property
    def _num_held_out(self) -> int:
        return self.task.num_held_out(self.validation_fraction) if self.tune_on == "validation" else 0

    def _held_out_note(self) -> str:
        held = self._num_held_out
        return f" ({held} more are held out for validation)" if held else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """A sweep as plain values: what the store keeps and the protocol works on."""

    name: str
    task: str
    data_id: str
    model_id: str
    num_train: int
    metric: str
    metric_direction: Direction
    batch_sizes: tuple[int, ...]
    learning_rates: tuple[tuple[float, ...], ...]
    budgets: tuple[Budget, ...]
    momenta: tuple[float, ...]
    l2: float
    l2_scope: L2Scope
    schedule: Schedule
    seeds: tuple[int, ...]
    num_kept: int
    tune_on: TuneOn
    tune_quantity: TuneQuantity
    num_evaluations: int
    max_extensions: int
    extend_for: ExtendFor
    precision: Precision
    clip_norm: float | None = None
    unroll: int | None = None

    @property
    def objective(self) -> str:
        """The quantity of a run by which learning rates are compared."""
        return "train_loss" if self.tune_on == "train" else f"{self.tune_on}_{self.tune_quantity}"

    @property
    def direction(self) -> Direction:
        """Which way the objective improves."""
        return self.metric_direction if self.objective.endswith("_metric") else Direction.MINIMISE

    def grids(self) -> list[GridAxes]:
        """Return the axes of every grid: budgets, then momenta, then batch sizes."""
        return [
            GridAxes(batch_size=batch_size, budget=budget, momentum=momentum)
            for budget in self.budgets
            for momentum in self.momenta
            for batch_size in self.batch_sizes
        ]

    def base_learning_rates(self, axes: GridAxes) -> tuple[float, ...]:
        """Return the learning rates a grid starts with."""
        return self.learning_rates[self.batch_sizes.index(axes.batch_size)]

    def run_spec(self, axes: GridAxes, *, effective_learning_rate: float, seed: int) -> RunSpec:
        """Return one run of a grid."""
        return RunSpec(
            task=self.task,
            data_id=self.data_id,
            model_id=self.model_id,
            batch_size=axes.batch_size,
            num_steps=self.num_steps(axes),
            effective_learning_rate=effective_learning_rate,
            momentum=axes.momentum,
            gamma=self.schedule.gamma_from(effective_learning_rate),
            l2=self.l2,
            l2_scope=self.l2_scope,
            precision=self.precision,
            num_evaluations=self.num_evaluations,
            seed=seed,
            clip_norm=self.clip_norm,
        )

    def num_steps(self, axes: GridAxes) -> int:
        """Return how many updates the runs of a grid make."""
        return axes.budget.num_steps(num_train=self.num_train, batch_size=axes.batch_size, unroll=self.unroll)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the plan that `to_json` wrote."""
        fields = dict(content)
        fields["budgets"] = tuple(Budget(unit=BudgetUnit(b["unit"]), amount=b["amount"]) for b in fields["budgets"])
        fields["schedule"] = Schedule(**fields["schedule"])
        fields["metric_direction"] = Direction(fields["metric_direction"])
        fields["learning_rates"] = tuple(tuple(values) for values in fields["learning_rates"])
        for name in ("batch_sizes", "momenta", "seeds"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def _is_number(value: object) -> bool:
    """Tell whether a value is a real number, NumPy's included; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_axis(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _require_positive(name: str, value: Any) -> None:
    if not _is_number(value) or not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} {value!r} is not a positive number; use e.g. 0.125")


def _require_whole(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < at_least:
        raise UserError(f"{name} {value!r} is not a whole number of at least {at_least}; give one")
    if at_most is not None and int(value) > at_most:
        raise UserError(f"{name} {value!r} is more than Isotherm takes, {at_most:,}; lower it")


def _require_some(name: str, values: object) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UserError(f"{name}={values!r} is {type(values).__name__}; give a list")
    if len(values) == 0:
        raise UserError(f"{name} is empty; give at least one value")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, choices))}")
