"""Losses by name: means over the examples of a batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

LossFunction = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy of logits (batch, ..., classes) against labels (batch, ...)."""
    return -functional.log_softmax(output, dim=-1).gather(-1, target.unsqueeze(-1)).mean()


def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean binary cross entropy of logits against targets from 0 to 1 of the same shape."""
    return functional.binary_cross_entropy_with_logits(output, target.to(output.dtype))


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error averaged over examples and outputs."""
    return (output - target).square().mean()


def half_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return half the squared error, summed over each example's outputs and averaged over examples."""
    return 0.5 * squared_error(output, target)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error, summed over each example's outputs and averaged over examples."""
    squares = (output - target).square()
    return (squares.flatten(1).sum(dim=1) if squares.ndim > 1 else squares).mean()


LOSSES: dict[str, LossFunction] = {
    "bce": binary_cross_entropy,
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
    "mse": mean_squared_error,
    "half_squared_error": half_squared_error,
}
