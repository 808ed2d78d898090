"""Targets that a loss cannot take: what is said, and that doing it helps."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_tasks import X, Y, task
from isotherm.errors import UserError
from isotherm.tasks.model_check import check_model

PROBABILITIES = torch.full((6, 3), 1 / 3)
ONE_HOT = nn.functional.one_hot(Y).double()


def message(**changes) -> str:
    with pytest.raises(UserError) as caught:
        task(**changes)
    return str(caught.value)


@pytest.mark.parametrize(
    "y",
    [
        Y.float(),
        Y > 0,
        Y.numpy().astype("float32"),
        Y.numpy() > 0,
        nn.functional.one_hot(Y).float(),
        nn.functional.one_hot(Y).numpy().astype("float64"),
    ],
    ids=lambda y: f"{type(y).__name__}-{y.dtype}-{tuple(y.shape)}",
)
def test_the_remedy_makes_labels_of_them(y):
    said = message(train=(X, y))
    assert f"cross_entropy needs whole-number labels, got {torch.as_tensor(y).dtype} of shape {tuple(y.shape)}" in said
    remedy = re.search(r"use (y\S*)$", said)[1]
    labels = eval(remedy, {"y": y})
    check_model(task(train=(X, labels), test=(X, labels)))


@pytest.mark.parametrize("given", [lambda y: y, Tensor.numpy, Tensor.tolist], ids=["tensor", "array", "list"])
def test_the_remedy_for_a_column_and_for_lists(given):
    for y, what in ((Y.float()[:, None], "they are a column: use "), (Y.float(), "use "), (ONE_HOT, "one-hot: use ")):
        y = given(y)
        said = message(train=(X, y))
        labels = eval(said.partition(what)[2], {"y": y, "np": np})
        assert labels.tolist() == Y.tolist()
        check_model(task(train=(X, labels), test=(X, labels)))


def test_real_numbers_are_regression_and_probabilities_have_a_loss():
    said = message(train=(X, PROBABILITIES))
    assert said.endswith(
        "for real numbers use loss='mse', for class probabilities loss=torch.nn.functional.cross_entropy"
    )
    split = (X, PROBABILITIES)
    check_model(task(train=split, test=split, loss="mse"))
    check_model(task(train=split, test=split, loss=torch.nn.functional.cross_entropy))


def test_complex_numbers_are_no_labels():
    assert message(train=(X, Y + 0j)).endswith("use class numbers 0, 1, 2, ...")


@pytest.mark.parametrize("y", [2 * Y - 1, (2 * Y - 1).numpy(), (2 * Y - 1).tolist()], ids=["tensor", "array", "list"])
def test_negative_labels_are_numbered(y):
    remedy = re.search(r"in every split, e\.g\. (.*\[1\]), or leave these", message(train=(X, y)))[1]
    labels = eval(remedy, {"np": np, "torch": torch, "y": y})
    assert task(train=(X, labels)).train[1].tolist() == Y.tolist()


@pytest.mark.parametrize(
    "y", [2.0 * (Y > 0) - 1, 1 + (Y > 0).long(), 1 + (Y > 0).numpy(), (1 + (Y > 0).long()).tolist()]
)
def test_two_classes_for_binary_cross_entropy(y):
    said = message(train=(X, y), loss="bce")
    assert "train data: bce needs targets from 0 to 1, these run from" in said
    labels = eval(re.search(r"for two classes use (.*)$", said)[1], {"y": y, "np": np})
    one_logit = {"model": lambda: nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), "loss": "bce"}
    found = task(train=(X, labels), test=(X, labels), **one_logit)
    assert found.train[1].tolist() == (Y > 0).float().tolist()
    check_model(found)


def test_three_classes_are_not_binary():
    assert message(train=(X, Y), loss="bce").endswith("run from 0 to 2; use labels 0 and 1, or probabilities")


def test_labels_of_several_dimensions_are_accepted():
    x, y = torch.zeros(6, 4, 2), torch.zeros(6, 4, dtype=torch.int32)
    found = task(train=(x, y), test=(x, y))
    assert found.train[1].dtype is torch.int64
    check_model(found)
    assert cases.build_mlp()(x).shape == (6, 4, 3)
