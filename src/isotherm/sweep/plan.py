"""What is to be run, as plain values: it can be stored, hashed and turned into runs anywhere. No torch here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self

from isotherm.core.budget import Budget, BudgetUnit, Until
from isotherm.core.l2 import L2Scope
from isotherm.core.optimizers import SGD, Optimizer, has_temperature, optimizer_json, optimizer_of
from isotherm.core.rates import tidy
from isotherm.core.records import Direction, Precision, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.core.temperature import effective_learning_rate as effective

TuneOn = Literal["validation", "test", "train"]
TuneQuantity = Literal["metric", "loss"]
ExtendFor = Literal["tuned", "tuned_and_train"]
Resolution = Literal["adaptive", "paper"]

# Neighbouring learning rates this close or closer are not refined further.
SMALLEST_RATIO = 2.0**0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class GridAxes:
    """What the runs of a grid share: a grid is all learning rates at one batch size, budget and optimiser.

    Without an `optimizer` that is heavy ball, or plain SGD, with `momentum`. It is the optimiser as it was given: betas
    may depend on the batch size.
    """

    batch_size: int
    budget: Budget
    momentum: float
    optimizer: Optimizer | None = None

    @property
    def method(self) -> Optimizer:
        """The optimiser, heavy ball included."""
        return self.optimizer or SGD(momentum=self.momentum)

    @property
    def method_name(self) -> float | str:
        """The momentum of heavy ball, or the label of another optimiser."""
        return self.momentum if self.optimizer is None else self.optimizer.label

    def __str__(self) -> str:
        words = f"m={self.momentum:g}" if self.optimizer is None else self.optimizer.label
        return f"B={self.batch_size}, {self.budget}, {words}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """A sweep as plain values: what a store keeps and the protocol works on."""

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
    resolution: Resolution = "paper"
    smallest_ratio: float = SMALLEST_RATIO
    num_confirm: int = 0
    metric_bounds: tuple[float, float] | None = None
    final_learning_rates: tuple[float, ...] = ()
    until: Until | None = None
    estimate_at: Budget | None = None
    optimizers: tuple[Optimizer, ...] = ()
    rates_are_bare: bool = False

    @property
    def methods(self) -> tuple[Optimizer, ...]:
        """The optimisers, heavy ball included."""
        return self.optimizers or tuple(SGD(momentum=momentum) for momentum in self.momenta)

    @property
    def has_temperature(self) -> bool:
        """Whether learning rates are effective ones, and T = ε_eff / B means something; else they are the bare ones."""
        return all(map(has_temperature, self.methods))

    @property
    def objective(self) -> str:
        """The quantity of a run by which learning rates are compared; on training data, what SGD minimises."""
        return "train_objective" if self.tune_on == "train" else f"{self.tune_on}_{self.tune_quantity}"

    @property
    def direction(self) -> Direction:
        """Which way the objective improves."""
        return self.metric_direction if self.objective.endswith("_metric") else Direction.MINIMISE

    @property
    def confirming_seeds(self) -> tuple[int, ...]:
        """The seeds after those by which learning rates are chosen; they run at the chosen one alone."""
        first = max(self.seeds) + 1
        return tuple(range(first, first + self.num_confirm))

    def grids(self) -> list[GridAxes]:
        """Return the axes of every grid that there may be: budgets, then optimisers, then batch sizes."""
        methods = [
            *((momentum, None) for momentum in self.momenta),
            *((_momentum(optimizer), optimizer) for optimizer in self.optimizers),
        ]
        return [
            GridAxes(batch_size=batch_size, budget=budget, momentum=momentum, optimizer=optimizer)
            for budget in self.budgets
            for momentum, optimizer in methods
            for batch_size in self.batch_sizes
        ]

    def estimating_axes(self, axes: GridAxes) -> GridAxes | None:
        """Return the grid at the smaller budget by which a grid is estimated; None where there is no such budget."""
        return None if self.estimate_at is None else dataclasses.replace(axes, budget=self.estimate_at)

    def at(self, axes: GridAxes) -> SweepPlan:
        """Return the protocol of a grid: the sweep's, or without refinement and confirmation if it only estimates."""
        if axes.budget != self.estimate_at:
            return self
        return dataclasses.replace(self, resolution="paper", num_confirm=0)

    def base_learning_rates(self, axes: GridAxes) -> tuple[float, ...]:
        """Return the learning rates of a grid before any extension or refinement."""
        rates = self.learning_rates[self.batch_sizes.index(axes.batch_size)]
        if not self.rates_are_bare or axes.momentum == 0:
            return rates
        return tuple(tidy(effective(rate, momentum=axes.momentum)) for rate in rates)

    def run_spec(
        self, axes: GridAxes, *, effective_learning_rate: float, seed: int, final_learning_rate: float | None = None
    ) -> RunSpec:
        """Return one run of a grid; its schedule is the sweep's, or ends at the final learning rate."""
        schedule = self.schedule if final_learning_rate is None else self.schedule.ending(final_learning_rate)
        num_steps = self.num_steps(axes)
        gamma, rest = schedule.of_run(num_steps=num_steps, initial=effective_learning_rate)
        return RunSpec(
            task=self.task,
            data_id=self.data_id,
            model_id=self.model_id,
            batch_size=axes.batch_size,
            num_steps=num_steps,
            effective_learning_rate=effective_learning_rate,
            momentum=axes.momentum,
            gamma=gamma,
            l2=self.l2,
            l2_scope=self.l2_scope,
            precision=self.precision,
            num_evaluations=self.num_evaluations,
            seed=seed,
            clip_norm=self.clip_norm,
            schedule=rest,
            optimizer=None if axes.optimizer is None else axes.optimizer.at(axes.batch_size),
        )

    def num_steps(self, axes: GridAxes) -> int:
        """Return the number of updates of a grid's runs."""
        return axes.budget.num_steps(num_train=self.num_train, batch_size=axes.batch_size, unroll=self.unroll)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON; of optimisers and their learning rates only what is used."""
        content = dataclasses.asdict(self)
        content["optimizers"] = [optimizer_json(optimizer) for optimizer in self.optimizers]
        return {k: v for k, v in content.items() if v or k not in ("optimizers", "rates_are_bare")}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the plan that `to_json` wrote.

        The first stores had no `extend_for`. Before grids were refined, all were "paper" without saying so, had no
        confirming seeds, and accuracies no bounds.
        """
        fields = {"extend_for": "tuned", **content}
        bounds = fields.get("metric_bounds", (0.0, 1.0) if content["metric"] == "accuracy" else None)
        fields["metric_bounds"] = None if bounds is None else tuple(bounds)
        fields["budgets"] = tuple(map(_budget, fields["budgets"]))
        fields["estimate_at"] = None if fields.get("estimate_at") is None else _budget(fields["estimate_at"])
        fields["until"] = None if fields.get("until") is None else Until(**fields["until"])
        fields["schedule"] = Schedule.from_json(fields["schedule"])
        fields["optimizers"] = tuple(map(optimizer_of, fields.get("optimizers", ())))
        fields["metric_direction"] = Direction(fields["metric_direction"])
        fields["learning_rates"] = tuple(tuple(values) for values in fields["learning_rates"])
        for name in ("batch_sizes", "momenta", "seeds", "final_learning_rates"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)


def _momentum(optimizer: Optimizer) -> float:
    """Return the momentum that makes a learning rate an effective one."""
    return optimizer.momentum if isinstance(optimizer, SGD) else 0.0


def _budget(content: dict[str, Any]) -> Budget:
    return Budget(unit=BudgetUnit(content["unit"]), amount=content["amount"])


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyPlan:
    """A study as plain values: what a store keeps."""

    name: str
    question: str
    sweeps: tuple[SweepPlan, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "question": self.question,
            "sweeps": [plan.to_json() for plan in self.sweeps],
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return the plan that `to_json` wrote."""
        sweeps = tuple(SweepPlan.from_json(plan) for plan in content["sweeps"])
        return cls(name=content["name"], question=content["question"], sweeps=sweeps)
