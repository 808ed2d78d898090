"""Does a model end in a sigmoid or a softmax although its loss or metric takes logits? Read from the autograd graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from isotherm.errors import UserError
from isotherm.tasks.losses import binary_cross_entropy, cross_entropy
from isotherm.tasks.split_metrics import macro_f1
from isotherm.tasks.task import Task

# PyTorch's names of the last operations, and what they are called.
_PROBABILITIES = {"SigmoidBackward0": "sigmoid", "SoftmaxBackward0": "softmax"}
# Operations that only rearrange values.
_REARRANGING = {
    f"{name}Backward{k}"
    for name in ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "T", "Permute", "Alias")
    for k in range(3)
} | {f"{name}Backward0" for name in ("Select", "Slice", "Clone", "ToCopy", "Contiguous")}

# Losses and metrics that apply them to a model's outputs.
_APPLYING = {
    "sigmoid": (binary_cross_entropy, nn.functional.binary_cross_entropy_with_logits),
    "softmax": (cross_entropy, nn.functional.cross_entropy),
}
_APPLYING_MODULES = {"sigmoid": nn.BCEWithLogitsLoss, "softmax": nn.CrossEntropyLoss}


def check_logits_left_alone(task: Task, output: Tensor) -> None:
    """Refuse a sigmoid or softmax at the end of a model whose loss or metric applies it again.

    Args:
        task: what is to be trained.
        output: of the model, with its gradient's graph.
    """
    last = last_operation(output)
    if last is None:
        return
    metric = task.metric_definition
    loss_name = task.loss if isinstance(task.loss, str) else "the loss"
    if _takes_logits(task.loss_function, last):
        raise UserError(
            f"task {task.name!r}: {loss_name} takes logits, but the model ends in a {last}; leave the {last} out, the "
            "loss applies it"
        )
    if _takes_logits(metric.function, last) or (last == "sigmoid" and metric.function is macro_f1):
        named = "bce" if last == "sigmoid" else "cross_entropy"
        raise UserError(
            f"task {task.name!r}: metric {metric.name!r} takes logits, but the model ends in a {last}; leave the "
            f"{last} out and use loss={named!r}, which applies it"
        )


def last_operation(output: Tensor) -> str | None:
    """Return "sigmoid" or "softmax" if a model's output is that of one, however reshaped; None otherwise.

    >>> import torch
    >>> x = torch.ones(2, 1, requires_grad=True)
    >>> last_operation(torch.sigmoid(x).flatten()), last_operation(torch.sigmoid(x) - 0.5)
    ('sigmoid', None)
    """
    node: Any = output.grad_fn
    while node is not None and node.name() in _REARRANGING:
        node = node.next_functions[0][0]
    return None if node is None else _PROBABILITIES.get(node.name())


def _takes_logits(function: Any, last: str) -> bool:
    return any(function is known for known in _APPLYING[last]) or isinstance(function, _APPLYING_MODULES[last])
