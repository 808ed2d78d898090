"""What is known before the first update: whether a task can be diagnosed at all, and its loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError
from isotherm.tasks.model_check import call_model, example_batch
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

# Size of an update that shows whether outputs come to depend on the inputs.
_PROBING_STEP = 0.1


def check_start(task: Task) -> None:
    """Raise a UserError if the loss or a gradient is not finite at the start, or if all gradients are zero."""
    module = initial_model(task.model, seed=0).eval()
    x, y = example_batch(task, 64)
    output = call_model(module, x, unroll=task.unroll)
    loss = task.loss_function(output, y)
    if not bool(torch.isfinite(loss)):
        raise UserError(
            f"task {task.name!r}: the loss is {float(loss)} before the first update; check the scale of the inputs, "
            "the initialisation and the loss"
        )
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradients = (
        torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True) if loss.requires_grad else ()
    )
    if not all(bool(torch.isfinite(g).all()) for g in gradients):
        raise UserError(
            f"task {task.name!r}: a gradient is not finite before the first update; look for a root, a norm or a "
            "logarithm at zero"
        )
    length = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    if length == 0.0:
        raise UserError(
            f"task {task.name!r}: no parameter has a gradient at the start; the outputs do not depend on any trainable "
            "parameter (all zero, saturated, detached?), so nothing can be said about learning rates"
        )
    if not _varies(output):  # also for a last layer that starts at zero, but not after an update
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient * (_PROBING_STEP / length))
            output = call_model(module, x, unroll=task.unroll)
        if not _varies(output):
            raise UserError(
                f"task {task.name!r}: the outputs are the same for all examples, before and after an update; check "
                "the inputs (all equal?) and look for units that are dead or all zero"
            )


def _varies(output: Tensor) -> bool:
    """Tell whether outputs differ between examples by more than rounding."""
    spread = (output - output[:1]).abs().max()
    return bool(spread > 1e-6 * output.abs().max())


def initial_loss(task: Task, *, device: str) -> float:
    """Return the training loss before any update, in evaluation mode, averaged over a few seeds."""
    placed = place_task(task, precision="float32", device=device)
    x, y = example_batch(task, 512)
    losses = []
    with torch.no_grad():
        for seed in range(3):
            module = initial_model(task.model, seed=seed).to(placed.device).eval()
            output = call_model(module, x.to(placed.device), unroll=task.unroll)
            losses.append(float(task.loss_function(output, y.to(placed.device, copy=True))))
    return sum(losses) / len(losses)
