"""A sweep as a user writes it: a task, and the batch sizes, budgets, momenta and learning rates to try.

`Sweep.plan` returns the same without tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from isotherm.core.budget import Budget, Until
from isotherm.core.checks import (
    is_finite,
    is_number,
    require_choice,
    require_name,
    require_positive,
    require_some,
    require_whole,
)
from isotherm.core.l2 import L2Scope
from isotherm.core.one_screen import fields_text
from isotherm.core.optimizers import SGD, Optimizer, decays_weights, has_temperature, heavy_ball_momentum
from isotherm.core.rates import IsothermGrid
from isotherm.core.records import Identity, Precision
from isotherm.core.schedule import Schedule, checked_schedule
from isotherm.errors import UserError
from isotherm.sweep.optimizer_axis import check_learning_rates, checked_optimizers
from isotherm.sweep.plan import SMALLEST_RATIO, ExtendFor, Resolution, SweepPlan, TuneOn, TuneQuantity
from isotherm.tasks.task import Task

# Far beyond any use; a typing error should not fill a disk.
_LIMITS = {
    "num_seeds": 10_000,
    "num_confirm": 10_000,
    "num_evaluations": 10_000,
    "max_extensions": 50,
    "first_seed": 2**62,
}
# Of heavy ball, as in the paper.
DEFAULT_MOMENTUM = 0.9
# A learning rate is known no better than this.
_LEAST_RATIO = 1.001
_ENDING = "the paper's, linear, cosine or wsd"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The protocol on one task.

    Args:
        task: what is trained.
        batch_sizes: the first axis.
        effective_learning_rates: ε_eff = ε / (1 - m) of SGD; one grid for all batch sizes, or an `IsothermGrid`.
        learning_rates: in their place, the optimiser's own ε; those of Adam, AdamW and Muon are always given like this.
        budget: one `Budget` or several; or `Budget.until(...)`, whose budgets double until what is tuned meets a target
            or no longer improves.
        estimate_at: a smaller budget at which every grid is run first; at the full one it starts with the learning
            rates around the optimum found. By default the whole grid is run at the full one.
        momentum: heavy-ball momentum, one value or several; 0 is plain SGD. By default 0.9.
        optimizer: `SGD`, `Adam`, `AdamW` or `Muon`, or several, or their names; by default SGD with `momentum`.
        l2: coefficient λ of the penalty (λ/2)‖w‖². None, here and for `l2_scope`, `clip_norm` and `precision`, takes
            the task's value. AdamW and Muon have weight decay instead, and no penalty.
        l2_scope: "weights" penalises or decays parameters of two or more dimensions, "all" every parameter.
        clip_norm: the gradient's norm is clipped to this before momentum; infinity clips nothing.
        schedule: of the learning rate, or the name of one such as "cosine"; by default the paper's, constant for half
            of training, then ten drops.
        final_learning_rates: effective learning rates at which the schedule ends, swept apart from those at which
            training starts (the paper's figure 3). Every pair that does not rise is run. By default the schedule says
            where the drops end.
        num_seeds: runs per cell, by which the learning rate is chosen.
        num_kept: the best runs of a cell, over which its mean is taken; by default all. The paper keeps 12 of 15 runs,
            or 5 of 7.
        num_confirm: further runs at the chosen learning rate, with seeds of their own. What is reported there comes
            from them, so that the choice does not flatter it. By default as many as `num_seeds`, and none with
            `resolution="paper"`.
        tune_on: the data on which the learning rate is chosen. "test" is what the paper did; "validation" uses the
            task's validation set, or holds out `validation_fraction` of the training set.
        tune_quantity: choose by the task's metric or its loss; on training data always by what SGD minimises, the loss
            plus the L2 penalty.
        num_evaluations: evaluations on the test set during training.
        max_extensions: how often a grid is extended by two learning rates where its optimum or interval touches an end.
        extend_for: "tuned" extends and refines a grid for the tuned optimum alone; "tuned_and_train" also for the
            learning rate with the lowest training loss plus L2 penalty.
        resolution: "adaptive" adds learning rates halfway to the neighbours of an optimum until what may be gained
            between them is below the error of the mean; "paper" keeps the grids as they are given.
        smallest_ratio: neighbours this close or closer are not refined further.
        first_seed: seeds are first_seed .. first_seed + num_seeds - 1, then those of `num_confirm`.
        name: shown in reports.
        precision: "float32", "float64", "mixed": bfloat16 with float32 weights, or "tf32": float32 with rounded inputs
            of matmuls and convolutions, on GPUs only.
        validation_fraction: see `tune_on`.
    """

    task: Task
    batch_sizes: Sequence[int]
    budget: Budget | Sequence[Budget] | Until
    effective_learning_rates: Sequence[float] | IsothermGrid | None = None
    learning_rates: Sequence[float] | None = None
    momentum: float | Sequence[float] | None = None
    optimizer: Optimizer | str | Sequence[Optimizer | str] | None = None
    l2: float | None = None
    l2_scope: L2Scope | None = None
    clip_norm: float | None = None
    schedule: Schedule | str = field(default_factory=Schedule)
    final_learning_rates: Sequence[float] | None = None
    num_seeds: int = 5
    num_kept: int | None = None
    num_confirm: int | None = None
    tune_on: TuneOn = "validation"
    tune_quantity: TuneQuantity = "metric"
    validation_fraction: float = 0.1
    num_evaluations: int = 10
    max_extensions: int = 3
    extend_for: ExtendFor = "tuned"
    resolution: Resolution = "adaptive"
    smallest_ratio: float = SMALLEST_RATIO
    first_seed: int = 0
    name: str = "sweep"
    precision: Precision | None = None
    estimate_at: Budget | None = None

    def __post_init__(self) -> None:
        for name in ("batch_sizes", "effective_learning_rates", "learning_rates", "momentum", "final_learning_rates"):
            if isinstance(getattr(self, name), np.ndarray):
                object.__setattr__(self, name, getattr(self, name).tolist())
        if not isinstance(self.task, Task):
            raise UserError(f"task is {type(self.task).__name__}; give an isotherm.Task, or isotherm.get_task(name)")
        require_name("a sweep's name", self.name)
        object.__setattr__(self, "schedule", checked_schedule(self.schedule))
        self._check_choices()
        self._check_counts()
        self._check_training()
        self._check_axes()
        for batch_size in self.batch_sizes:
            self._check_batch_size(batch_size)
        self._check_final_learning_rates()
        self._check_estimate()

    def __repr__(self) -> str:
        return fields_text(self, shown={"task": lambda task: f"<task {task.name!r}>"})

    def _check_choices(self) -> None:
        require_choice("tune_on", self.tune_on, get_args(TuneOn))
        require_choice("tune_quantity", self.tune_quantity, get_args(TuneQuantity))
        require_choice("extend_for", self.extend_for, get_args(ExtendFor))
        require_choice("resolution", self.resolution, get_args(Resolution))
        for name, kind in (("l2_scope", L2Scope), ("precision", Precision)):
            if getattr(self, name) is not None:
                require_choice(name, getattr(self, name), get_args(kind))

    def _check_counts(self) -> None:
        for name in ("num_seeds", "num_evaluations", "max_extensions", "first_seed"):
            require_whole(name, getattr(self, name), at_least=1 if name == "num_seeds" else 0, at_most=_LIMITS[name])
        if self.num_confirm is not None:
            require_whole("num_confirm", self.num_confirm, at_least=0, at_most=_LIMITS["num_confirm"])
        ratio = self.smallest_ratio
        if not is_number(ratio) or not (is_finite(ratio) and ratio >= _LEAST_RATIO):
            raise UserError(
                f"smallest_ratio={ratio!r} is not a factor of at least {_LEAST_RATIO}; grids are refined until "
                "neighbouring learning rates differ by no more than this: use e.g. 1.19"
            )
        if self.num_kept is None:
            return
        require_whole("num_kept", self.num_kept, at_least=1)
        if self.num_kept > self.num_seeds:
            raise UserError(
                f"num_kept={self.num_kept} is more than num_seeds={self.num_seeds}; "
                "the best k of n runs need k <= n: lower num_kept or raise num_seeds"
            )

    def _check_training(self) -> None:
        if self.clip_norm is not None and (not is_number(self.clip_norm) or not self.clip_norm > 0):
            raise UserError(f"clip_norm={self.clip_norm!r} is not above 0; use e.g. 5.0, or infinity to clip nothing")
        if self.l2 is not None and (not is_number(self.l2) or not (is_finite(self.l2) and self.l2 >= 0)):
            raise UserError(f"l2={self.l2!r} is not a number >= 0; use 0 for no penalty")
        if not is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise UserError(f"validation_fraction={self.validation_fraction!r} is not between 0 and 1; use e.g. 0.1")

    def _check_axes(self) -> None:
        if self.optimizer is not None:
            made = checked_optimizers(self.optimizer, momentum=self.momentum, l2=self.l2)
            object.__setattr__(self, "optimizer", made)
        for momentum in self.momenta:
            if not is_number(momentum) or not 0 <= momentum < 1:
                raise UserError(f"momentum={momentum!r} is not in [0, 1); the paper uses 0.9, and 0 is plain SGD")
        check_learning_rates(self.methods, effective=self.effective_learning_rates, bare=self.learning_rates)
        require_some("batch_sizes", self.batch_sizes)
        require_some("budget", self.budgets)
        if self.optimizer is None:
            require_some("momentum", self.momenta)
        for budget in self.budgets:
            if not isinstance(budget, Budget):
                raise UserError(f"budget is {budget!r}; give Budget.steps(n) or Budget.epochs(n)")

    def _check_final_learning_rates(self) -> None:
        if self.final_learning_rates is None:
            return
        if self.learning_rates is not None and any(self.momenta):
            raise UserError(
                "final_learning_rates are effective learning rates, and learning_rates are not; give both as effective "
                "ones"
            )
        require_some("final_learning_rates", self.final_learning_rates)
        for value in self.final_learning_rates:
            require_positive("final learning rate", value)
        if not self._schedule.has_final_rate:
            raise UserError(
                f"final_learning_rates need a schedule that ends at one: {_ENDING}; this one is {self.schedule}"
            )
        if self._schedule.fixes_final_rate:
            raise UserError(
                f"final_learning_rates and the schedule ({self.schedule}) both say where training ends; leave one out"
            )
        for batch_size in self.batch_sizes:
            rates = self._learning_rates_at(int(batch_size))
            if min(self.final_learning_rates) > rates[0]:
                raise UserError(
                    f"the lowest final learning rate {min(self.final_learning_rates):g} is above the learning rate "
                    f"{rates[0]:g} at batch size {batch_size}, and a schedule falls; give lower final learning rates"
                )

    def _check_estimate(self) -> None:
        if self.estimate_at is None:
            return
        if not isinstance(self.estimate_at, Budget):
            raise UserError(f"estimate_at={self.estimate_at!r} is no budget; give e.g. Budget.epochs(2)")
        num_train, unroll = self.task.num_train - self._num_held_out, self.task.unroll
        for batch_size, budget in itertools.product(self.batch_sizes, self.budgets):
            short, full = (
                b.num_steps(num_train=num_train, batch_size=int(batch_size), unroll=unroll)
                for b in (self.estimate_at, budget)
            )
            self._check_schedule(short, int(batch_size))
            if short >= full:
                raise UserError(
                    f"estimate_at={self.estimate_at} is no shorter than the budget of {budget} at batch size "
                    f"{batch_size}; an estimate saves time with e.g. a tenth of it"
                )

    def _check_batch_size(self, batch_size: int) -> None:
        num_train, unroll = self.task.num_train - self._num_held_out, self.task.unroll
        require_whole("batch size", batch_size, at_least=1)
        if batch_size > num_train:
            raise UserError(
                f"batch size {batch_size} is larger than the training set of {num_train} examples"
                f"{self._held_out_note()}; use at most {num_train}"
            )
        for budget in self.budgets:  # refuses a budget of no whole update, and a warm-up that is longer
            num_steps = budget.num_steps(num_train=num_train, batch_size=batch_size, unroll=unroll)
            self._check_schedule(num_steps, batch_size)
        if unroll is not None:  # refuses streams too short for one window
            Budget.epochs(1).num_steps(num_train=num_train, batch_size=batch_size, unroll=unroll)

    def _check_schedule(self, num_steps: int, batch_size: int) -> None:
        try:
            self._schedule.check_length(num_steps)
        except UserError as error:
            raise error.within(f"batch size {batch_size}") from error

    @property
    def _schedule(self) -> Schedule:
        return checked_schedule(self.schedule)  # a name has been replaced

    @property
    def momenta(self) -> tuple[float, ...]:
        """The momenta of heavy ball as an axis; none where other optimisers are given."""
        if self.optimizer is not None:
            known = [heavy_ball_momentum(one) for one in self._optimizers]
            return () if None in known else tuple(known)  # type: ignore[arg-type]
        if self.momentum is None:
            return (DEFAULT_MOMENTUM,)
        return tuple(self.momentum) if _is_axis(self.momentum) else (self.momentum,)  # type: ignore[arg-type,return-value]

    @property
    def _optimizers(self) -> tuple[Optimizer, ...]:
        """The optimisers that were given."""
        return self.optimizer if isinstance(self.optimizer, tuple) else ()

    @property
    def methods(self) -> tuple[Optimizer, ...]:
        """The optimisers, heavy ball included."""
        return self._optimizers or tuple(SGD(momentum=momentum) for momentum in self.momenta)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets as an axis; all that there may be where they double."""
        if isinstance(self.budget, Until):
            return self.budget.budgets
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
            optimizers=() if self.momenta else self._optimizers,
            rates_are_bare=self.learning_rates is not None and any(map(has_temperature, self.methods)),
            l2=self._l2(),
            l2_scope=self.l2_scope or task.l2_scope,
            schedule=self._schedule,
            seeds=tuple(range(self.first_seed, self.first_seed + self.num_seeds)),
            num_kept=self.num_seeds if self.num_kept is None else self.num_kept,
            tune_on=self.tune_on,
            tune_quantity=self.tune_quantity,
            num_evaluations=self.num_evaluations,
            max_extensions=self.max_extensions,
            extend_for=self.extend_for,
            precision=self.precision or task.precision,
            clip_norm=self._clip_norm(),
            unroll=task.unroll,
            resolution=self.resolution,
            smallest_ratio=float(self.smallest_ratio),
            num_confirm=self._num_confirm(),
            metric_bounds=task.metric_definition.bounds,
            until=self.budget if isinstance(self.budget, Until) else None,
            estimate_at=self.estimate_at,
            final_learning_rates=tuple(sorted({float(rate) for rate in self.final_learning_rates or ()})),
        )

    def _l2(self) -> float:
        if any(map(decays_weights, self._optimizers)):
            return 0.0
        return float(self.task.l2 if self.l2 is None else self.l2)

    def _num_confirm(self) -> int:
        if self.num_confirm is not None:
            return self.num_confirm
        return self.num_seeds if self.resolution == "adaptive" else 0

    def _clip_norm(self) -> float | None:
        value = self.task.clip_norm if self.clip_norm is None else float(self.clip_norm)
        return None if value is None or math.isinf(value) else float(value)

    def _learning_rates_at(self, batch_size: int) -> tuple[float, ...]:
        grid = self.effective_learning_rates if self.learning_rates is None else self.learning_rates
        assert grid is not None
        values = grid.at(batch_size) if isinstance(grid, IsothermGrid) else grid
        return tuple(sorted({float(value) for value in values}))

    @property
    def _num_held_out(self) -> int:
        return self.task.num_held_out(self.validation_fraction) if self.tune_on == "validation" else 0

    def _held_out_note(self) -> str:
        held = self._num_held_out
        return f" ({held} more are held out for validation)" if held else ""


def _is_axis(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)
