from __future__ import annotations

import numpy as np
import pytest

from helpers_landscape import landscape_grids
from helpers_protocol import diverged, make_grid
from isotherm.analysis.noise import measured_noise
from isotherm.core.records import Direction


def test_noise_curvature_and_correlation_are_those_of_the_landscape() -> None:
    generator = np.random.default_rng(0)
    grids = landscape_grids(lambda b: b / 8, generator, noise=0.01, num_seeds=40, num_kept=40)
    noise = measured_noise(grids, "test_metric", Direction.MAXIMISE)
    assert noise is not None
    assert noise.standard_deviation == pytest.approx(0.01, rel=0.1)
    assert noise.correlation == pytest.approx(0.5, abs=0.1)
    assert noise.curvature == pytest.approx(0.03, rel=0.1)
    assert (noise.num_cells, noise.num_runs) == (3 * len(grids), 3 * 40 * len(grids))
    assert noise.smallest is not None
    assert noise.largest is not None
    assert noise.smallest < noise.standard_deviation < noise.largest
    assert noise.is_measured


def test_only_cells_near_the_optimum_count_and_diverged_runs_do_not() -> None:
    rows = {0.25: [0.0, 0.9], 0.5: [0.4, 0.6], 1.0: [0.6, 0.8], 2.0: [0.5, diverged()], 4.0: [0.0, 0.9]}
    noise = measured_noise([make_grid(rows, num_kept=1)], "test_metric", Direction.MAXIMISE)  # type: ignore[arg-type]
    assert noise is not None
    # Best single runs: 1/4 and 4 with 0.9; the first of them is the optimum, its one neighbour is 1/2.
    assert (noise.num_cells, noise.num_runs) == (2, 4)
    noise = measured_noise(
        [make_grid({rate: rows[rate] for rate in (0.5, 1.0, 2.0)}, num_kept=1)],  # type: ignore[arg-type]
        "test_metric",
        Direction.MAXIMISE,
    )
    assert noise is not None
    assert noise.standard_deviation == pytest.approx(0.1 * 2**0.5)
    assert noise.correlation == 1.0
    assert noise.curvature == pytest.approx(0.15)  # of the first seeds, the only ones that finished everywhere


def test_the_curvature_is_not_that_of_lucky_cells() -> None:
    found = []
    for seed in range(50):
        grids = landscape_grids(lambda b: b / 8, np.random.default_rng(seed), noise=0.03, num_kept=5)
        noise = measured_noise(grids, "test_metric", Direction.MAXIMISE)
        assert noise is not None
        assert noise.curvature is not None
        found.append(noise.curvature)
    assert np.mean(found) == pytest.approx(0.03, rel=0.1)


def test_a_loss_bends_the_other_way() -> None:
    rows = {0.5: [3.0, 3.2], 1.0: [1.0, 1.2], 2.0: [3.0, 3.2]}
    grid = make_grid(rows, num_kept=2, direction=Direction.MINIMISE)
    noise = measured_noise([grid], "test_metric", Direction.MINIMISE)
    assert noise is not None
    assert noise.curvature == pytest.approx(2.0)


def test_single_seeds_and_empty_grids_tell_no_noise() -> None:
    assert measured_noise([], "test_metric", Direction.MAXIMISE) is None
    assert measured_noise([make_grid({1.0: [0.5]}, num_kept=1)], "test_metric", Direction.MAXIMISE) is None
    assert measured_noise([make_grid({1.0: [None, None]}, num_kept=1)], "test_metric", Direction.MAXIMISE) is None
