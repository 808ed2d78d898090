"""Checks of a task's model on a few examples, before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task


def check_model(task: Task, batch_sizes: Iterable[int] = ()) -> None:
    """Build the model, run it on a few examples, and refuse what cannot be trained.

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
        raise UserError(f"{where}: the model has no trainable parameters, so there is nothing to train")
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
    """Try the transform in training mode."""
    if task.transform is None:
        return
    inputs = task.train[0]
    x = (inputs[:4] if isinstance(inputs, Tensor) else inputs.fetch(np.arange(min(4, len(inputs))))).clone()
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
    """Return copies of a few training examples as the model sees them in evaluation, floats in float32."""
    inputs, targets = task.train
    if task.unroll is not None:
        order = torch.arange(num)[:, None] * task.unroll + torch.arange(task.unroll)
        index = order % task.num_train  # a short sequence is read again
        assert isinstance(inputs, Tensor)
        return inputs[index], targets[index]
    x = (inputs[:num] if isinstance(inputs, Tensor) else inputs.fetch(np.arange(min(num, len(inputs))))).clone()
    y = targets[:num].clone()
    if task.transform is not None:
        x, y = task.transform.evaluate(x), task.transform.targets(y)
    return x.float() if x.is_floating_point() else x, y.float() if y.is_floating_point() else y


def call_model(module: nn.Module, x: Tensor, *, unroll: int | None) -> Any:
    """Return the model's output for a copy of the inputs; a model with a state starts from its initial state."""
    if unroll is None:
        return module(x.clone())
    initial_state = getattr(module, "initial_state", None)
    if initial_state is None:
        raise UserError(
            "with unroll the model carries a state: it needs a method initial_state(batch_size) that returns a tensor, "
            "and forward(tokens, state) must return the output and the next state"
        )
    return module(x.clone(), initial_state(len(x)))[0]


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
    elif isinstance(task.loss, str) and output.shape != target.shape:
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
