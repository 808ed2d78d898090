from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from families import SIZES, STEEPNESS, Family, Shape, coverage_families, simulate
from isotherm.sweep.protocol import Edge


@pytest.mark.parametrize("shape", STEEPNESS)
@pytest.mark.parametrize("ratio", [2.0, math.sqrt(2.0), 2**0.25])
def test_the_best_rate_of_a_sweep_without_noise_is_next_to_the_true_optimum(shape: Shape, ratio: float) -> None:
    family = Family(shape=shape, ratio=ratio, noise=1e-9, slope=0.8, train_shift=0.0)
    found = simulate(family, np.random.default_rng(1))
    for grid in found.grids():
        best, size = grid.optimum(), grid.axes.batch_size
        assert best is not None
        off = math.log2(best.effective_learning_rate) - found.truth.log_optimum(size)
        step = math.log2(ratio)
        assert -step <= off <= (0 if shape == "cliff" else step / 2)
        assert best.estimate.mean <= found.truth.height(size) + 1e-6
        assert not best.lies_at_end_of(grid)


def test_optima_follow_the_line_and_momentum_moves_the_kink() -> None:
    truth = simulate(Family(slope=0.5, momenta=(0.0, 0.9)), np.random.default_rng(0)).truth
    assert truth.log_optimum(64) - truth.log_optimum(16) == pytest.approx(1.0)
    assert truth.log_optimum(1024) == truth.log_optimum(256) == truth.plateau
    assert truth.log_optimum(32, 0.9) == truth.log_optimum(32)
    assert truth.log_optimum(1024, 0.9) == pytest.approx(truth.plateau + 0.75)
    straight = dataclasses.replace(truth, family=truth.family.but(has_kink=False))
    assert straight.log_optimum(1024) - straight.log_optimum(512) == pytest.approx(0.5)


def test_heights_are_the_means_that_runs_have_at_their_optimum() -> None:
    family = Family(num_test=100, peak=0.99, noise=0.02, num_seeds=400, num_points=1, plan=(("max_extensions", 0),))
    found = simulate(family.but(sizes=(8, 16, 32), ratio=1.01), np.random.default_rng(0))
    for grid in found.grids():
        values = [r.test_metric for r in grid.cells[0].results if r is not None]
        assert np.mean(values) == pytest.approx(found.truth.height(8), abs=0.003)
        assert found.truth.height(8) < 0.99


def test_gains_and_falls_are_where_they_belong() -> None:
    family = Family(momenta=(0.0, 0.9), gain_below=0.01, gain_above=0.03, fall=0.05)
    truth = simulate(family, np.random.default_rng(0)).truth
    assert truth.height(16, 0.9) - truth.height(16) == pytest.approx(0.01)
    assert truth.height(512, 0.9) - truth.height(512) == pytest.approx(0.03)
    assert truth.height(512) - truth.height(1024) == pytest.approx(0.05)


def test_saturated_accuracies_are_multiples_up_to_one_with_ties() -> None:
    found = simulate(Family(num_test=200, peak=0.99, noise=0.01), np.random.default_rng(0))
    values = [r.test_metric for r in found.study.by_key.values() if r.test_metric is not None]
    assert max(values) == 1.0
    assert len(set(values)) < len(values) / 2
    assert all((200 * value) == pytest.approx(round(200 * value)) for value in values)


@pytest.mark.parametrize("shape", ["parabola", "cliff"])
def test_some_seeds_diverge_near_the_edge(shape: Shape) -> None:
    generator = np.random.default_rng(0)
    cells = [
        cell
        for _ in range(10)
        for grid in simulate(Family(shape=shape, has_diverging_seeds=True, ratio=2**0.25), generator).grids()
        for cell in grid.cells
    ]
    assert any(0 < cell.num_diverged < 5 for cell in cells)


def test_the_protocol_extends_grids_and_equal_generators_give_equal_sweeps() -> None:
    off = Family(num_points=2, ratio=math.sqrt(2.0))
    first, second = (simulate(off, np.random.default_rng(5)) for _ in range(2))
    assert first.study.by_key == second.study.by_key
    assert all(len(grid.cells) > 2 for grid in first.grids())
    assert any(grid.edge() is Edge.INTERIOR for grid in first.grids())
    assert first.study.counts()["missing"] == 0


def test_the_training_optimum_lies_where_it_is_told() -> None:
    found = simulate(Family(train_shift=1.0, ratio=2**0.25, noise=1e-9), np.random.default_rng(2))
    for grid in found.grids():
        test, train = grid.optimum(), grid.train_optimum()
        assert test is not None
        assert train is not None
        assert math.log2(test.effective_learning_rate / train.effective_learning_rate) == pytest.approx(1.0, abs=0.5)


def test_every_shape_meets_every_number_of_points_and_seeds() -> None:
    families = coverage_families()
    assert len(families) >= 24
    assert len({family.name for family in families}) == len(families)
    assert {family.slope for family in families} == {1.0, 0.5, 0.8}
    regular = families[:24]
    for name, values in (("num_points", (3, 5, 7)), ("num_seeds", (3, 5, 10))):
        met = {(family.shape, getattr(family, name)) for family in regular}
        assert met == set(itertools.product(STEEPNESS, values)), name
    assert all(family.sizes == SIZES for family in families)
