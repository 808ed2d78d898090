"""A task is what is trained: model builder, data, loss and metric."""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.core.l2 import L2Scope
from isotherm.core.records import Direction, Precision
from isotherm.data.augment import Transform
from isotherm.errors import UserError, nearest
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks import identity
from isotherm.tasks.seeding import initial_model


@runtime_checkable
class LazyInputs(Protocol):
    """Inputs that are read when a batch needs them: too large for memory, on disk."""

    @property
    def shape(self) -> torch.Size:
        """All inputs' shape, as a tensor would have it."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of what `fetch` gives."""

    def __len__(self) -> int: ...

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
        """Return some inputs on the CPU; with a seed, augmented as that run sees them at that update."""

    def identity(self) -> str:
        """Return a hash of what there is to read."""


Inputs = Tensor | LazyInputs
Split = tuple[Inputs, Tensor]
LossFunction = Callable[[Tensor, Tensor], Tensor]
NormStatistics = Literal["reestimated", "running"]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy of logits (batch, ..., classes) against labels (batch, ...)."""
    return -functional.log_softmax(output, dim=-1).gather(-1, target.unsqueeze(-1)).mean()


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error averaged over examples and outputs."""
    return (output - target).square().mean()


def half_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return half the squared error, summed over each example's outputs and averaged over examples."""
    return 0.5 * squared_error(output, target)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error, summed over each example's outputs and averaged over examples."""
    return (output - target).square().flatten(1).sum(dim=1).mean()


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of examples whose largest logit is the label."""
    return (output.argmax(dim=-1) == target).to(output.dtype).mean()


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A mean over examples, (output, target) -> scalar, and which way it improves.

    With `exponential` the metric is the exponential of that mean: perplexity is that of the cross entropy.
    """

    name: str
    function: LossFunction
    direction: Direction
    exponential: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not callable(self.function):
            raise UserError(f"a metric needs a name and a function (output, target) -> mean, not {self.name!r}")
        try:
            object.__setattr__(self, "direction", Direction(self.direction))
        except ValueError as error:
            ways = " or ".join(repr(str(way)) for way in Direction)
            raise UserError(f"metric {self.name!r}: direction {self.direction!r} is unknown; use {ways}") from error


