"""The fit of a grid's optimum against closed forms; how well its ranges serve is tested with the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isotherm.analysis.optimum import STEEP, Located, locate
from isotherm.core.statistics import Floats


def one(losses: list[float], log_rates: list[float] | None = None) -> Located:
    """Return the fit to a single curve, over learning rates a factor of two apart from 0 on if not said otherwise."""
    x = np.arange(len(losses)) if log_rates is None else log_rates
    return locate(np.asarray(x, dtype=np.float64), np.array([losses]))


def found(losses: list[float], log_rates: list[float] | None = None) -> tuple[float, float, float]:
    """Return estimate, low and high of a single curve."""
    place = one(losses, log_rates)
    return float(place.log_rate[0]), float(place.low[0]), float(place.high[0])


def parabola(bottom: float, log_rates: list[float]) -> list[float]:
    return [0.3 * (x - bottom) ** 2 for x in log_rates]


@pytest.mark.parametrize("bottom", [2.5, 2.7, 3.0, 3.1, 3.49])
@pytest.mark.parametrize("log_rates", [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.5, 2.0, 3.0, 4.5, 5.0]])
def test_a_parabola_is_found_exactly_and_leaves_no_range(bottom: float, log_rates: list[float]) -> None:
    assert found(parabola(bottom, log_rates), log_rates) == pytest.approx((bottom,) * 3, abs=1e-9)


def test_many_curves_are_fitted_at_once() -> None:
    x = np.arange(6.0)
    bottoms = np.array([1.2, 2.0, 3.3])
    losses_DR: Floats = (x - bottoms[:, None]) ** 2
    place = locate(x, losses_DR)
    assert place.log_rate == pytest.approx(bottoms)
    assert place.lower.tolist() == [0.0, 1.0, 2.0]
    assert place.upper.tolist() == [2.0, 3.0, 4.0]
    assert place.has_parabola.all()


@pytest.mark.parametrize("factor", [1 / 20, 1 / 5, 5.0, 20.0, 100.0])
@pytest.mark.parametrize("bottom", np.linspace(2.6, 3.6, 11).tolist())
def test_the_range_reaches_to_the_bottom_of_two_halves_of_parabolas(factor: float, bottom: float) -> None:
    _, low, high = found([(factor if x > bottom else 1.0) * (x - bottom) ** 2 for x in range(7)])
    assert low - 1e-9 <= bottom <= high + 1e-9


def test_a_fall_that_does_not_bend_may_go_on_to_the_neighbour() -> None:
    assert found([3.0, 2.0, 1.0, 2.0, 5.0])[2] == 3.0
    assert found([3.0, 2.0, 1.0, 2.0, 5.0])[1] == 2.0
    assert found([5.0, 2.0, 1.0, 2.0, 3.0]) == (2.0, 1.0, 2.0)


def test_without_two_below_the_fall_may_go_on_and_without_two_above_it_is_a_parabola() -> None:
    place = one([2.0, 1.0, 2.0, 5.0])
    assert (place.low[0], place.high[0], place.has_two_below[0]) == (1.0, 2.0, False)
    place = one([5.0, 2.0, 1.0, 2.0])
    assert (place.low[0], place.high[0], place.has_two_below[0]) == (2.0, 2.0, True)
    assert not one([math.inf, 2.0, 1.0, 2.0]).has_two_below[0]


def test_up_to_three_times_as_steep_a_parabola_is_believed() -> None:
    for climb, believed in ((STEEP - 0.01, True), (STEEP + 0.01, False)):
        place = one([2.0, 1.0, 0.0, climb, 9.0])
        assert place.uses_parabola[0] == believed
        assert place.log_rate[0] == (pytest.approx(2.5 - climb / (1 + climb)) if believed else 2.0)
        assert place.centre[0] == pytest.approx(2.5 - climb / (1 + climb))


def test_a_steeper_climb_that_the_fall_foretells_is_believed() -> None:
    assert one(parabola(1.6, [0.0, 1.0, 2.0, 3.0])).uses_parabola[0]
    losses = parabola(1.85, [0.0, 1.0, 2.0, 3.0])
    for above in (losses[3] + 4.0, math.inf):  # not foretold: the bottom by the fall alone
        steep = one([*losses[:3], above])
        assert not steep.uses_parabola[0]
        assert steep.log_rate[0] == pytest.approx(1.85)
        assert one([*losses[1:3], above]).log_rate[0] == 1.0  # without two below, the lowest


def test_above_the_lowest_value_the_bottom_by_the_fall_is_no_estimate() -> None:
    assert found([4.0, 2.0, 0.5, math.inf])[0] == 2.0  # a parabola would have it at 4.5


def test_next_to_a_failure_and_at_an_end_the_range_is_half_a_step_below_up_to_the_next() -> None:
    for losses in ([4.0, 3.0, 2.0, math.inf], [4.0, 3.0, 2.0], [math.inf, math.inf, 2.0, 3.0]):
        assert found(losses) == (2.0, 1.5, 3.0)
        assert not one(losses).has_parabola[0]
    assert found([1.0, 2.0, 3.0]) == (0.0, -0.5, 1.0)
    assert found([4.0, 2.0, 1.5, 3.0], [0.0, 2.0, 3.0, 3.5])[1] >= 2.0


def test_at_the_end_of_the_grid_the_estimate_is_the_end() -> None:
    assert found(parabola(1.6, [0.0, 1.0, 2.0]))[0] == 2.0


def test_a_grid_of_one_learning_rate_has_an_octave_to_either_side() -> None:
    place = one([1.0], [3.0])
    assert (place.lower[0], place.log_rate[0], place.upper[0]) == (2.0, 3.0, 4.0)


def test_a_flat_bottom_is_the_first_of_the_lowest() -> None:
    assert found([1.0, 1.0, 1.0])[0] == 0.0  # the end of the grid
    assert found([9.0, 1.0, 1.0, 9.0])[0] == pytest.approx(1.5)
