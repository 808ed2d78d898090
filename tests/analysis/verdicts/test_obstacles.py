from __future__ import annotations

import dataclasses

from helpers_protocol import diverged
from helpers_verdicts import broken, made_pair, made_series
from isotherm.analysis.series import Series
from isotherm.analysis.verdicts.generalisation import higher_test_optimum, large_batches
from isotherm.analysis.verdicts.momentum import momentum_claims
from isotherm.analysis.verdicts.obstacles import obstacle


def with_missing_run(series: Series, size: int) -> Series:
    changed = []
    for tuned in series.grids:
        grid = tuned.grid
        if grid.axes.batch_size == size:
            cell = dataclasses.replace(grid.cells[0], results=(None, *grid.cells[0].results[1:]))
            grid = dataclasses.replace(grid, cells=(cell, *grid.cells[1:]))
        changed.append(dataclasses.replace(tuned, grid=grid))
    return dataclasses.replace(series, grids=tuple(changed))


def test_nothing_stands_in_the_way_of_a_whole_series() -> None:
    assert obstacle([made_series(optimum=broken(1.0, 7.0))], [lambda g: g.optimum]) is None


def test_missing_runs_come_first() -> None:
    found = obstacle([with_missing_run(made_series(optimum=broken(1.0, 7.0), num_seeds=2), 32)], [])
    assert found is not None
    assert found.words == "runs are missing at B = 32"
    assert found.remedy.options == ()


def with_unstable_neighbour(series: Series, size: int) -> Series:
    changed = []
    for tuned in series.grids:
        grid, best = tuned.grid, tuned.test_optimum
        assert best is not None
        if grid.axes.batch_size == size:
            cells = list(grid.cells)
            cells[best.index + 1] = dataclasses.replace(cells[best.index + 1], results=(diverged(),) * 5)
            grid = dataclasses.replace(grid, cells=tuple(cells))
        changed.append(dataclasses.replace(tuned, grid=grid, test_optimum=grid.optimum()))
    return dataclasses.replace(series, grids=tuple(changed))


def test_heights_next_to_an_unstable_learning_rate_are_open_until_the_grid_is_refined() -> None:
    series = with_unstable_neighbour(made_series(optimum=broken(1.0, 7.0)), 128)
    assert obstacle([series], [lambda g: g.test_optimum]) is None
    found = obstacle([series], [], heights=lambda g: g.test_optimum)
    assert found is not None
    assert found.words == "how far the metric rises up to the edge of stability is not resolved at B = 128"
    assert found.remedy.options == ("--resolution", "adaptive")
    for claim in (large_batches(series), *momentum_claims(made_pair(series, series))):
        assert claim.obstacle == found.remedy
    assert higher_test_optimum(series).obstacle is None


def test_a_grid_without_the_optimum_that_is_asked_for_counts_as_open() -> None:
    found = obstacle([made_series(optimum=broken(1.0, 7.0))], [lambda _g: None])
    assert found is not None
    assert "end of its grid" in found.words


def test_every_series_is_looked_at() -> None:
    whole, few = (made_series(optimum=broken(1.0, 7.0), num_seeds=n) for n in (5, 2))
    found = obstacle([whole, few], [])
    assert found is not None
    assert found.words == "2 seeds are not enough"