LOSSES: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
    "half_squared_error": half_squared_error,
}
METRICS: dict[str, Metric] = {
    "accuracy": Metric(name="accuracy", function=accuracy, direction=Direction.MAXIMISE),
    "mean_squared_error": Metric(name="mean_squared_error", function=mean_squared_error, direction=Direction.MINIMISE),
    "squared_error": Metric(name="squared_error", function=squared_error, direction=Direction.MINIMISE),
    "cross_entropy": Metric(name="cross_entropy", function=cross_entropy, direction=Direction.MINIMISE),
    "perplexity": Metric(name="perplexity", function=cross_entropy, direction=Direction.MINIMISE, exponential=True),
}
# What a loss is judged by where nothing else is said; other losses by themselves.
_DEFAULT_METRICS = {"cross_entropy": "accuracy", "half_squared_error": "squared_error"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What is trained: a builder of plain `nn.Module`s, the data, the loss and the metric.

    Args:
        name: for people; results are kept under the content of the task, not under its name.
        model: called without arguments, returns a fresh module; it needs no knowledge of fleets.
        train: inputs and targets, tensors or arrays of equal length; inputs may also be `LazyInputs`.
        test: the same, never trained on.
        loss: a name from `LOSSES`, or a function (output, target) -> mean over the batch.
        metric: a name from `METRICS`, or a `Metric`; by default accuracy for cross entropy, else the loss itself.
        validation: the same as `test`, for choosing the learning rate. Without one, a sweep that tunes on
            validation data holds out part of `train`.
        transform: what happens to a batch of inputs between storage and model: augmentation, normalisation.
        unroll: for sequences. Inputs and targets are then one long sequence of tokens and the tokens after them; a
            batch is that many parallel streams, an update reads this many tokens of each, and the model's state is
            carried on. The loss of an update is summed over them and averaged over the streams.
        norm_statistics: with which statistics ghost batch norm is evaluated: "reestimated" over the training set with
            the weights as they are, or the "running" averages of training.
        l2: coefficient of the penalty that a sweep uses unless it says otherwise; so for the next three.
        l2_scope: what the penalty covers.
        clip_norm: the gradient's norm is cut to this, before momentum; None cuts nothing.
        precision: of the computation.
        version: change it when something changes that `identity.model_parts` does not see, such as
            another release of a library.
        notes: sentences about the data that whoever runs the task should see; no part of its identity.
    """

    name: str
    model: Callable[[], nn.Module]
    train: Split
    test: Split
    loss: str | LossFunction = "cross_entropy"
    metric: str | Metric | None = None
    validation: Split | None = None
    transform: Transform | None = None
    unroll: int | None = None
    norm_statistics: NormStatistics = "reestimated"
    l2: float = 0.0
    l2_scope: L2Scope = "weights"
    clip_norm: float | None = None
    precision: Precision = "float32"
    version: str = ""
    notes: tuple[str, ...] = ()

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
        self._check_settings()
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
            return _DEFAULT_METRICS.get(self.loss, self.loss)
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
        return identity.model_id(self.model_parts)

    @cached_property
    def model_parts(self) -> dict[str, str]:
        """The hash of each part of builder, module, loss and metric."""
        settings: dict[str, Any] = {}  # only what differs from the default, so that a new setting changes no old key
        if self.transform is not None:
            settings["transform"] = self.transform
        if self.unroll is not None:
            settings["unroll"] = self.unroll
        lazy = {part: type(split[0]) for part, split in self.splits.items() if not isinstance(split[0], Tensor)}
        if lazy:
            settings["lazy inputs"] = lazy  # how they are read and augmented
        if self.metric_definition.exponential:
            settings["exponential"] = True
        if self.norm_statistics != "reestimated":
            settings["norm_statistics"] = self.norm_statistics
        return identity.model_parts(
            self.model,
            loss=self.loss_function,
            metric=self.metric_definition.function,
            version=self.version,
            settings=settings,
        )

    def with_options(
        self, *, model: Mapping[str, Any] | None = None, transform: Mapping[str, Any] | None = None
    ) -> Task:
        """Return the task with other arguments of its model builder or fields of its transform, named after them.

        >>> from functools import partial
        >>> from isotherm.models.mlp import mlp
        >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
        >>> task = Task(name="mine", model=partial(mlp, widths=(2, 3, 2)), train=(x, y), test=(x, y))
        >>> len(list(task.with_options(model={"widths": (2, 5, 5, 2)}).model().parameters()))
        6
        """
        changed: dict[str, Any] = {}
        if model:
            _refuse_unknown(model, inspect.signature(self.model).parameters, f"task {self.name!r}: its model")
            changed["model"] = partial(self.model, **model)
        if transform:
            if not dataclasses.is_dataclass(self.transform):
                raise UserError(f"task {self.name!r} has no transform with fields to change; leave them out")
            known = {field.name for field in dataclasses.fields(self.transform)}
            _refuse_unknown(transform, known, f"task {self.name!r}: its transform")
            changed["transform"] = dataclasses.replace(self.transform, **transform)
        if changed:
            named = ", ".join(f"{name}={value}" for name, value in {**(model or {}), **(transform or {})}.items())
            changed["name"] = f"{self.name} ({named})"
        return dataclasses.replace(self, **changed)

    def with_validation(self, fraction: float) -> Task:
        """Return the task with that part of the training set held out, always the same examples."""
        if self.validation is not None:
            return self
        if fraction in self._held_out:
            return self._held_out[fraction]
        if self.unroll is not None or isinstance(self.train[0], LazyInputs):
            what = "a sequence" if self.unroll is not None else "a training set on disk"
            raise UserError(
                f"task {self.name!r}: no validation data can be held out of {what}; give the task its own, or tune "
                "on the test set with tune_on='test'"
            )
        num_held = round(self.num_train * fraction)
        if not 0 < num_held < self.num_train:
            raise UserError(
                f"task {self.name!r}: validation_fraction={fraction} of {self.num_train} training examples holds out "
                f"{num_held}; choose a fraction that leaves examples on both sides, or tune_on='test'"
            )
        order = torch.randperm(self.num_train, generator=torch.Generator().manual_seed(0))
        held, kept = order[:num_held].sort().values, order[num_held:].sort().values
        x, y = self.train
        assert isinstance(x, Tensor)
        self._held_out[fraction] = dataclasses.replace(self, train=(x[kept], y[kept]), validation=(x[held], y[held]))
        return self._held_out[fraction]

    def _checked_split(self, part: str) -> Split:
        where = f"task {self.name!r}, {part} data"
        pair = getattr(self, part)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UserError(f"{where}: expected a pair (inputs, targets), got {type(pair).__name__}")
        if isinstance(pair[0], LazyInputs) and not isinstance(pair[0], Tensor):
            return self._checked_lazy(pair[0], _as_tensor(pair[1], where), where)
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

    def _checked_lazy(self, inputs: LazyInputs, targets: Tensor, where: str) -> Split:
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise UserError(
                f"{where}: {len(inputs)} inputs and {len(targets)} targets; there must be as many, and at least one"
            )
        if self.loss == "cross_entropy":
            targets = _checked_labels(targets, where)
        return inputs, targets

    def _check_settings(self) -> None:
        where = f"task {self.name!r}"
        choices = {"l2_scope": L2Scope, "precision": Precision, "norm_statistics": NormStatistics}
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(map(repr, get_args(kind)))
                raise UserError(f"{where}: {name}={getattr(self, name)!r} is unknown; use one of {known}")
        if not _is_number(self.l2) or not math.isfinite(self.l2) or self.l2 < 0:
            raise UserError(f"{where}: l2={self.l2!r} is not a number >= 0; use 0 for no penalty")
        if self.clip_norm is not None and not (_is_number(self.clip_norm) and self.clip_norm > 0):
            raise UserError(f"{where}: clip_norm={self.clip_norm!r} is not above 0; use None to clip nothing")
        if self.unroll is None:
            return
        if isinstance(self.unroll, bool) or not isinstance(self.unroll, int) or self.unroll < 1:
            raise UserError(f"{where}: unroll={self.unroll!r} is not a whole number of at least 1; the paper uses 35")
        for part, (inputs, targets) in self.splits.items():
            if len(inputs.shape) != 1 or targets.ndim != 1 or inputs.dtype.is_floating_point:
                raise UserError(
                    f"{where}, {part} data: with unroll they are one sequence of whole numbers each, got shapes "
                    f"{tuple(inputs.shape)} and {tuple(targets.shape)}; use (tokens[:-1], tokens[1:])"
                )


def check_model(task: Task, batch_sizes: Iterable[int] = ()) -> None:
    """Build the model once, run it on a few examples, and refuse what could not be trained.

    Args:
        task: what is to be trained.
        batch_sizes: the sizes it is to be trained at; ghost batch norm does not take all.

    Raises:
        UserError: the builder or the module raises, there is nothing to train, or output and loss do not fit.
    """
    x, y = example_batch(task)
    where = f"task {task.name!r}"
    try:
        module = initial_model(task.model, seed=0)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where}: building the model raised {type(error).__name__}: {error}") from error
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"{where}: the model has no trainable parameters; nothing could be learned")
    _check_transform(task)
    for layer in (part for part in module.modules() if isinstance(part, GhostBatchNorm2d)):
        for batch_size in batch_sizes:
            layer.checked_ghost_size(batch_size)
    module.eval()
    try:
        with torch.no_grad():
            output = call_model(module, x, unroll=task.unroll)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:
        raise UserError(
            f"{where}: the model cannot take inputs of shape {tuple(x.shape)} and type {x.dtype}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise UserError(f"{where}: the model returns {type(output).__name__}; it must return one tensor")
    _check_output(task, output, y)


def _check_transform(task: Task) -> None:
    """Try the transform as training uses it, which evaluation does not."""
    if task.transform is None:
        return
    inputs = task.train[0]
    x = inputs[:4] if isinstance(inputs, Tensor) else inputs.fetch(np.arange(min(4, len(inputs))))
    try:
        task.transform.train(x, lambda shape: torch.zeros(shape, dtype=torch.int64))
    except UserError as error:
        raise UserError(f"task {task.name!r}: {error}") from error
    except Exception as error:
        raise UserError(
            f"task {task.name!r}: the transform cannot take inputs of shape {tuple(x.shape)} and type {x.dtype}: "
            f"{type(error).__name__}: {error}"
        ) from error


def example_batch(task: Task, num: int = 4) -> tuple[Tensor, Tensor]:
    """Return a few training examples as the model is evaluated on them, floats in float32."""
    inputs, targets = task.train
    if task.unroll is not None:
        order = torch.arange(num)[:, None] * task.unroll + torch.arange(task.unroll)
        index = order % task.num_train  # a short sequence is read again
        assert isinstance(inputs, Tensor)
        return inputs[index], targets[index]
    x = inputs[:num] if isinstance(inputs, Tensor) else inputs.fetch(np.arange(min(num, len(inputs))))
    y = targets[:num]
    if task.transform is not None:
        x, y = task.transform.evaluate(x), task.transform.targets(y)
    return x.float() if x.is_floating_point() else x, y.float() if y.is_floating_point() else y


def call_model(module: nn.Module, x: Tensor, *, unroll: int | None) -> Any:
    """Return the model's output; of a model with a state, from its initial one."""
    if unroll is None:
        return module(x)
    initial_state = getattr(module, "initial_state", None)
    if initial_state is None:
        raise UserError(
            "with unroll the model carries a state: it needs a method initial_state(batch_size) that returns a tensor, "
            "and forward(tokens, state) returns the output and the state after it"
        )
    return module(x, initial_state(len(x)))[0]


def _check_output(task: Task, output: Tensor, target: Tensor) -> None:
    where = f"task {task.name!r}"
    if task.loss == "cross_entropy":
        if output.ndim != target.ndim + 1 or output.shape[:-1] != target.shape:
            raise UserError(
                f"{where}: cross_entropy needs logits of shape (batch, classes), the model gives {tuple(output.shape)} "
                f"for {len(target)} examples; end the model in a linear layer with one output per class"
            )
        largest = max(int(labels.max()) for _, labels in task.splits.values())
        if largest >= output.shape[-1]:
            raise UserError(
                f"{where}: label {largest} is out of range for a model with {output.shape[-1]} outputs; "
                f"labels run from 0 to {output.shape[-1] - 1}: renumber them or widen the last layer"
            )
    elif task.loss in ("mean_squared_error", "half_squared_error") and output.shape != target.shape:
        raise UserError(
            f"{where}: {task.loss} needs outputs shaped like the targets, the model gives {tuple(output.shape)} "
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


def _refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise UserError(f"{what} takes no {name!r}; {nearest(name, known)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


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
