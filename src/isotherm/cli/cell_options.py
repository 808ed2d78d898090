"""The options of one cell, and the settings they stand for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from isotherm.cli.schedule_options import ScheduleOptions
from isotherm.core.budget import Budget
from isotherm.core.optimizers import SGD, Optimizer, optimizer_of
from isotherm.core.rates import tidy
from isotherm.core.schedule import Schedule
from isotherm.core.temperature import effective_learning_rate
from isotherm.errors import UserError

PANEL = "One cell instead of a study"
NUM_EVALUATIONS, MOMENTUM = 10, 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSettings:
    """How a cell is trained.

    Args:
        batch_size: examples, or streams of text, per update.
        effective_learning_rate: ε_eff = ε / (1 - m); or, in its place,
        learning_rate: the optimiser's own ε.
        budget: how long.
        momentum: heavy-ball momentum; 0 is plain SGD; by default 0.9.
        optimizer: in place of heavy ball.
        num_seeds: how many runs.
        first_seed: seeds are first_seed .. first_seed + num_seeds - 1.
        l2: coefficient of the penalty; None, here and for the next two, is the task's own.
        clip_norm: largest norm of the gradient; inf clips nothing.
        precision: float32, float64, tf32 or mixed; a mixed-precision task is trained in float32 on a CPU unless it is
            given.
        num_evaluations: evaluations on the test set during training.
        schedule: of the learning rate.
    """

    batch_size: int
    budget: Budget
    effective_learning_rate: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    optimizer: Optimizer | None = None
    num_seeds: int = 1
    first_seed: int = 0
    l2: float | None = None
    clip_norm: float | None = None
    precision: str | None = None
    num_evaluations: int = NUM_EVALUATIONS
    schedule: Schedule = field(default_factory=Schedule)


def _option(*names: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=PANEL)


@dataclass(frozen=True, kw_only=True, slots=True)
class CellOptions:
    """The options of one cell as given: None is left out, and the defaults are those of `CellSettings`."""

    task: Annotated[
        str | None, _option("--task", metavar="NAME", text="Train this task: a built-in one, or module:function.")
    ] = None
    batch_size: Annotated[
        int | None,
        _option("--batch-size", metavar="B", text="Batch size; for a language model, the number of streams."),
    ] = None
    learning_rate: Annotated[
        float | None,
        _option("--learning-rate", metavar="RATE", text="Learning rate ε as an optimiser gets it."),
    ] = None
    effective_learning_rate: Annotated[
        float | None,
        _option("--effective-learning-rate", metavar="RATE", text="The same as ε / (1 - momentum); give one of both."),
    ] = None
    steps: Annotated[int | None, _option("--steps", metavar="N", text="Number of updates; or give --epochs.")] = None
    epochs: Annotated[float | None, _option("--epochs", metavar="N", text="Number of epochs; or give --steps.")] = None
    momentum: Annotated[
        float | None, _option("--momentum", metavar="M", text="Heavy-ball momentum; default: 0.9; 0 is plain SGD.")
    ] = None
    optimizer: Annotated[
        str | None,
        _option("--optimizer", metavar="NAME", text="Optimizer: sgd, adam, adamw or muon; default: sgd."),
    ] = None
    optimizer_option: Annotated[
        list[str] | None,
        _option(
            "--optimizer-option",
            metavar="NAME=VALUE",
            text="Set an option of the optimizer, e.g. weight_decay=0.1; repeatable.",
        ),
    ] = None
    num_seeds: Annotated[
        int | None,
        _option(
            "--seeds",
            metavar="N",
            text="Number of runs; default: 1. Of a study: runs per learning rate; default: its own.",
        ),
    ] = None
    first_seed: Annotated[
        int | None, _option("--first-seed", metavar="SEED", text="Seed of the first run; default: 0.")
    ] = None
    l2: Annotated[
        float | None,
        _option("--l2", metavar="LAMBDA", text="L2 coefficient λ of (λ/2)‖w‖²; defaults to the task's value."),
    ] = None
    clip_norm: Annotated[
        float | None,
        _option(
            "--clip-norm",
            metavar="NORM",
            text="Clip the gradient to this norm; defaults to the task's value; 'inf' for no clipping.",
        ),
    ] = None
    precision: Annotated[
        str | None,
        _option(
            "--precision",
            metavar="NAME",
            text="Train in float32, float64, mixed or, on a GPU, tf32; defaults to the task's value.",
        ),
    ] = None
    num_evaluations: Annotated[
        int | None, _option("--evaluations", metavar="N", text="Test-set evaluations during training; default: 10.")
    ] = None
    model: Annotated[
        list[str] | None,
        _option("--model", metavar="NAME=VALUE", text="Set an argument of the task's model; repeatable."),
    ] = None
    transform: Annotated[
        list[str] | None,
        _option("--transform", metavar="NAME=VALUE", text="Set a field of the task's augmentation; repeatable."),
    ] = None
    schedule_options: ScheduleOptions = field(default_factory=ScheduleOptions)

    def given(self) -> list[str]:
        """Return the options that were given, --task aside, as they are written."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("task", "schedule_options")]
        own = [_written(name) for name in names if getattr(self, name) not in (None, [])]
        return own + self.schedule_options.given()

    def check(self) -> None:
        """Refuse what is not a whole cell."""
        if self.batch_size is None:
            raise UserError("--task needs --batch-size; add it, e.g. --batch-size 64")
        require_one_rate(self.learning_rate, self.effective_learning_rate, needed_by="--task")
        if self.optimizer is None and self.optimizer_option:
            raise UserError("--optimizer-option needs --optimizer; add it, e.g. --optimizer adamw")
        if (self.steps is None) == (self.epochs is None):
            what = "neither is given" if self.steps is None else "both are given"
            raise UserError(f"--task needs --steps or --epochs, and {what}; give exactly one")

    def settings(self) -> CellSettings:
        """Return how the cell is trained; what was left out has its default."""
        assert self.batch_size is not None
        if self.steps is not None:
            budget = Budget.steps(self.steps)
        else:
            assert self.epochs is not None
            budget = Budget.epochs(self.epochs)
        optional = ("momentum", "num_seeds", "first_seed", "l2", "clip_norm", "precision", "num_evaluations")
        given: dict[str, Any] = {name: value for name in optional if (value := getattr(self, name)) is not None}
        return CellSettings(
            batch_size=self.batch_size,
            **self._rates(),
            budget=budget,
            schedule=self.schedule_options.made(),
            **given,
        )

    def _rates(self) -> dict[str, Any]:
        """Return learning rate and optimiser; of SGD the effective learning rate, however it was given."""
        if self.optimizer is None:
            return {"effective_learning_rate": self._effective(MOMENTUM if self.momentum is None else self.momentum)}
        options = parsed_values(self.optimizer_option or (), "--optimizer-option", example="weight_decay=0.1")
        made = optimizer_of({**options, "name": self.optimizer})
        if isinstance(made, SGD):
            return {"effective_learning_rate": self._effective(made.momentum), "optimizer": made}
        if self.effective_learning_rate is not None:
            raise UserError(
                f"{made.title} has no effective learning rate: ε / (1 - momentum) is of SGD; give --learning-rate "
                f"{self.effective_learning_rate:g} in place of --effective-learning-rate"
            )
        return {"learning_rate": self.learning_rate, "optimizer": made}

    def _effective(self, momentum: float) -> float:
        if self.effective_learning_rate is not None:
            return self.effective_learning_rate
        assert self.learning_rate is not None
        if not 0 <= momentum < 1:  # a sweep says why
            return self.learning_rate
        return tidy(effective_learning_rate(self.learning_rate, momentum=momentum))

    def task_options(self) -> dict[str, dict[str, bool | int | float | str]]:
        """Return what changes the task itself: arguments of its model and fields of its augmentation."""
        return {name: parsed_values(getattr(self, name) or (), _written(name)) for name in ("model", "transform")}


