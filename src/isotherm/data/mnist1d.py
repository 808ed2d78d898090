"""MNIST-1D: 4,000 training and 1,000 test examples of 40 values in 10 classes, generated in about a second.

Greydanus & Kobak's one-dimensional stand-in for MNIST, made by the `mnist1d` package from its default seed 42.
Nothing is downloaded and nothing is unpickled.
"""

from __future__ import annotations

import functools
import random

import numpy as np
import torch
from torch import Tensor

Split = tuple[Tensor, Tensor]


@functools.cache
def load() -> tuple[Split, Split]:
    """Return (train, test), each a pair of values (n, 40) in float32 and labels (n,) in int64."""
    from mnist1d.data import get_dataset_args, make_dataset

    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 (the generator uses it)
    try:
        raw = make_dataset(get_dataset_args())
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
    return _split(raw["x"], raw["y"]), _split(raw["x_test"], raw["y_test"])


def _split(values: np.ndarray, labels: np.ndarray) -> Split:
    return torch.as_tensor(values, dtype=torch.float32), torch.as_tensor(labels, dtype=torch.int64)
