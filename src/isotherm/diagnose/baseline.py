"""Was anything learned? The best short runs against the best constant output."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isotherm.core.statistics import Floats
from isotherm.tasks.model_check import call_model, example_batch
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

# Training targets that the constant is fitted to.
NUM_TARGETS = 4096
# A run has learned something if its loss lies below the constant's by more than this fraction of it, and by more than
# this many standard errors over seeds.
LEAST_GAIN, STANDARD_ERRORS = 0.005, 3.0


def constant_loss(task: Task, *, judged_by: str) -> float:
    """Return the held-out loss of the constant output that fits the training targets best.

    For labels these are the logarithms of the classes' frequencies, for squared errors it is the mean.
    """
    x, _ = example_batch(task, 2)
    with torch.no_grad():
        output = call_model(initial_model(task.model, seed=0).eval(), x, unroll=task.unroll)
    skipped = 1 if task.unroll is None else 2
    constant = torch.zeros_like(output.reshape(-1, *output.shape[skipped:])[0], requires_grad=True)
    targets, held_out = _targets(task, "train"), _targets(task, judged_by)

    def loss(y: Tensor) -> Tensor:
        return task.loss_function(constant.expand(len(y), *constant.shape), y)

    optimiser = torch.optim.LBFGS([constant], lr=1.0, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        value = loss(targets)
        (constant.grad,) = torch.autograd.grad(value, constant)
        return float(value.detach())

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return float(loss(held_out))


def _targets(task: Task, split: str) -> Tensor:
    y = task.splits[split][1]
    step = max(1, len(y) // NUM_TARGETS)
    y = y[::step]
    if task.transform is not None:
        y = task.transform.targets(y)
    return y.float().clone() if y.is_floating_point() else y.clone()  # a loss may write into its targets


def has_learned(losses: Sequence[Floats], constants: Floats) -> bool:
    """Tell whether the best learning rate of any grid beats a constant output.

    Args:
        losses: held-out losses (num_rates, num_seeds) of every grid; infinite where a run diverged.
        constants: the constant's loss on the held-out data of each fold; seeds take turns.
    """
    for table_RS in losses:
        if not np.isfinite(table_RS).all(axis=1).any():
            continue
        best_S = table_RS[int(np.argmin(table_RS.mean(axis=1)))]
        constant_S = np.resize(constants, len(best_S))
        gain_S = constant_S - best_S
        error = float(gain_S.std(ddof=1)) / math.sqrt(len(gain_S)) if len(gain_S) > 1 else 0.0
        least = LEAST_GAIN * float(np.abs(constant_S).mean())
        if gain_S.mean() > max(least, STANDARD_ERRORS * error):
            return True
    return False
