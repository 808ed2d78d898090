"""The intended training, and what the law of the short grids says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isotherm.core.budget import Budget, BudgetUnit
from isotherm.core.rates import tidy
from isotherm.core.schedule import Schedule
from isotherm.core.statistics import Interval
from isotherm.core.temperature import bare_learning_rate, effective_learning_rate
from isotherm.core.torch_code import torch_code
from isotherm.diagnose.answer import Training
from isotherm.diagnose.batch_sizes import intended_steps
from isotherm.diagnose.boundary import Line
from isotherm.diagnose.diagnosis import Choice, Isotherm
from isotherm.diagnose.explanations import is_known
from isotherm.diagnose.grids import GridSearch
from isotherm.diagnose.law import Law
from isotherm.diagnose.short_runs import ShortGridSpec, ShortRuns
from isotherm.diagnose.steps import enough_steps
from isotherm.errors import UserError
from isotherm.tasks.task import Task

Code = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Intended:
    """The training that will be done.

    Args:
        task: what is trained, with all its training data.
        budget: how long.
        schedule: of the learning rate.
    """

    task: Task
    budget: Budget
    schedule: Schedule = field(default_factory=Schedule)

    def steps(self, batch_size: int) -> int:
        """Return its updates at a batch size."""
        return intended_steps(self.task, self.budget, batch_size)

    def schedule_at(self, batch_size: int) -> Schedule:
        """Return the schedule that has, at any length, the form which it has at the intended one."""
        return self.schedule.refitted(self.steps(batch_size))

    def has_room(self, batch_size: int) -> bool:
        """Tell whether the warm-up fits into it at a batch size."""
        return self.schedule.fits(self.steps(batch_size))

    def check_room(self, batch_sizes: Sequence[int]) -> None:
        """Refuse a warm-up that does not fit at one of the batch sizes that will be tried."""
        for size in batch_sizes:
            try:
                self.schedule.check_length(self.steps(size))
            except UserError as error:
                raise error.within(f"task {self.task.name!r}, batch size {size}") from error

    def code(self, runs: ShortRuns, choices: Sequence[Choice], sizes: Mapping[float, int]) -> dict[float, Code]:
        """Return the lines of PyTorch for the recommended batch size of every momentum.

        Learning rates have three digits; their intervals are wider than that.
        """
        found: dict[float, Code] = {}
        for choice in choices:
            for momentum in (m for m, size in sizes.items() if size == choice.batch_size and m in choice.rates):
                rate = float(f"{bare_learning_rate(choice.rates[momentum].estimate, momentum=momentum):.3g}")
                spec = ShortGridSpec(
                    batch_size=choice.batch_size, momentum=momentum, num_steps=choice.num_steps, rates=(), num_seeds=1
                )
                run = runs.spec(spec, rate=tidy(effective_learning_rate(rate, momentum=momentum)), seed=0)
                found[momentum] = torch_code(run, unroll=self.task.unroll)
        return found

    def length(self, batch_size: float) -> float:
        """Return its training examples at a batch size."""
        if self.budget.unit is BudgetUnit.STEPS:
            return self.budget.amount * batch_size * (self.task.unroll or 1)
        return self.budget.amount * self.task.num_train

    def rate(self, law: Law, batch_size: float) -> Interval:
        """Return its best effective learning rate at a batch size."""
        return law.at(batch_size, self.length(batch_size))

    def isotherm(self, law: Law | None, searches: Sequence[GridSearch]) -> Isotherm:
        """Return the law at the intended length."""
        if law is None:
            return Isotherm(temperature=None, slope=None, batch_sizes=())
        middle = 2.0**law.log_size
        rate = self.rate(law, middle)
        rise = law.rise(middle, self.length(middle), self.length(2 * middle))
        return Isotherm(
            temperature=Interval(estimate=rate.estimate / middle, low=rate.low / middle, high=rate.high / middle),
            slope=law.slope,
            batch_sizes=law.batch_sizes,
            exponent=law.exponent,
            used_slope=round(rise.estimate, 9),  # 1 exactly where the law has this slope
            used_interval=rise if self.budget.unit is BudgetUnit.STEPS else law.slope,
            at_batch_size=middle,
            longest_part=max((s.spec.num_steps / self.steps(s.spec.batch_size) for s in searches), default=1.0),
            is_plateau=law.drop is None,
        )

    def line(self, law: Law | None, isotherm: Isotherm) -> Line | None:
        """Return the best learning rate as a function of the batch size; None if it is not known well enough."""
        if law is None or not is_known(isotherm, self.rate(law, isotherm.at_batch_size)):
            return None
        return lambda size: self.rate(law, size)

    def training(self, searches: Sequence[GridSearch], law: Law | None) -> Training:
        """Return its updates, and how few are enough by the short runs."""
        # What may be lost: as much as by a learning rate half an octave off.
        margin = 0.0 if law is None or law.drop is None else (law.drop.at(-0.5) + law.drop.at(0.5)) / 2
        return Training(
            num_train=self.task.num_train,
            intended_steps=self.steps,
            enough_steps=enough_steps(searches, margin=margin),
        )
