"""Checks of a task's model on a few examples, before anything is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.inputs import Split
from isotherm.tasks.logit_check import check_logits_left_alone
from isotherm.tasks.mean_check import NUM_EXAMPLES, check_bounds, check_means, has_own_mean
from isotherm.tasks.metrics import METRICS
from isotherm.tasks.model_remedies import remedy_for_inputs, what_it_returns
from isotherm.tasks.output_check import check_output, check_split_metric
from isotherm.tasks.raised import raised
from isotherm.tasks.seeding import initial_model, seeded
from isotherm.tasks.task import Task
from isotherm.tasks.torch_warnings import without_torch_warnings

# Test examples that stand for the whole split.
_MANY = 5_000


@without_torch_warnings()
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
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        needs = isinstance(error, TypeError) and isinstance(task.builder, type)
        remedy = f"; pass its arguments, e.g. model=lambda: {task.builder.__name__}(...)" if needs else ""
        raise UserError(f"{where}: building the model raised {raised(error)}{remedy}") from error
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(
            f"{where}: the model has no trainable parameters; give it a layer that has some, or set requires_grad=True"
        )
    _check_transform(task)
    for layer in (part for part in module.modules() if isinstance(part, GhostBatchNorm2d)):
        for batch_size in batch_sizes:
            layer.checked_ghost_size(batch_size)
    module.eval()
    try:
        with torch.enable_grad():
            output = call_model(module, x, unroll=task.unroll)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError(
            f"{where}: the model cannot take {_described(task, x)}: {raised(error)}; {_remedy(task, module, x)}"
        ) from error
    if not isinstance(output, Tensor):
        raise UserError(f"{where}: the model returns {what_it_returns(output)}")
    _check_training_mode(task, x=x)
    check_output(task, output.detach(), y)
    check_logits_left_alone(task, output)
    _check_own_functions(task, module)


def _described(task: Task, x: Tensor) -> str:
    if task.input_layout is not None:
        return f"inputs, for each example, of {task.input_layout}"
    return f"inputs of shape {tuple(x.shape)} and type {x.dtype}"


def _remedy(task: Task, module: nn.Module, x: Tensor) -> str:
    if task.input_layout is None:
        return remedy_for_inputs(module, x, is_sequence=task.unroll is not None)
    named = task.input_layout.fields[0].name is not None
    how = "the arguments of forward by name" if named else "one for each argument of forward, in their order"
    return f"several inputs are {how}: change the data or forward"


def _check_training_mode(task: Task, *, x: Tensor) -> None:
    """Refuse a model that returns one tensor in evaluation mode only; whatever it raises, training will show."""
    output: Any = x
    with contextlib.suppress(Exception), seeded(0, "noise"), torch.no_grad():
        output = call_model(initial_model(task.model, seed=0).train(), x.clone(), unroll=task.unroll)
    if not isinstance(output, Tensor):
        raise UserError(f"task {task.name!r}: in training mode the model returns {what_it_returns(output)}")


def _check_own_functions(task: Task, module: nn.Module) -> None:
    """Try a user's loss and metric on examples from all over the training set."""
    is_over_split = task.metric_definition.over == "split" and task.metric_definition not in METRICS.values()
    if not (is_over_split or has_own_mean(task)):
        return
    index = _chosen(task.num_train, NUM_EXAMPLES)
    x, y = _examples(task, task.train, index) if task.unroll is None else example_batch(task, NUM_EXAMPLES // 8)
    output = _outputs(task, module, x)
    check_means(task, output, _like(y, output))
    check_bounds(task, output, _like(y, output))
    if not is_over_split:
        return
    try:
        check_split_metric(task, output, _like(y, output))
    except UserError:  # some examples need not have what a whole split has, such as every class
        x, y = _examples(task, task.test, _chosen(len(task.test[1]), _MANY))
        output = _outputs(task, module, x)
        check_split_metric(task, output, _like(y, output))


def _chosen(num: int, most: int) -> Tensor:
    """Return positions from all over a split, always the same."""
    return torch.randperm(num, generator=torch.Generator().manual_seed(0))[:most]


def _outputs(task: Task, module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([call_model(module, part, unroll=task.unroll) for part in torch.split(x, NUM_EXAMPLES)])


def _like(target: Tensor, output: Tensor) -> Tensor:
    return target.to(output.dtype) if target.is_floating_point() else target


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
            f"{raised(error)}; change the inputs or the transform"
        ) from error


def example_batch(task: Task, num: int = 4) -> tuple[Tensor, Tensor]:
    """Return copies of a few training examples as the model sees them in evaluation, floats in float32."""
    inputs, targets = task.train
    if task.unroll is not None:
        order = torch.arange(num)[:, None] * task.unroll + torch.arange(task.unroll)
        index = order % task.num_train  # a short sequence is read again
        assert isinstance(inputs, Tensor)
        return inputs[index], targets[index]
    return _examples(task, task.train, torch.arange(min(num, task.num_train)))


def _examples(task: Task, split: Split, index: Tensor) -> tuple[Tensor, Tensor]:
    inputs, y = split[0], split[1][index]
    x = inputs[index] if isinstance(inputs, Tensor) else inputs.fetch(index.numpy()).clone()
    if task.transform is not None:
        x, y = task.transform.evaluate(x), task.transform.targets(y)
    return x.float() if x.is_floating_point() else x, y.float() if y.is_floating_point() else y


@without_torch_warnings()
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
