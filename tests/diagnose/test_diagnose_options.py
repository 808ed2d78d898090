"""What makes no sense is refused before a task is looked at."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from isotherm.core.budget import Budget
from isotherm.diagnose.options import DiagnoseOptions
from isotherm.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"minutes": 0}, "minutes must be a positive number such as 5, not 0"),
        ({"minutes": math.nan}, "minutes must be a positive number such as 5, not nan"),
        ({"minutes": "5"}, "minutes must be a positive number such as 5, not '5'"),
        ({"momentum": -0.1}, "momentum=-0.1 is not in"),
        ({"momentum": 1.0}, "momentum=1.0 is not in"),
        ({"workers": 2, "device": "cuda"}, "workers=2 on 'cuda'; use 1 here"),
        ({"learning_rate": -1.0, "batch_size": 8}, "learning_rate=-1.0 is not positive"),
        ({"learning_rate": 0.1}, "needs the batch size it is used with"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, not 0"),
        ({"batch_size": 8.0}, "batch_size must be a whole number of at least 1, not 8.0"),
        ({"workers": 0}, "workers=0"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DiagnoseOptions(epochs=30, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "depends on how long you will train; give epochs .* or steps .*; neither was given"),
        ({"epochs": 3, "steps": 100}, "both were given"),
        ({"epochs": 0}, "a budget of 0 epochs is not positive"),
        ({"steps": 2.5}, "a budget of 2.5 steps is not a whole number"),
    ],
)
def test_the_length_of_the_intended_training_is_asked_for(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DiagnoseOptions(**arguments)


def test_the_intended_training_is_a_budget() -> None:
    assert DiagnoseOptions(epochs=2.5).budget == Budget.epochs(2.5)
    assert DiagnoseOptions(steps=700).budget == Budget.steps(700)


def test_options_cannot_be_changed() -> None:
    options = DiagnoseOptions(epochs=3, batch_size=8, learning_rate=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.minutes = 3.0  # type: ignore[misc]
    with pytest.raises(UserError, match="minutes must be a positive number such as 5, not -1"):
        dataclasses.replace(options, minutes=-1)