def require_one_rate(rate: float | None, effective: float | None, *, needed_by: str | None = None) -> None:
    """Refuse both learning rates, and none where one is needed."""
    if rate is not None and effective is not None:
        raise UserError(
            "--learning-rate and --effective-learning-rate are both given; one follows from the other and the "
            "momentum: leave one out"
        )
    if needed_by is not None and rate is None and effective is None:
        raise UserError(
            f"{needed_by} needs --learning-rate or --effective-learning-rate; add e.g. --learning-rate 0.05"
        )


def _written(name: str) -> str:
    return "--" + name.removeprefix("num_").replace("_", "-")


def parsed_values(
    given: Iterable[str], option: str, *, example: str = "drop_probability=0.5"
) -> dict[str, bool | int | float | str]:
    """Return what NAME=VALUE stands for; a value that is a number or a truth value becomes one.

    >>> parsed_values(["drop_probability=0.5", "depth=22", "padding=zero", "flip=false"], "--model")
    {'drop_probability': 0.5, 'depth': 22, 'padding': 'zero', 'flip': False}
    """
    found: dict[str, bool | int | float | str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UserError(f"{option} {text!r} is not NAME=VALUE; write e.g. {option} {example}")
        found[name] = _number_or_text(value)
    return found


def _number_or_text(value: str) -> bool | int | float | str:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value
