"""From the options of a cell to its settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from isotherm.cli.cell_options import CellOptions, CellSettings, parsed_values
from isotherm.cli.schedule_options import ScheduleOptions
from isotherm.core.budget import Budget
from isotherm.core.optimizers import AdamW
from isotherm.core.schedule import Schedule
from isotherm.errors import UserError

LEAST = CellOptions(task="blobs", batch_size=8, effective_learning_rate=0.5, steps=10)


def test_what_is_left_out_has_its_default() -> None:
    LEAST.check()
    expected = CellSettings(batch_size=8, effective_learning_rate=0.5, budget=Budget.steps(10))
    assert LEAST.settings() == expected
    assert LEAST.task_options() == {"model": {}, "transform": {}}
    assert LEAST.given() == ["--batch-size", "--effective-learning-rate", "--steps"]


def test_what_is_given_is_kept_zeros_included() -> None:
    options = CellOptions(
        task="blobs",
        batch_size=8,
        effective_learning_rate=0.5,
        epochs=1.5,
        momentum=0.0,
        num_seeds=3,
        first_seed=0,
        l2=0.0,
        clip_norm=2.0,
        precision="float64",
        num_evaluations=0,
        model=["depth=22"],
        transform=["flip=false"],
    )
    assert options.settings() == CellSettings(
        batch_size=8,
        effective_learning_rate=0.5,
        budget=Budget.epochs(1.5),
        momentum=0.0,
        num_seeds=3,
        l2=0.0,
        clip_norm=2.0,
        precision="float64",
        num_evaluations=0,
    )
    assert options.task_options() == {"model": {"depth": 22}, "transform": {"flip": False}}
    assert {"--seeds", "--evaluations", "--l2", "--model"} < set(options.given())


def test_an_optimiser_and_its_own_learning_rate() -> None:
    options = CellOptions(
        task="blobs",
        batch_size=8,
        learning_rate=0.01,
        steps=10,
        optimizer="adamw",
        optimizer_option=["weight_decay=0.1", "reference_batch_size=4"],
    )
    options.check()
    found = options.settings()
    assert (found.learning_rate, found.effective_learning_rate, found.momentum) == (0.01, None, None)
    assert found.optimizer == AdamW(weight_decay=0.1, reference_batch_size=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adamw"}, "--task needs --learning-rate or --effective-learning-rate"),
        ({"learning_rate": 1.0, "effective_learning_rate": 1.0}, "leave one out"),
        ({"learning_rate": 1.0, "optimizer_option": ["beta1=0.5"]}, "--optimizer-option needs --optimizer"),
    ],
)
def test_options_of_optimisers_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CellOptions(task="blobs", batch_size=8, steps=1, **changes).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CellOptions(task="blobs"), "--task needs --batch-size; add it, e.g. --batch-size 64"),
        (
            CellOptions(task="blobs", batch_size=8),
            "--task needs --learning-rate or --effective-learning-rate; add e.g.",
        ),
        (
            CellOptions(task="blobs", batch_size=8, learning_rate=0.1, effective_learning_rate=1.0, steps=1),
            "both given; one follows from the other and the momentum: leave one out",
        ),
        (CellOptions(task="blobs", batch_size=8, effective_learning_rate=1.0), "neither is given"),
        (CellOptions(task="b", batch_size=8, effective_learning_rate=1.0, steps=1, epochs=1), "both are given"),
    ],
)
def test_half_a_cell_is_refused(options: CellOptions, message: str) -> None:
    with pytest.raises(UserError, match=message):
        options.check()


@pytest.mark.parametrize("text", ["depth", "depth=", "=3", ""])
def test_what_is_not_name_and_value_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not NAME=VALUE"):
        parsed_values([text], "--model")


@pytest.mark.parametrize(("momentum", "effective"), [(None, 0.5), (0.0, 0.05), (0.75, 0.2)])
def test_a_bare_learning_rate_is_the_effective_one_times_one_minus_the_momentum(
    momentum: float | None, effective: float
) -> None:
    options = CellOptions(task="blobs", batch_size=8, learning_rate=0.05, steps=10, momentum=momentum)
    options.check()
    assert options.settings().effective_learning_rate == effective  # to the last digit: it is part of the key
    assert "--learning-rate" in options.given()


def test_an_optimiser_without_an_effective_rate_names_the_option_of_the_command() -> None:
    options = CellOptions(task="blobs", batch_size=8, effective_learning_rate=0.01, steps=10, optimizer="adamw")
    with pytest.raises(
        UserError, match=r"AdamW has no effective .*; give --learning-rate 0\.01 in place of --effective-"
    ):
        options.settings()


def test_a_schedule_and_its_options() -> None:
    given = ScheduleOptions(schedule="wsd", warmup_steps=10, decay_fraction=0.1, final_fraction=0.0)
    options = dataclasses.replace(LEAST, schedule_options=given)
    assert options.settings().schedule == Schedule.wsd(warmup_steps=10, decay_fraction=0.1, final_fraction=0.0)
    assert options.given()[-4:] == ["--schedule", "--warmup-steps", "--decay-fraction", "--final-fraction"]
    assert ScheduleOptions(warmup_fraction=0.1).made() == Schedule(warmup_fraction=0.1)
    assert ScheduleOptions().made() == Schedule()
    with pytest.raises(UserError, match=r"final_fraction=0\.1 is no option of the schedule 'constant'"):
        ScheduleOptions(schedule="constant", final_fraction=0.1).made()
