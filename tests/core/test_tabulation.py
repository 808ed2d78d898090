"""Functions as points: how close, how many, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.core.tabulation import MOST_POINTS, TOLERANCE, checked_points, tabulated
from isotherm.errors import UserError


@pytest.mark.parametrize(
    ("function", "most_points"),
    [
        (lambda t: 1.0, 2),
        (lambda t: 0.0, 2),
        (lambda t: 1 - t, 2),
        (lambda t: 1 - abs(t - 0.5), 3),
        (lambda t: 1.0 if t < 0.8 else 0.1, 4),
        (lambda t: 0.1 ** math.floor(3 * t), 8),
        (lambda t: 0.5 * (1 + math.cos(math.pi * t)), 450),
        (lambda t: 1 + math.cos(8 * math.pi * t), 4_000),
    ],
)
def test_lines_between_few_points_are_close_to_the_function(function, most_points):
    points = tabulated(function)
    assert len(points) <= most_points
    x, y = np.array(points).T
    where = np.linspace(0, 1, 9973)
    expected = np.array([function(t) for t in where])
    assert np.abs(np.interp(where, x, y) - expected).max() <= 1.5 * TOLERANCE * max(expected.max(), 1e-9)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0, 2)), min_size=1, max_size=5, unique_by=lambda p: p[0]))
def test_lines_are_found_again(inner):
    x, y = np.array([(0.0, 1.0), *sorted(inner), (1.0, 0.5)]).T
    points = tabulated(lambda t: float(np.interp(t, x, y)))
    where = np.linspace(0, 1, 501)
    again = np.interp(where, *np.array(points).T)
    assert np.abs(again - np.interp(where, x, y)).max() <= 4 * TOLERANCE * max(y.max(), 1e-9)


def test_equal_functions_have_equal_points():
    assert tabulated(lambda t: t * t) == tabulated(lambda u: math.pow(u, 2))
    assert tabulated(lambda t: t * t) != tabulated(lambda t: t * t * t)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, "1", None, True])
def test_what_no_learning_rate_is_multiplied_by_is_refused(value):
    with pytest.raises(UserError, match=r"function returns .* at the fraction 0.5.*finite number of at least 0"):
        tabulated(lambda t: value if t == 0.5 else 1.0)


def test_a_function_of_noise_is_refused():
    random = np.random.default_rng(0)
    with pytest.raises(UserError, match=f"{MOST_POINTS:,} points do not describe it"):
        tabulated(lambda _t: float(random.random()))


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(0, 1)], "two or more pairs"),
        ("cosine", "two or more pairs"),
        ([0, 1], "no pair"),
        ([(0, 1), (1, "x")], "no pair"),
        ([(0, 1), (0.5, 1, 1), (1, 0)], "no pair"),
        ([(0, 1), (1.5, 0)], "1.5 of the point .* is not between 0 and 1"),
        ([(0, 1), (1, -0.1)], "multiplier -0.1 at the fraction 1"),
        ([(0, math.nan), (1, 0)], "multiplier nan"),
        ([(0, 1), (0.5, 0)], r"rise from 0 to 1, not \[0, 0.5\]"),
        ([(0, 1), (0.5, 1), (0.2, 1), (1, 0)], "rise from 0 to 1"),
        ([(0, 1), (0.5, 1), (0.5, 0.5), (0.5, 0), (1, 0)], "three points"),
        ([(0, 1), (1, 1), (1, 0)], "never gets there"),
    ],
)
def test_points_that_are_no_schedule_are_refused(points, words):
    with pytest.raises(UserError, match=words):
        checked_points(points)
