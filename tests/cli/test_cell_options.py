"""From the options of a cell to its settings."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.cli.cell_options import CellOptions, CellSettings, parsed_values
from isotherm.core.budget import Budget
from isotherm.core.optimizers import AdamW
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
        ({"optimizer": "adamw"}, "--task needs --learning-rate; add it, e.g. --learning-rate 0.001"),
        ({"learning_rate": 1.0, "effective_learning_rate": 1.0}, "are both given; leave one out"),
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
        (CellOptions(task="blobs", batch_size=8), "--task needs --effective-learning-rate"),
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
