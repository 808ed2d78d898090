"""A study is named sweeps with a question, run into one store."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Self

from isotherm.core.checks import require_name
from isotherm.core.one_screen import one_screen
from isotherm.core.records import Identity
from isotherm.errors import UserError
from isotherm.sweep.plan import Resolution, StudyPlan
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """Named sweeps with a question."""

    name: str
    sweeps: tuple[Sweep, ...]
    question: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"\w[\w.\- ]*", self.name):
            raise UserError(
                f"study name {self.name!r}: use letters, digits, spaces, '.', '_' and '-', a letter or digit first; "
                "it names files"
            )
        require_name("a study's name", self.name)
        if not isinstance(self.sweeps, tuple | list):
            raise UserError(
                f"study {self.name!r}: sweeps is {type(self.sweeps).__name__}; give a list, e.g. sweeps=[sweep]"
            )
        if not self.sweeps:
            raise UserError(f"study {self.name!r} has no sweeps; give at least one")
        for sweep in self.sweeps:
            if not isinstance(sweep, Sweep):
                raise UserError(f"study {self.name!r}: sweeps holds {a_sweep_instead_of(sweep)}")

    def __repr__(self) -> str:
        question = f", question={self.question!r}" if self.question else ""
        return one_screen([f"Study(name={self.name!r}{question}), sweeps:", *(f"  {sweep!r}" for sweep in self.sweeps)])

    @classmethod
    def of(cls, sweep: Sweep) -> Self:
        """Return the study of a single sweep."""
        if not isinstance(sweep, Sweep):
            raise UserError(f"sweep is {a_sweep_instead_of(sweep)}")
        return cls(name=sweep.name, sweeps=(sweep,))

    def with_resolution(self, resolution: Resolution) -> Self:
        """Return the study with all its sweeps refined around their optima, or none."""
        sweeps = tuple(dataclasses.replace(sweep, resolution=resolution) for sweep in self.sweeps)
        return dataclasses.replace(self, sweeps=sweeps)

    def plan(self) -> StudyPlan:
        """Return the study without tensors."""
        return self.prepare().plan

    def prepare(self) -> PreparedStudy:
        """Return the study with every task identified, from data and models as they are now."""
        prepared: dict[tuple[int, float | None], tuple[Task, Identity]] = {}
        plans = []
        for sweep in self.sweeps:
            wanted = id(sweep.task), sweep.validation_fraction if sweep.tune_on == "validation" else None
            if wanted not in prepared:
                task = sweep.prepared_task
                prepared[wanted] = task, task.identify()
            plans.append(sweep.plan_of(*prepared[wanted]))
        return PreparedStudy(
            plan=StudyPlan(name=self.name, question=self.question, sweeps=tuple(plans)),
            tasks={identity.ids: task for task, identity in prepared.values()},
            identities={identity.ids: identity for _, identity in prepared.values()},
        )


def a_sweep_instead_of(given: object) -> str:
    """Return what was given where a sweep is asked for, and what to do."""
    if isinstance(given, Task):
        return (
            "a Task; say what to try on it: isotherm.Sweep(task=task, batch_sizes=[8, 16], "
            "effective_learning_rates=isotherm.powers_of_two(-4, 2), budget=isotherm.Budget.epochs(10))"
        )
    if isinstance(given, Study):
        return "a Study; run it with isotherm.run_study(study)"
    return f"{type(given).__name__}; give an isotherm.Sweep"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedStudy:
    """A study's plan, with its tasks and what identifies them by (data_id, model_id)."""

    plan: StudyPlan
    tasks: dict[tuple[str, str], Task]
    identities: dict[tuple[str, str], Identity]
