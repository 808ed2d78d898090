"""Where the optimum of a grid lies, and how far it may lie from there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers_protocol import diverged, finished, make_cell, make_grid
from isotherm.analysis.resampling import ResampledGrid, reach
from isotherm.core.records import Direction
from isotherm.sweep.protocol import Grid


def located(rows: dict[float, float], **changes: object) -> tuple[float, float, float, float]:
    """Return log2 of the optimum of a grid of one seed, and how far it may lie below, above and by itself."""
    grid = make_grid({rate: [value] for rate, value in rows.items()}, num_kept=1, **changes)  # type: ignore[arg-type]
    table = ResampledGrid(grid)
    place = table.locate(np.zeros((1, 1), dtype=np.int64))
    assert place.log_rate[0] == table.found
    (below,), (above,), (alone,) = reach(place)
    return table.found, float(below), float(above), float(alone)


@pytest.mark.parametrize("top", [-0.4, 0.0, 0.1, 0.2])
@pytest.mark.parametrize("step", [0.5, 1.0])
def test_a_parabola_is_known_to_a_quarter_step(top: float, step: float) -> None:
    rates = [2.0 ** (step * k) for k in range(-3, 4)]
    found = located({r: 0.7 - 0.03 * (math.log2(r) - step * top) ** 2 for r in rates})
    assert found == pytest.approx((step * top, step / 4, step / 4, step / 4))


def test_smaller_is_better_where_the_objective_is_minimised() -> None:
    rows = {0.5: 1.3, 1.0: 1.0, 2.0: 1.3, 4.0: 2.2}
    assert located(rows, direction=Direction.MINIMISE)[0] == pytest.approx(0.0)


def test_the_quarter_step_adds_in_squares_to_the_range() -> None:
    rows = {0.25: 0.60, 0.5: 0.65, 1.0: 0.70, 2.0: 0.65, 4.0: 0.45}  # straight from below: up to the next rate
    assert located(rows) == pytest.approx((0.0, 0.25, math.hypot(1.0, 0.25), 0.25))


def test_next_to_a_failure_the_range_is_as_it_is() -> None:
    assert located({0.25: 0.60, 0.5: 0.65, 1.0: 0.70, 2.0: math.nan}) == (0.0, 0.5, 1.0, 0.5)


def test_of_three_learning_rates_half_a_step_above_is_allowed_for_unless_they_show_a_steep_fall() -> None:
    assert located({0.5: 0.65, 1.0: 0.70, 2.0: 0.65}) == pytest.approx((0.0, 0.25, 0.5, 0.25))
    rate, below, above, _ = located({0.5: 0.65, 1.0: 0.70, 2.0: 0.54})
    top = 0.05 / 0.21 - 0.5
    assert (rate, below, above) == pytest.approx((0.0, math.hypot(top, 0.25), math.hypot(1.0, 0.25)))


def test_a_draw_in_which_every_cell_fails_keeps_the_optimum_of_all_seeds() -> None:
    rows = {
        rate: [finished(value), finished(value), diverged()] for rate, value in ((0.5, 0.6), (1.0, 0.7), (2.0, 0.6))
    }
    grid = Grid(
        axes=make_grid({1.0: [0.5]}, num_kept=1).axes,
        num_steps=10,
        cells=tuple(make_cell(rate, results, num_kept=2) for rate, results in rows.items()),
        objective="test_metric",
        direction=Direction.MAXIMISE,
    )
    table, seeds = ResampledGrid(grid), np.array([[2, 2, 2], [0, 1, 2]])
    assert table.optima(seeds).tolist() == [0.0, 0.0]
    assert table.locate(seeds).log_rate.tolist() == [0.0, 0.0]
