"""MNIST-1D is generated identically on every machine."""

from __future__ import annotations

import random

import numpy as np
import torch

from isotherm.data import mnist1d


def test_sizes_types_and_classes() -> None:
    (x, y), (x_test, y_test) = mnist1d.load()
    assert x.shape == (4000, 40)
    assert x_test.shape == (1000, 40)
    assert x.dtype == x_test.dtype == torch.float32
    assert y.dtype == y_test.dtype == torch.int64
    assert torch.cat([y, y_test]).bincount().tolist() == [500] * 10
    assert torch.isfinite(x).all()
    both = torch.cat([x, x_test])
    assert abs(float(both.mean())) < 1e-5
    assert abs(float(both.std()) - 1) < 1e-4


def test_it_is_the_published_default() -> None:
    """Means seen when the package's default seed is used; another seed or another order would move them."""
    (x, y), (_, y_test) = mnist1d.load()
    assert abs(float(x.double().mean()) + 0.00032367) < 1e-6
    assert abs(float(x.double().std(correction=0)) - 0.99764797) < 1e-5
    assert int(y.sum()) == 18018
    assert int(y_test.sum()) == 4482


def test_global_generators_are_left_alone() -> None:
    mnist1d.load.cache_clear()
    np.random.seed(7)  # noqa: NPY002
    random.seed(7)
    expected = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    mnist1d.load()
    assert (np.random.get_state()[1].tolist(), random.getstate()) == expected  # noqa: NPY002
