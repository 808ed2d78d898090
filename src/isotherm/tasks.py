"""A task is what is trained: model builder, data, loss and metric. By name, or the user's own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm import identity
from isotherm.data import mnist1d
from isotherm.errors import UserError, nearest
from isotherm.models import MODELS
from isotherm.records import Direction
from isotherm.seeding import initial_model

Split = tuple[Tensor, Tensor]
LossFunction = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy of logits (batch, classes) against labels (batch,)."""
    return -functional.log_softmax(output, dim=-1).gather(-1, target.unsqueeze(-1)).mean()


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error averaged over examples and outputs."""
    return (output - target).square().mean()


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of examples whose largest logit is the label."""
    return (output.argmax(dim=-1) == target).to(output.dtype).mean()


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A mean over examples, (output, target) -> scalar, and which way it improves."""

    name: str
    function: LossFunction
    direction: Direction

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not callable(self.function):
            raise UserError(f"a metric needs a name and a function (output, target) -> mean, not {self.name!r}")
        try:
            object.__setattr__(self, "direction", Direction(self.direction))
        except ValueError as error:
            ways = " or ".join(repr(str(way)) for way in Direction)
            raise UserError(f"metric {self.name!r}: direction {self.direction!r} is unknown; use {ways}") from error


LOSSES: dict[str, LossFunction] = {"cross_entropy": cross_entropy, "mean_squared_error": mean_squared_error}
METRICS: dict[str, Metric] = {
    "accuracy": Metric(name="accuracy", function=accuracy, direction=Direction.MAXIMISE),
    "mean_squared_error": Metric(name="mean_squared_error", function=mean_squared_error, direction=Direction.MINIMISE),
    "cross_entropy": Metric(name="cross_entropy", function=cross_entropy, direction=Direction.MINIMISE),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What is trained: a builder of plain `nn.Module`s, the data, the loss and the metric.

    Args:
        name: for people; results are kept under the content of the task, not under its name.
        model: called without arguments, returns a fresh module; it needs no knowledge of fleets.
        train: inputs and targets, tensors or arrays of equal length.
        test: the same, never trained on.
        loss: a name from `LOSSES`, or a function (output, target) -> mean over the batch.
        metric: a name from `METRICS`, or a `Metric`; by default accuracy for cross entropy, else the loss itself.
        validation: the same as `test`, for choosing the learning rate. Without one, a sweep that tunes on
            validation data holds out part of `train`.
        version: change it when something changes that `identity.model_id` does not see: another release of a library,
            the state of a global object.
    """

    name: str
    model: Callable[[], nn.Module]
    train: Split
    test: Split
    loss: str | LossFunction = "cross_entropy"
    metric: str | Metric | None = None
    validation: Split | None = None
    version: str = ""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise UserError(f"a task's name is a non-empty string, not {self.name!r}")
        if not callable(self.model) or isinstance(self.model, nn.Module):
            kind = "a module" if isinstance(self.model, nn.Module) else type(self.model).__name__
            raise UserError(
                f"task {self.name!r}: model must be a function that builds a fresh module, not {kind}; "
                "every seed needs its own initialisation, so pass e.g. model=lambda: MyModule(...)"
            )
        _known(self.loss, LOSSES, what="loss", task=self.name)
        if self.metric is None:
            object.__setattr__(self, "metric", self._default_metric())
        _known(self.metric, METRICS, what="metric", task=self.name)
        for part in ("train", "test", "validation"):
            if part != "validation" or self.validation is not None:
                object.__setattr__(self, part, self._checked_split(part))
        for place, what in enumerate(("examples", "targets")):
            shapes = {part: tuple(split[place].shape[1:]) for part, split in self.splits.items()}
            if len(set(shapes.values())) > 1:
                raise UserError(f"task {self.name!r}: {what} differ in shape between splits: {shapes}; make them equal")

    @property
    def splits(self) -> dict[str, Split]:
        """The splits there are, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    @property
    def num_train(self) -> int:
        """How many training examples there are."""
        return len(self.train[0])

    @property
    def loss_function(self) -> LossFunction:
        """The loss as a function."""
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss

    @property
    def metric_definition(self) -> Metric:
        """The metric as a function with its direction."""
        assert self.metric is not None  # set when the task was made
        return METRICS[self.metric] if isinstance(self.metric, str) else self.metric

    def _default_metric(self) -> str | Metric:
        if isinstance(self.loss, str):
            return "accuracy" if self.loss == "cross_entropy" else self.loss
        return Metric(name="loss", function=self.loss, direction=Direction.MINIMISE)

    @cached_property
    def _held_out(self) -> dict[float, Task]:
        return {}

    @cached_property
    def data_id(self) -> str:
        """The content hash of all splits."""
        return identity.data_id(self.splits)

    @cached_property
    def model_id(self) -> str:
        """The content hash of builder, module, loss and metric."""
        return identity.model_id(
            self.model, loss=self.loss_function, metric=self.metric_definition.function, version=self.version
        )

    def with_validation(self, fraction: float) -> Task:
        """Return the task with that part of the training set held out, always the same examples."""
        if self.validation is not None:
            return self
        if fraction in self._held_out:
            return self._held_out[fraction]
        num_held = round(self.num_train * fraction)
        if not 0 < num_held < self.num_train:
            raise UserError(
                f"task {self.name!r}: validation_fraction={fraction} of {self.num_train} training examples holds out "
                f"{num_held}; choose a fraction that leaves examples on both sides, or tune_on='test'"
            )
        order = torch.randperm(self.num_train, generator=torch.Generator().manual_seed(0))
        held, kept = order[:num_held].sort().values, order[num_held:].sort().values
        x, y = self.train
        self._held_out[fraction] = dataclasses.replace(self, train=(x[kept], y[kept]), validation=(x[held], y[held]))
        return self._held_out[fraction]

    def _checked_split(self, part: str) -> Split:
        where = f"task {self.name!r}, {part} data"
        pair = getattr(self, part)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UserError(f"{where}: expected a pair (inputs, targets), got {type(pair).__name__}")
        inputs, targets = (_as_tensor(value, where) for value in pair)
        if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
            raise UserError(
                f"{where}: inputs of shape {tuple(inputs.shape)} and targets of shape {tuple(targets.shape)} "
                "differ in length; the first dimension of both counts the examples"
            )
        if len(inputs) == 0:
            raise UserError(f"{where}: it is empty; give at least one example")
        _refuse_non_finite(inputs, f"{where}, inputs")
        _refuse_non_finite(targets, f"{where}, targets")
        if self.loss == "cross_entropy":
            targets = _checked_labels(targets, where)
        return inputs, targets


def check_model(task: Task) -> None:
    """Build the model once, run it on a few examples, and refuse what could not be trained.

    Raises:
        UserError: the builder or the module raises, there is nothing to train, or output and loss do not fit.
    """
    x, y = (tensor[:4] for tensor in task.train)
    where = f"task {task.name!r}"
    try:
        module = initial_model(task.model, seed=0)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where}: building the model raised {type(error).__name__}: {error}") from error
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"{where}: the model has no trainable parameters; nothing could be learned")
    module.eval()
    try:
        with torch.no_grad():
            output = module(x.float() if x.is_floating_point() else x)
    except Exception as error:
        raise UserError(
            f"{where}: the model cannot take inputs of shape {tuple(x.shape)} and type {x.dtype}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise UserError(f"{where}: the model returns {type(output).__name__}; it must return one tensor")
    _check_output(task, output, y)


def _check_output(task: Task, output: Tensor, target: Tensor) -> None:
    where = f"task {task.name!r}"
    if task.loss == "cross_entropy":
        if output.ndim != 2 or len(output) != len(target):
            raise UserError(
                f"{where}: cross_entropy needs logits of shape (batch, classes), the model gives {tuple(output.shape)} "
                f"for {len(target)} examples; end the model in a linear layer with one output per class"
            )
        largest = max(int(labels.max()) for _, labels in task.splits.values())
        if largest >= output.shape[1]:
            raise UserError(
                f"{where}: label {largest} is out of range for a model with {output.shape[1]} outputs; "
                f"labels run from 0 to {output.shape[1] - 1}: renumber them or widen the last layer"
            )
    elif task.loss == "mean_squared_error" and output.shape != target.shape:
        raise UserError(
            f"{where}: mean_squared_error needs outputs shaped like the targets, the model gives {tuple(output.shape)} "
            f"for targets {tuple(target.shape)}; reshape one of them"
        )
    if task.metric == "accuracy" and (target.is_floating_point() or target.shape != output.shape[:-1]):
        raise UserError(
            f"{where}: accuracy needs class labels of shape {tuple(output.shape[:-1])}, the targets are {target.dtype} "
            f"of shape {tuple(target.shape)}; choose another metric, e.g. 'mean_squared_error'"
        )
    if target.is_floating_point():
        target = target.to(output.dtype)
    for what, function in (("loss", task.loss_function), ("metric", task.metric_definition.function)):
        try:
            value = function(output, target)
        except Exception as error:
            raise UserError(
                f"{where}: the {what} cannot take outputs of shape {tuple(output.shape)} with targets of shape "
                f"{tuple(target.shape)}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(value, Tensor) or value.ndim != 0:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{where}: the {what} must return a scalar tensor, the mean over the batch, not {shape}")
        if what == "loss" and not math.isfinite(float(value.detach())):
            raise UserError(
                f"{where}: the loss of the untrained model is {float(value.detach())}; check the initialisation and "
                "the scale of the inputs"
            )


def _known(value: Any, table: dict[str, Any], *, what: str, task: str) -> None:
    if isinstance(value, str) and value not in table:
        raise UserError(f"task {task!r}: unknown {what} {value!r}; {nearest(value, table)}; or pass your own")
    if not isinstance(value, str) and not (callable(value) if what == "loss" else isinstance(value, Metric)):
        raise UserError(f"task {task!r}: {what} is {type(value).__name__}; give a name or {_EXPECTED[what]}")


_EXPECTED = {"loss": "a function (output, target) -> mean", "metric": "an isotherm.Metric"}


def _as_tensor(value: Any, where: str) -> Tensor:
    try:
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()  # torch cannot share it
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{where}: {type(value).__name__} is neither a tensor nor an array: {error}") from error


def _refuse_non_finite(tensor: Tensor, where: str) -> None:
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        bad = (~torch.isfinite(tensor)).nonzero()[0].tolist()
        value = float(tensor[tuple(bad)])
        raise UserError(f"{where}: the value at index {bad} is {value}; remove or replace it before training")


def _checked_labels(labels: Tensor, where: str) -> Tensor:
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool or labels.ndim != 1:
        raise UserError(
            f"{where}: cross_entropy needs whole-number labels of shape (n,), got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; use class numbers, e.g. y.long()"
        )
    labels = labels.long()
    if int(labels.min()) < 0:
        index = int(labels.argmin())
        raise UserError(f"{where}: the label at index {index} is {int(labels[index])}; labels start at 0")
    return labels


def _mlp_mnist1d() -> Task:
    train, test = mnist1d.load()
    return Task(name="mlp_mnist1d", model=MODELS["mlp_40_100_100_10"], train=train, test=test)


TASKS: dict[str, Callable[[], Task]] = {"mlp_mnist1d": _mlp_mnist1d}


def get_task(name: str) -> Task:
    """Return a built-in task by name."""
    if name not in TASKS:
        raise UserError(
            f"unknown task {name!r}; {nearest(name, TASKS)}; or 'module:function' returning an isotherm.Task"
        )
    return TASKS[name]()
