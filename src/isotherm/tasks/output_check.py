"""Do a model's outputs, the targets, the loss and the metric fit each other? Checked on a few examples."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from isotherm.errors import UserError
from isotherm.tasks.losses import (
    binary_cross_entropy,
    cross_entropy,
    half_squared_error,
    mean_squared_error,
    squared_error,
)
from isotherm.tasks.metrics import MetricFunction, accuracy
from isotherm.tasks.raised import raised
from isotherm.tasks.split_metrics import auc, macro_f1, r_squared
from isotherm.tasks.target_checks import is_one_hot
from isotherm.tasks.task import Task

_OF_CLASSES = (cross_entropy, accuracy)  # one logit per class, in the last dimension
_OF_EQUAL_SHAPES = (mean_squared_error, half_squared_error, squared_error, binary_cross_entropy, r_squared)
_OF_LABELS = (macro_f1, auc)  # one logit per class, or one per label


def check_output(task: Task, output: Tensor, target: Tensor) -> None:
    """Refuse outputs that loss or metric cannot take, and a loss or metric that returns no number.

    Args:
        task: what is to be trained.
        output: of the untrained model for a few examples.
        target: of the same examples.
    """
    if target.is_floating_point():
        target = target.to(output.dtype)
    metric = task.metric_definition
    loss_name = task.loss if isinstance(task.loss, str) else "the loss"
    _check_shapes(task, loss_name, task.loss_function, output, target)
    _check_shapes(task, f"metric {metric.name!r}", metric.function, output, target)
    loss = _value(task, "loss", task.loss_function, output, target)
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        raise UserError(
            f"task {task.name!r}: the loss must return a scalar tensor, the mean over the batch, not {_kind(loss)}; "
            "end it in .mean()"
        )
    if not math.isfinite(float(loss.detach())):
        raise UserError(
            f"task {task.name!r}: the loss of the untrained model is {float(loss.detach())}; check the initialisation "
            "and the scale of the inputs"
        )
    if metric.over == "examples":
        _check_mean_metric(task, _value(task, "metric", metric.function, output, target))
    if metric.function is auc:
        _check_two_classes(task)
    if metric.function is r_squared:
        _check_varying(task)


def check_split_metric(task: Task, output: Tensor, target: Tensor) -> None:
    """Refuse a metric over a split that cannot take some outputs, or returns no number for them."""
    value = _value(task, "metric", task.metric_definition.function, output, target)
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"task {task.name!r}: the metric must return one number, not {_kind(value)}; return a float"
        ) from error


def _check_shapes(task: Task, name: str, function: Any, output: Tensor, target: Tensor) -> None:
    if function in _OF_CLASSES or (function in _OF_LABELS and output.shape != target.shape):
        _check_logits(task, name, output, target)
        _check_range(task, output)
    if function is auc and output.shape != target.shape and output.shape[-1] != 2:
        raise UserError(
            f"task {task.name!r}: {name} is for two classes, the model has {output.shape[-1]} outputs; use metric='f1' "
            "or 'accuracy'"
        )
    if function in _OF_EQUAL_SHAPES and output.shape != target.shape:
        raise UserError(
            f"task {task.name!r}: {name} needs outputs shaped like the targets, the model gives {tuple(output.shape)} "
            f"for targets {tuple(target.shape)}; {_to_equal_shapes(output, target)}"
        )
    if _differ_by_one(output, target) or _differ_by_one(target, output):
        raise UserError(
            f"task {task.name!r}: outputs {tuple(output.shape)} with targets {tuple(target.shape)} would be broadcast "
            f"against each other by {name}; {_to_equal_shapes(output, target)}"
        )


def _check_logits(task: Task, name: str, output: Tensor, target: Tensor) -> None:
    """Refuse outputs that are not one logit per class, and targets that are no labels."""
    where = f"task {task.name!r}: {name}"
    if target.is_floating_point():
        raise UserError(
            f"{where} needs class labels, the targets are {target.dtype} of shape {tuple(target.shape)}; choose "
            "another metric, e.g. 'mse' or 'r2', or use class numbers and loss='cross_entropy'"
        )
    if output.shape[:-1] != target.shape or output.shape[-1] == 1:
        raise UserError(
            f"{where} needs logits of shape (batch, classes) or (batch, ..., classes) and labels of the same shape "
            f"without the classes, the model gives {tuple(output.shape)} for labels {tuple(target.shape)}; "
            + _to_logits(output, target)
        )


def _check_range(task: Task, output: Tensor) -> None:
    """Refuse labels that the model has no output for."""
    num_classes = output.shape[-1]
    labels = [targets for _, targets in task.splits.values()]
    largest, smallest = max(int(part.max()) for part in labels), min(int(part.min()) for part in labels)
    if largest < num_classes:
        return
    remedy = f"renumber them or give the last layer {largest + 1} outputs"
    if smallest > 0 and largest - smallest < num_classes:
        remedy = f"yours start at {smallest}: use y - {smallest} in every split"
    raise UserError(
        f"task {task.name!r}: label {largest} is out of range for a model with {num_classes} outputs; labels run from "
        f"0 to {num_classes - 1}: {remedy}"
    )


def _to_logits(output: Tensor, target: Tensor) -> str:
    """Return how outputs and labels come to fit each other."""
    if target.shape == output.shape and is_one_hot(target):
        return "the labels are one-hot: use y.argmax(1)"
    if target.ndim == 2 and target.shape[1] == 1 and output.ndim == 2:
        return "the labels are a column: use y[:, 0]"
    if output.shape == target.shape or _differ_by_one(output, target):
        return "for one logit per label use loss='bce', else end the model in a linear layer with one output per class"
    if output.ndim == target.ndim + 1 and output.movedim(1, -1).shape[:-1] == target.shape:
        return "the classes belong into the last dimension: let the model return output.movedim(1, -1)"
    if output.ndim > 2 and target.ndim == 1:
        return "give a label for every position, or let the model return one row per example, e.g. output.mean(1)"
    return "end the model in a linear layer with one output per class"


def _to_equal_shapes(output: Tensor, target: Tensor) -> str:
    """Return how outputs and targets get the same shape."""
    if output.shape[:-1] == target.shape and output.shape[-1] == 1:
        return "end the model with nn.Flatten(0), or give the targets as y[..., None]"
    if target.shape[:-1] == output.shape and target.shape[-1] == 1:
        return "give the targets as y[..., 0]"
    if output.shape[:-1] == target.shape and not target.is_floating_point():
        return "for class labels use loss='cross_entropy'"
    if output.shape[1:].numel() == target.shape[1:].numel():
        return f"give the targets as y.reshape({', '.join(map(str, (-1, *output.shape[1:])))})"
    return f"give the last layer as many outputs as there are targets per example, {target.shape[1:].numel()}"


def _differ_by_one(longer: Tensor, shorter: Tensor) -> bool:
    """Tell whether two shapes differ by a last dimension of 1, as (n, 1) and (n,) do."""
    return longer.ndim == shorter.ndim + 1 and longer.shape == (*shorter.shape, 1)


def _value(task: Task, what: str, function: MetricFunction, output: Tensor, target: Tensor) -> Any:
    try:
        return function(output.clone(), target.clone())
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"task {task.name!r}: the {what} cannot take outputs of shape {tuple(output.shape)} with targets of shape "
            f"{tuple(target.shape)}: {raised(error)}; {_to_fit(what, target)}"
        ) from error


def _to_fit(what: str, target: Tensor) -> str:
    kinds = "y.long() for classes" if target.is_floating_point() else "y.float() for real numbers"
    return f"use a {what} by name, or make targets ({kinds}) and the last layer as your {what} needs them"


def _check_mean_metric(task: Task, value: Any) -> None:
    if not isinstance(value, Tensor) or value.ndim != 0:
        raise UserError(
            f"task {task.name!r}: the metric must return a scalar tensor, the mean over the batch, not {_kind(value)}; "
            "end it in .mean(), or pass over='split' to Metric for a function of all outputs that returns any number"
        )


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_two_classes(task: Task) -> None:
    for part, (_, targets) in task.splits.items():
        found = torch.unique(targets).tolist()
        if found != [0, 1]:
            shown = ", ".join(f"{value:g}" for value in found[:5]) + (", ..." if len(found) > 5 else "")
            raise UserError(
                f"task {task.name!r}, {part} data: auc needs labels 0 and 1, both of them; these are {shown}; "
                "give the split both classes, or use another metric, e.g. 'accuracy' or 'bce'"
            )


def _check_varying(task: Task) -> None:
    for part, (_, targets) in task.splits.items():
        if bool((targets == targets[:1]).all()):
            raise UserError(
                f"task {task.name!r}, {part} data: all targets are equal, so r2 is not defined; use metric='mse'"
            )
