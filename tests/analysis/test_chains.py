from __future__ import annotations

import numpy as np
import pytest

from isotherm.analysis.chains import walk
from isotherm.core.statistics import Floats


def normal(states: Floats) -> Floats:
    """Return the density of two correlated normal numbers of very different scales."""
    x, y = states[:, 0] - 3.0, (states[:, 1] - 100.0) / 50.0
    return np.asarray(-0.5 * (x**2 - 1.6 * x * y + y**2) / (1 - 0.8**2))


def test_a_known_density_is_drawn() -> None:
    generator = np.random.default_rng(0)
    starts = generator.normal([0.0, 0.0], [3.0, 30.0], size=(60, 2))
    drawn = walk(normal, starts, generator, num_rounds=500, num_ignored=100)
    assert drawn.shape == (400 * 60, 2)
    assert drawn.mean(axis=0) == pytest.approx([3.0, 100.0], abs=5.0)
    assert drawn.std(axis=0) == pytest.approx([1.0, 50.0], rel=0.1)
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0.8, abs=0.05)


def test_chains_keep_out_of_where_nothing_may_be() -> None:
    def half(states: Floats) -> Floats:
        return np.where(states[:, 0] >= 0, -0.5 * states[:, 0] ** 2, -np.inf)

    generator = np.random.default_rng(0)
    drawn = walk(half, generator.random((40, 1)), generator, num_rounds=300, num_ignored=50)
    assert (drawn >= 0).all()
    assert drawn.mean() == pytest.approx(np.sqrt(2 / np.pi), abs=0.05)


def test_chains_that_lag_behind_are_moved() -> None:
    def two_hills(states: Floats) -> Floats:
        return np.logaddexp(-0.5 * states[:, 0] ** 2, -50.0 - 0.5 * (states[:, 0] - 1000.0) ** 2)

    generator = np.random.default_rng(0)
    starts = np.concatenate([generator.normal(size=(20, 1)), generator.normal(1000.0, 1.0, size=(20, 1))])
    drawn = walk(two_hills, starts, generator, num_rounds=60, num_ignored=30)
    assert (drawn < 500).all()
