"""What a task refuses: data, losses, metrics and settings, each with a sentence."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from helpers_tasks import REAL, TOKENS, X, Y, refused, sequence_task, task
from isotherm.errors import UserError
from isotherm.tasks.losses import LOSSES


def test_an_unknown_loss_gets_the_nearest_name():
    refused(
        ["'mine'", "unknown loss 'crossentropy'", "did you mean 'cross_entropy'", "mean_squared_error"],
        loss="crossentropy",
    )


def test_an_unknown_metric_gets_the_nearest_name():
    refused(["unknown metric 'acuracy'", "did you mean 'accuracy'", "or pass your own"], metric="acuracy")


def test_a_loss_that_is_no_function():
    refused(["loss is int", "function (output, target) -> mean"], loss=3)


def test_a_metric_without_a_direction():
    refused(["metric is function", "an isotherm.Metric"], metric=LOSSES["cross_entropy"])


@pytest.mark.parametrize("part", ["train", "test", "validation"])
def test_mismatched_lengths(part):
    words = [f"{part} data", "(6, 2)", "(5,)", "differ in length", "first dimension of both"]
    refused(words, **{part: (X, Y[:5])})


@pytest.mark.parametrize("split", [X, (X,), (X, Y, Y), {"x": X, "y": Y}, None])
def test_a_split_is_a_pair(split):
    refused(["train data", "pair (inputs, targets)", type(split).__name__], train=split)


def test_scalars_are_not_examples():
    refused(["train data", "shape ()", "counts the examples"], train=(torch.tensor(1.0), torch.tensor(1)))


def test_no_examples():
    refused(["test data", "empty", "at least one"], test=(X[:0], Y[:0]))


def test_what_is_neither_tensor_nor_array():
    refused(["train data, inputs", "object is neither a tensor nor an array", "torch.stack"], train=(object(), [0, 1]))


def test_what_a_remedy_makes_of_data_is_accepted():
    """Each remedy is taken out of the message and evaluated."""
    names = np.array(["ant", "bee", "cat"] * 2)
    for y in (names, names.tolist(), names.astype(object)):
        remedy = remedy_of(r"targets: they are strings; .*class names (.*)$", train=(X, y))
        assert task(train=(X, eval(remedy, {"np": np, "y": y}))).train[1].tolist() == Y.tolist()
    rows = [torch.zeros(2)] * 6
    data = {"x": X, "y": Y}
    remedy = remedy_of(r"it is a dict; give a pair .* e\.g\. (.*)$", train=data)
    assert torch.equal(task(train=eval(remedy, {"data": data})).train[1], Y)
    assert len(
        remedy_of(r"inputs: the rows differ in length; pad them .* e\.g\. (.*)$", train=([[1.0], [1.0, 2.0]], Y))
    )
    assert task(train=(torch.stack(rows), Y)).num_train == 6
    x = np.zeros((6, 2), dtype=np.longdouble)
    remedy = remedy_of(r"PyTorch has no type like float128; convert them, e\.g\. (.*)$", train=(x, Y))
    assert task(train=(eval(remedy, {"np": np, "x": x}), Y)).num_train == 6


def remedy_of(pattern: str, **changes) -> str:
    with pytest.raises(UserError) as caught:
        task(**changes)
    found = re.search(pattern, str(caught.value))
    assert found is not None, str(caught.value)
    return found[1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_a_number(value):
    x = X.clone()
    x[3, 1] = value
    refused(["train data, inputs", "[3, 1]", f"is {value}", "remove or replace"], train=(x, Y))


def test_a_target_that_is_not_a_number():
    y = REAL.clone()
    y[2, 0] = math.nan
    words = ["test data, targets", "[2, 0]", "is nan", "remove or replace"]
    refused(words, loss="mean_squared_error", train=(X, REAL), test=(X, y))


def test_a_negative_label():
    y = Y.clone()
    y[4] = -1
    refused(["train data", "label at index 4 is -1", "start at 0"], train=(X, y))
    y = torch.zeros(6, 3).long()
    y[4, 2] = -7
    refused(["train data", "label at index [4, 2] is -7"], train=(X, y))


def test_splits_of_different_shape():
    words = ["differ in shape", "'train': (2,)", "'test': (3,)", "make them equal"]
    refused(words, test=(torch.zeros(6, 3), Y))


@pytest.mark.parametrize("unroll", [0, -1, 1.5, True, "35"])
def test_an_unroll_that_is_no_length(unroll):
    with pytest.raises(UserError, match=r"unroll must be a whole number of at least 1, not .*; the paper uses 35"):
        sequence_task(unroll=unroll)


@pytest.mark.parametrize("split", [(TOKENS[:-1].float(), TOKENS[1:]), (TOKENS[:28].view(7, 4), TOKENS[:7])])
def test_a_sequence_is_whole_numbers_in_a_row(split):
    with pytest.raises(UserError, match=r"train data: with unroll .* use \(tokens\[:-1\], tokens\[1:\]\)"):
        sequence_task(train=split, test=split)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"l2": -1.0}, ["l2=-1.0", ">= 0"]),
        ({"l2": math.nan}, ["l2=nan", ">= 0"]),
        ({"clip_norm": 0.0}, ["clip_norm=0.0", "above 0", "None to clip nothing"]),
        ({"clip_norm": math.nan}, ["clip_norm=nan", "above 0"]),
        ({"precision": "bfloat16"}, ["precision='bfloat16' is unknown", "'mixed'"]),
        ({"l2_scope": "biases"}, ["l2_scope='biases' is unknown", "'weights', 'all'"]),
        ({"norm_statistics": "batch"}, ["norm_statistics='batch' is unknown", "'reestimated', 'running'"]),
    ],
    ids=str,
)
def test_settings_nobody_knows(changes, words):
    refused(["'mine'", *words], **changes)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("index", [(0, 0), (3, 4), (6, 6)])
def test_a_value_that_is_not_a_number_is_found_in_any_piece(index, is_transposed, monkeypatch):
    monkeypatch.setattr("isotherm.tasks.inputs._PIECE", 5)
    x = torch.zeros(7, 7)
    x[index] = math.nan
    x = x.T if is_transposed else x
    found = list(index[::-1] if is_transposed else index)
    refused([f"the value at index {found} is nan"], train=(x, torch.zeros(7).long()))
