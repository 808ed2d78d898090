"""Curve families whose truth is known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from families import Family, coverage_families, simulate
from helpers_landscape import cliff, landscape_grids, parabola, steeper
from helpers_protocol import make_cell
from isotherm.analysis.curves import curves
from isotherm.analysis.family import _common_variances, _parts, fit_family
from isotherm.core.records import Direction
from isotherm.sweep.protocol import Grid

SIZES = (16, 64, 256, 1024)


def grids_between(off: float, *, steep: float = 1.0, num_seeds: int = 5, noise: float = 0.003) -> list[Grid]:
    """Return grids whose optima lie so many octaves above a learning rate that was tried; heights are 0.7."""

    def shape(octaves: float) -> float:
        return steeper(steep, octaves)

    optimum = {size: 2.0 ** (off + k) for k, size in enumerate(SIZES)}
    return landscape_grids(
        lambda size: optimum[size],
        np.random.default_rng(1),
        shape=shape,
        noise=noise,
        num_seeds=num_seeds,
        num_kept=num_seeds,
        sizes=SIZES,
    )


def with_bounds(grid: Grid, bounds: tuple[float, float] | None) -> Grid:
    """Return the grid of a metric whose values lie between bounds."""
    return dataclasses.replace(
        grid, cells=tuple(dataclasses.replace(cell, metric_bounds=bounds) for cell in grid.cells)
    )


@pytest.mark.parametrize(("off", "steep"), [(0.0, 1.0), (0.45, 1.0), (-0.3, 1.0), (0.2, 10.0), (-0.3, 10.0)])
def test_optimum_and_height_are_found_between_the_learning_rates(off: float, steep: float) -> None:
    found = fit_family(grids_between(off, steep=steep))
    for column, truth in enumerate(off + np.arange(len(SIZES))):
        low, high = np.quantile(found.optima[:, column], [0.005, 0.995])
        assert low <= truth <= high
        assert high - low < 1.4
        low, high = np.quantile(found.heights[:, column], [0.005, 0.995])
        assert low <= 0.7 <= high
        assert high - low < 0.05


def test_a_difference_of_heights_is_no_artefact_of_the_grid() -> None:
    """One batch size has its optimum on a learning rate, the other half way between two: the best means differ."""
    on, between = grids_between(0.0)[0], grids_between(0.5)[1]
    best, other = on.optimum(), between.optimum()
    assert best is not None
    assert other is not None
    assert best.estimate.mean - other.estimate.mean > 0.005
    rows = [*grids_between(0.0)[:1], *grids_between(0.5)[1:]]
    found = fit_family(rows)
    low, high = np.quantile(found.heights[:, 0] - found.heights[:, 1], [0.025, 0.975])
    assert low < 0 < high


def test_losses_are_turned_round_and_come_back_in_their_own_units() -> None:
    grids = grids_between(0.2)
    losses = [
        dataclasses.replace(
            grid,
            objective="test_loss",
            direction=Direction.MINIMISE,
            cells=tuple(
                dataclasses.replace(
                    cell,
                    results=tuple(
                        dataclasses.replace(run, test_loss=5.0 - (run.test_metric or 0.0))
                        for run in cell.results
                        if run is not None
                    ),
                )
                for cell in grid.cells
            ),
        )
        for grid in grids
    ]
    metric, loss = fit_family(grids), fit_family(losses)
    assert np.median(loss.heights, axis=0) == pytest.approx(5.0 - np.median(metric.heights, axis=0), abs=0.002)
    assert np.median(loss.optima, axis=0) == pytest.approx(np.median(metric.optima, axis=0), abs=0.12)


def test_beyond_an_unstable_learning_rate_no_optimum_lies() -> None:
    grids = simulate(Family(shape="cliff", sizes=SIZES), np.random.default_rng(0)).grids()
    found = fit_family(grids)
    for column, grid in enumerate(grids):
        unstable = [cell.effective_learning_rate for cell in grid.cells if not cell.is_usable]
        assert found.optima[:, column].max() <= math.log2(min(unstable))


def test_a_flat_metric_leaves_the_optimum_open() -> None:
    flat = landscape_grids(lambda size: size / 64, np.random.default_rng(0), shape=lambda _: 0.0, sizes=SIZES)
    found = fit_family(flat)
    low, high = np.quantile(found.optima, [0.025, 0.975], axis=0)
    assert (high - low > 2.0).all()
    assert np.median(found.heights) == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_equal_values_everywhere_break_nothing(value: float) -> None:
    grids = landscape_grids(
        lambda size: size / 64, np.random.default_rng(0), shape=lambda _: 0.0, noise=0.0, sizes=SIZES
    )
    level = [
        dataclasses.replace(
            grid,
            cells=tuple(
                dataclasses.replace(
                    cell, results=tuple(dataclasses.replace(run, test_metric=value) for run in cell.results if run)
                )
                for cell in grid.cells
            ),
        )
        for grid in grids
    ]
    found = fit_family(level)
    assert np.allclose(found.heights, value, atol=1e-3)
    assert (np.ptp(found.optima, axis=0) > 2.0).all()


def test_what_a_seed_does_everywhere_widens_heights_and_not_optima() -> None:
    """The same runs with a luck of each seed added in all cells: optima stay, heights know less."""
    grids = grids_between(0.2, noise=0.002)
    luck = np.random.default_rng(5).normal(scale=0.03, size=(len(grids), 5))
    lucky = [
        dataclasses.replace(
            grid,
            cells=tuple(
                dataclasses.replace(
                    cell,
                    results=tuple(
                        dataclasses.replace(run, test_metric=(run.test_metric or 0.0) + float(mine))
                        for run, mine in zip(cell.results, row, strict=True)
                        if run is not None
                    ),
                )
                for cell in grid.cells
            ),
        )
        for grid, row in zip(grids, luck, strict=True)
    ]
    plain, shared = fit_family(grids), fit_family(lucky)
    assert np.std(shared.heights, axis=0).min() > 4 * np.std(plain.heights, axis=0).max()
    assert np.std(shared.optima, axis=0).max() < 3 * np.std(plain.optima, axis=0).min()


def test_draws_are_repeatable_and_independent_between_quantities() -> None:
    grids = grids_between(0.2)
    first, second = fit_family(grids), fit_family(list(grids))
    assert (first.optima == second.optima).all()
    heavy = fit_family([dataclasses.replace(g, axes=dataclasses.replace(g.axes, momentum=0.5)) for g in grids])
    assert abs(np.corrcoef(first.heights[:, 0], heavy.heights[:, 0])[0, 1]) < 0.1


def test_a_line_needs_three_batch_sizes() -> None:
    found = fit_family(grids_between(0.2)[:2])
    assert found.lines is None
    with pytest.raises(ValueError, match="three batch sizes or more, not 2"):
        _ = found.slopes


def test_confirming_runs_count() -> None:
    grids = grids_between(0.0)
    more = []
    for grid in grids:
        best = grid.optimum()
        assert best is not None
        cell = grid.cells[best.index]
        cells = list(grid.cells)
        cells[best.index] = dataclasses.replace(cell, confirmed=cell.results)
        more.append(dataclasses.replace(grid, cells=tuple(cells)))
    few, many = (curves(g, objective="test_metric", direction=Direction.MAXIMISE) for g in (grids, more))
    assert many.variances.min() < 0.6 * few.variances.min()


def test_a_cell_at_the_edge_of_a_cliff_widens_no_other() -> None:
    """Where some seeds fall and others do not, the scatter says nothing of other learning rates and batch sizes."""
    grids = grids_between(0.0)
    best = grids[-1].optimum()
    assert best is not None
    cells = list(grids[-1].cells)
    above = cells[best.index + 1]
    metrics = [0.7, 0.69, 0.1, 0.71, 0.1]
    cells[best.index + 1] = make_cell(above.effective_learning_rate, metrics, num_kept=5)
    edge = [*grids[:-1], dataclasses.replace(grids[-1], cells=tuple(cells))]
    plain, torn = (curves(g, objective="test_metric", direction=Direction.MAXIMISE) for g in (grids, edge))
    assert np.max(torn.variances[:-1] / plain.variances[:-1]) < 2
    (row,) = np.flatnonzero(torn.variances[-1] > 10 * plain.variances[-1])
    assert torn.variances[-1, row] == pytest.approx(np.var(metrics, ddof=1) / len(metrics), rel=1e-6)


@pytest.mark.parametrize("index", [2, 7, 13])
def test_intervals_hold_the_truth(index: int) -> None:
    """A quick look: eight sweeps of three families; docs/statistics.md has the whole table."""
    family = coverage_families()[index]
    held = np.zeros((8, 4))
    for number in range(8):
        simulated = simulate(family, np.random.default_rng([index, number]))
        fit, truth = fit_family(simulated.grids(), num_draws=1000), simulated.truth
        corners = np.where(np.isnan(fit.kinks), np.inf, fit.kinks)
        heights = np.array([truth.height(size) for size in fit.batch_sizes])
        for column, (draws, value) in enumerate(
            [(fit.slopes, family.slope), (corners, truth.kink), (fit.plateaus, truth.plateau)]
        ):
            low, high = np.quantile(draws, [0.025, 0.975], method="inverted_cdf")
            held[number, column] = low <= value <= high
        low, high = np.quantile(fit.heights, [0.025, 0.975], axis=0)
        held[number, 3] = np.mean((low <= heights) & (heights <= high))
    assert (held.mean(axis=0) >= 0.8).all(), held.mean(axis=0)


def test_parabolas_are_found_as_such() -> None:
    grids = landscape_grids(lambda size: size / 64, np.random.default_rng(3), shape=parabola, noise=0.001, sizes=SIZES)
    found = fit_family(grids)
    assert np.median(found.optima, axis=0) == pytest.approx([math.log2(size / 64) for size in SIZES], abs=0.05)


def test_curves_that_level_off_at_the_worst_accuracy_do_not_move_the_optimum() -> None:
    """Ten times as steep above, a parabola is below 0 two octaves on; accuracies stop there."""
    generator = np.random.default_rng(3)
    family = Family(shape="10x", num_test=400, peak=0.99, noise=0.002, sizes=SIZES)
    for _ in range(4):
        found = simulate(family, generator)
        fit = fit_family(found.grids())
        truth = [found.truth.log_optimum(size) for size in SIZES]
        low, high = np.quantile(fit.optima, [0.005, 0.995], axis=0)
        assert (low <= truth).all()
        assert (truth <= high).all()


def test_near_the_worst_value_the_shape_is_open() -> None:
    grids = grids_between(0.2)
    free, bounded = (
        curves([with_bounds(grid, bounds) for grid in grids], objective="test_metric", direction=Direction.MAXIMISE)
        for bounds in (None, (0.0, 1.0))
    )
    assert (free.depths == 0).all()
    fallen = bounded.below_best < -0.05
    parts = (bounded.below_best / bounded.best[:, None])[fallen]
    assert bounded.depths[fallen] == pytest.approx(-0.5 * bounded.below_best[fallen] * parts**2)


def shapes_of_two_kinds(steeps: tuple[float, float]) -> list[Grid]:
    """Return eight grids; the smaller four fall off so many times as steeply above, the larger four so many."""
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024)
    rows = []
    for part, steep in zip((sizes[:4], sizes[4:]), steeps, strict=True):
        rows += landscape_grids(
            lambda size: size / 64,
            np.random.default_rng(2),
            shape=lambda octaves, steep=steep: steeper(steep, octaves),
            noise=0.003,
            num_seeds=5,
            num_kept=5,
            sizes=part,
        )
    return rows


@pytest.mark.parametrize(("steeps", "num_parts"), [((4.0, 4.0), 1), ((1.0, 16.0), 2)])
def test_small_and_large_batches_have_shapes_of_their_own_where_one_does_not_fit(
    steeps: tuple[float, float], num_parts: int
) -> None:
    found = curves(shapes_of_two_kinds(steeps), objective="test_metric", direction=Direction.MAXIMISE)
    assert len(_parts(found, np.random.default_rng(0), 500)) == num_parts


def test_the_variance_that_seeds_have_in_common_is_drawn_with_its_own_error() -> None:
    """With 3 seeds it is known worse than with 10: draws of it scatter more."""
    spreads = []
    for num_seeds in (3, 10):
        found = curves(grids_between(0.2, num_seeds=num_seeds), objective="test_metric", direction=Direction.MAXIMISE)
        assert found.common_freedom == 0.5 * len(SIZES) * (num_seeds - 1)
        known = dataclasses.replace(found, common_variance=np.ones(len(SIZES)))
        spreads.append(np.std(np.log(_common_variances(known, np.random.default_rng(0), 4000))))
    assert spreads[0] > 1.8 * spreads[1]


def test_a_lone_fall_may_be_a_cliff() -> None:
    """One learning rate above the best, with accuracies down by half: the optimum may lie anywhere up to there."""
    grids = [
        dataclasses.replace(grid, cells=grid.cells[best - 1 : best + 2])
        for grid in landscape_grids(lambda _: 2.0**0.4, np.random.default_rng(0), shape=cliff, noise=0.003, sizes=SIZES)
        for best in [grid.optimum().index]  # type: ignore[union-attr]
    ]
    found = curves(grids, objective="test_metric", direction=Direction.MAXIMISE)
    assert found.used.tolist() == [[True, True, False]] * len(SIZES)
    assert (found.high == [math.log2(grid.cells[-1].effective_learning_rate) for grid in grids]).all()
    low, high = np.quantile(fit_family(grids).optima, [0.025, 0.975], axis=0)
    assert (low <= 0.4).all()
    assert (high >= 0.6).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_runs_that_blow_up_at_one_batch_size_say_nothing_about_the_peaks_of_others(seed: int) -> None:
    """Three learning rates an octave apart; at the highest one some seeds of the smallest batch are 10 to 40 away."""
    grids = [
        dataclasses.replace(grid, cells=grid.cells[best - 1 : best + 2])
        for grid in landscape_grids(
            lambda size: 0.8 if size == SIZES[0] else 1.0,
            np.random.default_rng(seed),
            shape=lambda octaves: -0.13 * octaves**2,
            noise=0.013,
            num_seeds=7,
            num_kept=7,
            sizes=SIZES,
        )
        for best in [grid.optimum().index]  # type: ignore[union-attr]
    ]
    first, *others = grids
    values = [r.test_metric for r in first.cells[-1].results]
    blown = [value - 10.0 * k if k > 3 else value for k, value in enumerate(values)]
    cell = make_cell(first.cells[-1].effective_learning_rate, blown, num_kept=7)
    grids = [dataclasses.replace(first, cells=(*first.cells[:-1], cell)), *others]
    low, high = np.quantile(fit_family(grids).optima[:, 1:], [0.025, 0.975], axis=0)
    assert (low < 0).all()
    assert (high > 0).all()
    assert (high - low < 1.5).all()


def test_steepness_may_drift_along_the_batch_sizes() -> None:
    """From parabolas at small batches to sides 32 times as steep at large ones: optima are found at all of them."""
    sizes = (8, 16, 32, 64, 128, 256)
    grids = [
        grid
        for k, size in enumerate(sizes)
        for grid in landscape_grids(
            lambda size: size / 64 * 2**0.3,
            np.random.default_rng(k),
            shape=lambda octaves, k=k: steeper(2.0**k, octaves),
            noise=0.003,
            num_seeds=5,
            num_kept=5,
            step=0.5,
            sizes=(size,),
        )
    ]
    low, high = np.quantile(fit_family(grids).optima, [0.005, 0.995], axis=0)
    truth = np.log2(sizes) - 6 + 0.3
    assert (low <= truth).all()
    assert (truth <= high).all()
    assert np.median(high - low) < 0.8


@pytest.mark.parametrize("off", [-1.5, -0.7, 0.0, 0.7])
@pytest.mark.parametrize("strays", [False, True])
def test_values_away_from_the_optima_follow_the_curves(off: float, strays: bool) -> None:
    """Where another quantity chooses the learning rates, the metric there is told from its own curves."""
    family = Family(num_points=7, strays=strays)
    simulated = simulate(family, np.random.default_rng(3))
    fit = fit_family(simulated.grids())
    truth = simulated.truth
    places = np.array([truth.log_optimum(size) for size in fit.batch_sizes]) + off
    found = fit.values_at(np.broadcast_to(places, fit.optima.shape))
    middle = (math.log2(fit.batch_sizes[0]) + math.log2(fit.batch_sizes[-1])) / 2
    for column, size in enumerate(fit.batch_sizes):
        change = truth.curve.change(off, from_middle=math.log2(size) - middle)
        low, high = np.quantile(found[:, column], [0.002, 0.998])
        assert low <= truth.height(size) + change <= high
        assert strays or high - low < 0.06


def test_at_the_optima_values_are_the_heights() -> None:
    fit = fit_family(simulate(Family(), np.random.default_rng(4)).grids())
    np.testing.assert_array_equal(fit.values_at(fit.optima), fit.heights)


def test_of_a_loss_values_away_from_the_optima_are_larger() -> None:
    grids = simulate(Family(num_points=7), np.random.default_rng(5)).grids()
    fit = fit_family(grids, objective="test_loss", direction=Direction.MINIMISE)
    assert (np.median(fit.values_at(fit.optima - 1.0) - fit.heights, axis=0) > 0.01).all()
