from __future__ import annotations

import dataclasses

from helpers_verdicts import broken, made_series
from isotherm.analysis.series import Series
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


def test_a_grid_without_the_optimum_that_is_asked_for_counts_as_open() -> None:
    found = obstacle([made_series(optimum=broken(1.0, 7.0))], [lambda _g: None])
    assert found is not None
    assert "end of its grid" in found.words


def test_every_series_is_looked_at() -> None:
    whole, few = (made_series(optimum=broken(1.0, 7.0), num_seeds=n) for n in (5, 2))
    found = obstacle([whole, few], [])
    assert found is not None
    assert found.words == "2 seeds are not enough"
