from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.sweep.refinement import midpoint, possible_gains

NAN = math.nan
SMALLEST = 2.0**0.25


def refined(given_rates: list[float], smallest_ratio: float = SMALLEST, *, order: str = "low first") -> list[float]:
    """Return the grid with every midpoint there is, added in one order or the other."""
    rates = list(given_rates)
    while True:
        steps = list(itertools.pairwise(rates))
        for low, high in steps if order == "low first" else reversed(steps):
            new = midpoint(low, high, given=given_rates, smallest_ratio=smallest_ratio)
            if new is not None:
                rates = sorted([*rates, new])
                break
        else:
            return rates


# -- what may be gained ----------------------------------------------------------------------------


def test_parabola_may_gain_half_of_what_it_loses_one_step_away() -> None:
    x = [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert possible_gains(x, [-(k**2) for k in x], 2) == (0.5, 0.5)


def test_gain_falls_with_the_square_of_the_step() -> None:
    coarse = possible_gains([-2, -1, 0, 1, 2], [-4.0, -1.0, 0.0, -1.0, -4.0], 2)
    fine = possible_gains([-1, -0.5, 0, 0.5, 1], [-1.0, -0.25, 0.0, -0.25, -1.0], 2)
    assert coarse == tuple(4 * gain for gain in fine)


def test_only_the_side_of_the_true_peak_may_gain_much() -> None:
    x = [-2.0, -1.0, 0.0, 1.0, 2.0]
    below, above = possible_gains(x, [-((k - 0.4) ** 2) for k in x], 2)
    assert above >= 0.4**2  # what is truly to be had
    assert below < above


def test_tied_neighbours_leave_nothing_to_gain() -> None:
    assert possible_gains([-2, -1, 0, 1, 2], [0.5, 1.0, 1.0, 1.0, 0.5], 2) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("means", "gains"),
    [
        ([-4.0, -1.0, 0.0, NAN, NAN], (2.0, 1.0)),  # a cliff above: the rise goes on up to it
        ([NAN, -1.0, 0.0, -1.0, -4.0], (1.0, 0.5)),  # one point below: the fall above, extended
        ([NAN, NAN, 0.0, -1.0, -4.0], (1.0, 2.0)),
        ([NAN, NAN, 0.0, NAN, NAN], (math.inf, math.inf)),  # nothing is known on either side
        ([-4.0, NAN, 0.0, -1.0, -4.0], (1.0, 2.0)),
    ],
)
def test_what_is_unstable_bounds_nothing(means: list[float], gains: tuple[float, float]) -> None:
    assert possible_gains([-2, -1, 0, 1, 2], means, 2) == pytest.approx(gains)


def test_the_foot_of_a_cliff_bounds_nothing() -> None:
    """Above the optimum the network no longer learns: two learning rates at chance say nothing about the way there."""
    assert possible_gains([0, 1, 2, 4, 5], [0.50, 0.53, 0.55, 0.10, 0.10], 2)[1] == pytest.approx(0.04)
    assert possible_gains([0, 1, 3, 4, 5], [0.10, 0.10, 0.55, 0.53, 0.50], 2)[0] == pytest.approx(0.04)
    # A fall that goes on is part of the peak.
    assert possible_gains([0, 1, 2, 3, 4], [0.50, 0.53, 0.55, 0.50, 0.40], 2)[1] == pytest.approx(0.0125, abs=0.01)


def test_there_is_no_bound_beyond_the_ends() -> None:
    assert possible_gains([0, 1, 2], [0.0, -1.0, -2.0], 0)[0] == math.inf
    assert possible_gains([0, 1, 2], [-2.0, -1.0, 0.0], 2)[1] == math.inf
    assert possible_gains([0], [1.0], 0) == (math.inf, math.inf)


@settings(max_examples=200, deadline=None)
@given(
    peak=st.floats(-0.5, 0.5),
    below=st.floats(0.1, 10),
    above=st.floats(0.1, 10),
    power=st.sampled_from([1.0, 1.5, 2.0]),
    step=st.sampled_from([1.0, 0.5, 0.25]),
)
def test_bound_holds_for_every_concave_curve(
    peak: float, below: float, above: float, power: float, step: float
) -> None:
    def curve(x: float) -> float:
        off = x - peak
        return -(above if off > 0 else below) * abs(off) ** power

    x = [step * k for k in range(-6, 7)]
    means = [curve(value) for value in x]
    best = max(range(len(x)), key=lambda index: means[index])
    assert -means[best] <= max(possible_gains(x, means, best)) + 1e-9  # the curve's own peak is at 0


# -- midpoints -------------------------------------------------------------------------------------


def test_halving_an_octave_twice_ends_at_the_smallest_ratio() -> None:
    assert refined([1.0, 2.0]) == [1.0, 1.18920711500272, 1.4142135623731, 1.68179283050743, 2.0]


@pytest.mark.parametrize("ratio", [1.1, 2**0.25, 1.5, 2.0, 3.0, 4.0, 10.0])
def test_neighbours_end_within_the_smallest_ratio_and_not_far_below(ratio: float) -> None:
    rates = refined([0.05, 0.05 * ratio])
    ratios = [high / low for low, high in itertools.pairwise(rates)]
    assert max(ratios) <= SMALLEST * (1 + 1e-9)
    assert len(rates) == 2 or min(ratios) > SMALLEST**0.5
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-9)


@pytest.mark.parametrize("given_rates", [[0.5, 1.0, 2.0], [0.025, 0.05, 0.1], [0.01, 0.03, 0.09], [0.3, 0.7, 3.1]])
def test_midpoints_do_not_depend_on_the_order_of_refinement(given_rates: list[float]) -> None:
    assert refined(given_rates) == refined(given_rates, order="high first")


@pytest.mark.parametrize(
    ("coarse", "fine"),
    [
        ([1.0, 4.0], [1.0, 2.0, 4.0]),
        ([0.5, 1.0], [0.5, 0.707106781186548, 1.0]),
        ([2.0**-9, 2.0**-7], [2.0**-9, 2.0**-8, 2.0**-7]),
        ([0.025, 0.1], [0.025, 0.05, 0.1]),
        ([0.09, 0.81], [0.09, 0.27, 0.81]),
    ],
)
def test_coarse_and_fine_grids_share_their_midpoints(coarse: list[float], fine: list[float]) -> None:
    assert refined(coarse) == refined(fine)


@settings(max_examples=100, deadline=None)
@given(anchor=st.integers(1, 999), places=st.integers(0, 6), octaves=st.integers(1, 3))
def test_grids_written_in_decimals_share_their_midpoints(anchor: int, places: int, octaves: int) -> None:
    low = float(f"{anchor}e-{places}")
    fine = [float(f"{anchor * 2**k}e-{places}") for k in range(octaves + 1)]
    shared = set(refined([fine[0], fine[-1]])) & set(refined(fine))
    assert low in shared
    if octaves in (1, 2):  # halving three octaves falls between those of single ones
        assert refined([fine[0], fine[-1]]) == refined(fine)
