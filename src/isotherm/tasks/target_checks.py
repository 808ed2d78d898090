"""Checks of targets: labels for cross entropy, targets from 0 to 1 for binary cross entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotherm.errors import UserError


def checked_labels(labels: Tensor, given: Any, where: str) -> Tensor:
    """Return the labels of cross entropy as int64; refuse what is no class number.

    Args:
        labels: the targets as a tensor.
        given: the same as the user has them; the remedy is written for it.
        where: names the split in errors.
    """
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(
            f"{where}: cross_entropy needs whole-number labels, got {labels.dtype} of shape {tuple(labels.shape)}; "
            + _as_class_numbers(labels, given)
        )
    labels = labels.long()
    if int(labels.min()) < 0:
        index = _index(labels, labels < 0)
        raise UserError(
            f"{where}: the label at index {index} is {int(labels.min())}; labels start at 0: number the classes in the "
            f"same way in every split, e.g. {_numbered(given)}, or leave these examples out"
        )
    return labels


def check_between_0_and_1(targets: Tensor, given: Any, where: str) -> None:
    """Refuse targets that binary cross entropy cannot take."""
    smallest, largest = float(targets.min()), float(targets.max())
    if smallest >= 0 and largest <= 1:
        return
    remedy = "use labels 0 and 1, or probabilities"
    if torch.unique(targets).numel() == 2:
        remedy = f"for two classes use ({_named(given)} == {largest:g})" + _written(
            given, ".float()", ".astype('float32')"
        )
    raise UserError(f"{where}: bce needs targets from 0 to 1, these run from {smallest:g} to {largest:g}; {remedy}")


def is_one_hot(targets: Tensor) -> bool:
    """Tell whether every row has a single 1 among zeros.

    >>> is_one_hot(torch.tensor([[0, 1], [1, 0]])), is_one_hot(torch.tensor([[1, 1], [1, 0]]))
    (True, False)
    """
    if targets.ndim != 2 or targets.shape[1] < 2:
        return False
    is_binary = bool(((targets == 0) | (targets == 1)).all())
    return is_binary and bool((targets.sum(dim=1) == 1).all())


def _as_class_numbers(labels: Tensor, given: Any) -> str:
    """Return how these targets become class numbers."""
    y = _named(given)
    as_whole = _written(given, ".long()", ".astype('int64')")
    if labels.is_complex():
        return "use class numbers 0, 1, 2, ..."
    if is_one_hot(labels):
        return f"they are one-hot: use {y}.argmax(1)"
    if not bool((labels == labels.round() if labels.is_floating_point() else labels == labels).all()):
        return "for real numbers use loss='mse', for class probabilities loss=torch.nn.functional.cross_entropy"
    if labels.ndim == 2 and labels.shape[1] == 1:
        return f"they are a column: use {y}[:, 0]{as_whole}"
    return f"use {y}{as_whole}"


def _named(given: Any) -> str:
    """Return the targets as an expression that has the methods of an array."""
    return "y" if isinstance(given, Tensor | np.ndarray) else "np.array(y)"


def _written(given: Any, for_tensor: str, for_array: str) -> str:
    return for_tensor if isinstance(given, Tensor) else for_array


def _numbered(given: Any) -> str:
    library = "torch" if isinstance(given, Tensor) else "np"
    return f"{library}.unique(y, return_inverse=True)[1]"


def _index(labels: Tensor, is_wrong: Tensor) -> int | list[int]:
    first = [int(i) for i in is_wrong.nonzero()[0]]
    return first[0] if labels.ndim == 1 else first
