"""Metrics over a whole split, which are no means over examples. All are computed in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def macro_f1(output: Tensor, target: Tensor) -> Tensor:
    """Return F1 averaged over the classes that occur among labels or predictions.

    Args:
        output: logits (examples, ..., classes); or one logit per label, positive for class 1.
        target: labels (examples, ...).

    >>> float(macro_f1(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1, 1])))
    0.6666666666666666
    """
    found = (output > 0).long() if output.shape == target.shape else output.argmax(dim=-1)
    found, labels = found.flatten(), target.long().flatten()
    num_classes = int(torch.maximum(found.max(), labels.max())) + 1
    hits = torch.bincount(labels[found == labels], minlength=num_classes)
    totals = torch.bincount(found, minlength=num_classes) + torch.bincount(labels, minlength=num_classes)
    occurs = totals > 0
    return (2 * hits[occurs].double() / totals[occurs]).mean()


def auc(output: Tensor, target: Tensor) -> Tensor:
    """Return the area under the ROC curve: how often an example of class 1 scores above one of class 0; ties count ½.

    Args:
        output: a score or logit per label; or logits (examples, ..., 2) of both classes.
        target: labels 0 and 1. NaN if there is only one of them.

    >>> float(auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1])))
    0.875
    """
    scores = output if output.shape == target.shape else output[..., 1] - output[..., 0]
    values, level = torch.unique(scores.flatten(), return_inverse=True)
    positive = torch.bincount(level, weights=target.flatten().double(), minlength=len(values))
    negative = torch.bincount(level, minlength=len(values)) - positive
    below = negative.cumsum(dim=0) - negative / 2
    return (positive * below).sum() / (positive.sum() * negative.sum())


def r_squared(output: Tensor, target: Tensor) -> Tensor:
    """Return R²: 1 minus the squared error over that of the targets' mean, both summed over examples and outputs.

    >>> float(r_squared(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0])))
    0.5
    """
    output, target = output.double(), target.double()
    around_mean = (target - target.mean(dim=0)).square().sum()
    return 1 - (output - target).square().sum() / around_mean.where(around_mean > 0, math.nan)
