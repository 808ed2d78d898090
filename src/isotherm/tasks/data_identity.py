"""Content hashes of data, made piece by piece, so that no copy of the data is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from isotherm.core.records import content_hash
from isotherm.tasks.content import hash_of_tensor
from isotherm.tasks.datasets.split import DatasetInputs
from isotherm.tasks.inputs import Inputs, Split, pieces


def data_parts(splits: Mapping[str, Split]) -> dict[str, str]:
    """Return the hash of the inputs and of the targets of every split: values, dtype and shape.

    >>> x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    >>> one, other = data_parts({"train": (x, y)}), data_parts({"train": (x + 1, y)})
    >>> [name for name in one if one[name] != other[name]]
    ['train inputs']
    """
    parts = {}
    for name, (inputs, targets) in splits.items():
        parts[f"{name} inputs"] = _content(inputs)
        parts[f"{name} targets"] = _content(targets)
    return parts


def data_id(parts: Mapping[str, str]) -> str:
    """Return the one hash of all parts."""
    return content_hash(dict(parts))


def are_built_in(splits: Mapping[str, Split]) -> bool:
    """Tell whether all inputs are in memory or read from disk by a reader of this package."""
    kinds = [type(inputs) for inputs, _ in splits.values() if not isinstance(inputs, Tensor)]
    return all(kind.__module__.split(".")[0] == "isotherm" for kind in kinds)


def _content(values: Inputs) -> str:
    """Return what identifies the values of a split; inputs on disk say it themselves.

    A data set that is read item by item is what it would be as a tensor.
    """
    if isinstance(values, DatasetInputs):
        return values.identity()
    if not isinstance(values, Tensor):
        return content_hash(["lazy", values.identity()])
    digest = hashlib.sha256()
    for piece in pieces(values.detach()):
        digest.update(piece.view(torch.uint8).numpy().data)
    return hash_of_tensor(values.dtype, values.shape, digest.hexdigest())
