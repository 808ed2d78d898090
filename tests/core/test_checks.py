"""Checks name the value and the remedy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from isotherm.core.checks import is_number, require_choice, require_positive, require_some, require_whole
from isotherm.errors import UserError


@pytest.mark.parametrize(("value", "expected"), [(1, True), (np.float32(0.5), True), (True, False), ("1", False)])
def test_numbers_are_numbers_of_any_library_but_no_truth_values(value: Any, expected: bool) -> None:
    assert is_number(value) is expected


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "2", True])
def test_positive_is_finite_and_above_zero(value: Any) -> None:
    require_positive("rate", 1e-300)
    with pytest.raises(UserError, match=r"rate must be a positive number, not"):
        require_positive("rate", value)


def test_whole_numbers_have_limits() -> None:
    require_whole("num_seeds", np.int64(3), at_least=1, at_most=3)
    for value in (0, 1.0, True):
        with pytest.raises(UserError, match="whole number of at least 1"):
            require_whole("num_seeds", value, at_least=1)
    with pytest.raises(UserError, match="must be at most 3, not"):
        require_whole("num_seeds", 4, at_least=1, at_most=3)


def test_a_sequence_holds_something_and_is_no_text() -> None:
    require_some("batch_sizes", [8])
    for value in ("8", 8, []):
        with pytest.raises(UserError, match="batch_sizes"):
            require_some("batch_sizes", value)


def test_a_choice_is_one_of_those_named() -> None:
    require_choice("tune_on", "test", ("test", "train"))
    with pytest.raises(UserError, match="use one of 'test', 'train'"):
        require_choice("tune_on", "tests", ("test", "train"))
