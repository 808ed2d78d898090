"""Grids of learning rates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isotherm.core.rates import IsothermGrid, powers_of_two, tidy
from isotherm.errors import UserError


def test_powers_of_two_includes_both_ends() -> None:
    assert powers_of_two(-2, 1) == (0.25, 0.5, 1.0, 2.0)
    assert powers_of_two(3, 3) == (8.0,)


def test_powers_of_two_in_the_wrong_order_is_refused() -> None:
    with pytest.raises(UserError, match=r"powers_of_two\(2, 1\) is empty; the lower exponent comes first"):
        powers_of_two(2, 1)


def test_isotherm_grid_is_centred_on_temperature_times_batch_size() -> None:
    grid = IsothermGrid(temperature=2**-6, num_below=1, num_above=3)
    assert grid.at(64) == (0.5, 1.0, 2.0, 4.0, 8.0)
    assert grid.at(128) == (1.0, 2.0, 4.0, 8.0, 16.0)


def test_isotherm_grid_stays_at_the_ceiling() -> None:
    grid = IsothermGrid(temperature=2**-5, ceiling=4.0, num_below=1, num_above=1)
    assert grid.at(64) == (1.0, 2.0, 4.0)
    assert grid.at(128) == (2.0, 4.0, 8.0)
    assert grid.at(4096) == (2.0, 4.0, 8.0)


def test_isotherm_grid_uses_its_ratio() -> None:
    assert IsothermGrid(temperature=0.25, ratio=4.0, num_below=1, num_above=1).at(4) == (0.25, 1.0, 4.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, r"temperature must be a positive number, not 0.0"),
        ({"temperature": -1.0}, r"temperature must be a positive number, not -1.0"),
        ({"temperature": math.nan}, r"temperature must be a positive number, not nan"),
        ({"temperature": math.inf}, r"temperature must be a positive number, not inf"),
        ({"temperature": "0.1"}, r"temperature must be a positive number, not '0.1'"),
        ({"temperature": True}, r"temperature must be a positive number, not True"),
        ({"ceiling": 0.0}, r"ceiling=0.0 is not positive; give the largest learning rate worth trying"),
        ({"ceiling": math.nan}, r"ceiling=nan is not positive"),
        ({"num_below": -1}, r"num_below must be a whole number of at least 0, not -1"),
        ({"num_above": -3}, r"num_above must be a whole number of at least 0, not -3"),
        ({"ratio": 1.0}, r"ratio=1.0 is not above 1; neighbouring learning rates differ by this factor"),
        ({"ratio": 0.5}, r"ratio=0.5 is not above 1"),
        ({"ratio": math.nan}, r"ratio=nan is not above 1"),
        ({"ratio": math.inf}, r"ratio=inf is not above 1"),
    ],
)
def test_bad_isotherm_grid_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IsothermGrid(**{"temperature": 0.1, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [{"ceiling": "8"}, {"ratio": "2"}, {"num_below": "1"}, {"num_above": 1.5}, {"num_above": True}],
    ids=str,
)
def test_isotherm_grid_refuses_wrong_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(arguments))):
        IsothermGrid(**{"temperature": 0.1, **arguments})


def test_a_computed_rate_meets_the_one_that_was_written() -> None:
    assert tidy(0.1 * 3) == 0.3
    assert tidy(2.0**-40) == 2.0**-40
