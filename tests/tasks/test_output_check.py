"""Outputs and targets that do not fit each other: what is said, and that doing it helps."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_tasks import X, Y, task
from isotherm.errors import UserError
from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS, Metric
from isotherm.tasks.model_check import check_model
from isotherm.tasks.task import Task

REAL = torch.linspace(-1, 1, 6)
HALVES = torch.tensor([0, 1, 0, 1, 0, 1])
OF_EQUAL_SHAPES = sorted(LOSSES.keys() - {"cross_entropy"})


def made(y: Tensor, model=cases.build_mlp, x: Tensor = X, **changes) -> Task:
    return task(train=(x, y), test=(x, y), model=model, **changes)


def refusal(made_task: Task) -> str:
    with pytest.raises(UserError) as caught:
        check_model(made_task)
    return str(caught.value)


def remedy(pattern: str, refused: Task) -> str:
    said = refusal(refused)
    found = re.search(pattern, said)
    assert found is not None, said
    return found[1]


def linear(num: int, *layers: nn.Module):
    return lambda: nn.Sequential(nn.Linear(2, num), *layers)


# -- (n, 1) and (n,) --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", OF_EQUAL_SHAPES)
def test_one_output_per_example_does_not_meet_targets_in_a_row(loss):
    y = HALVES.float()
    said = refusal(made(y, linear(1), loss=loss))
    assert f"{loss} needs outputs shaped like the targets, the model gives (4, 1) for targets (4,)" in said
    layer, targets = re.search(r"end the model with (\S+), or give the targets as (.*)$", said).groups()
    check_model(made(y, linear(1, eval(layer)), loss=loss))
    check_model(made(eval(targets, {"y": y}), linear(1), loss=loss))


@pytest.mark.parametrize("loss", OF_EQUAL_SHAPES)
def test_outputs_in_a_row_do_not_meet_targets_in_a_column(loss):
    y = HALVES.float()[:, None]
    targets = remedy(
        r"the model gives \(4,\) for targets \(4, 1\); give the targets as (.*)$",
        made(y, linear(1, nn.Flatten(0)), loss=loss),
    )
    check_model(made(eval(targets, {"y": y}), linear(1, nn.Flatten(0)), loss=loss))


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.MSELoss(), lambda o, t: (o - t).abs().mean()])
def test_nor_with_a_loss_or_metric_of_ones_own(loss):
    said = refusal(made(REAL, linear(1), loss=loss))
    assert "outputs (4, 1) with targets (4,) would be broadcast against each other by the loss" in said
    check_model(made(REAL, linear(1, nn.Flatten(0)), loss=loss))
    check_model(made(REAL[:, None], linear(1), loss=loss))
    assert "broadcast" in refusal(made(REAL[:, None], linear(1, nn.Flatten(0)), loss=loss))


@pytest.mark.parametrize("metric", ["mse", "squared_error", "bce", "r2"])
def test_nor_with_a_metric_by_name(metric):
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return output.mean()

    assert f"metric {metric!r} needs outputs shaped like the targets" in refusal(
        made(REAL, linear(3), loss=loss, metric=metric)
    )


# -- real targets -----------------------------------------------------------------------------------------------------


def test_other_shapes_of_real_targets():
    images = REAL[:, None, None].expand(6, 2, 2)
    targets = remedy(
        r"for targets \(4, 2, 2\); give the targets as (y\.reshape.*)$", made(images, linear(4), loss="mse")
    )
    check_model(made(eval(targets, {"y": images}), linear(4), loss="mse"))
    number = remedy(
        r"as many outputs as there are targets per example, (\d+)$", made(images[:, 0], linear(5), loss="mse")
    )
    check_model(made(images[:, 0], linear(int(number)), loss="mse"))


def test_class_labels_for_a_squared_error():
    assert refusal(made(Y, loss="mse")).endswith("for class labels use loss='cross_entropy'")
    check_model(made(Y, loss="cross_entropy"))


def test_real_targets_for_a_metric_of_classes():
    real = REAL[:, None].expand(6, 3)
    said = refusal(made(real, loss="mse", metric="accuracy"))
    assert "metric 'accuracy' needs class labels, the targets are torch.float32 of shape (4, 3)" in said
    for metric in re.findall(r"'(mse|r2)'", said):
        check_model(made(real, loss="mse", metric=metric))


# -- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "words"),
    [(Y[:, None], "the labels are a column"), (nn.functional.one_hot(Y), "the labels are one-hot")],
    ids=["column", "one-hot"],
)
@pytest.mark.parametrize("as_given", [lambda y: y, lambda y: y.numpy()], ids=["tensor", "array"])
def test_labels_in_a_column_and_one_hot(y, words, as_given):
    y = as_given(y)
    labels = eval(remedy(rf"{words}: use (.*)$", made(y)), {"y": y})
    assert labels.tolist() == Y.tolist()
    check_model(made(labels))


class ClassesFirst(nn.Module):
    def __init__(self, remedy: str = "output") -> None:
        super().__init__()
        self.layer, self.remedy = nn.Linear(2, 3), remedy

    def forward(self, x: Tensor) -> Tensor:
        return eval(self.remedy, {"output": self.layer(x).movedim(-1, 1)})


def test_classes_belong_into_the_last_dimension():
    x, y = torch.zeros(6, 5, 2), torch.zeros(6, 5, dtype=torch.int64)
    fixed = remedy(r"let the model return (.*)$", made(y, ClassesFirst, x))
    check_model(made(y, partial(ClassesFirst, fixed), x))


def test_one_logit_is_for_binary_cross_entropy():
    said = refusal(made(HALVES, linear(1)))
    assert (
        "for one logit per label use loss='bce', else end the model in a linear layer with one output per class" in said
    )
    check_model(made(HALVES, linear(1, nn.Flatten(0)), loss="bce"))
    check_model(made(HALVES, linear(2)))


def test_one_label_for_many_positions():
    x = torch.zeros(6, 5, 2)
    said = refusal(made(Y, x=x))
    assert "the model gives (4, 5, 3) for labels (4,); give a label for every position, or let the model return" in said
    check_model(made(Y[:, None].expand(6, 5), x=x))


@pytest.mark.parametrize("start", [1, 3])
def test_labels_that_start_above_0(start):
    code = remedy(rf"yours start at {start}: use (.*) in every split", made(Y + start))
    check_model(made(eval(code, {"y": Y + start})))


# -- metrics over a split ---------------------------------------------------------------------------------------------


def test_auc_is_for_two_classes():
    said = refusal(made(Y, metric="auc"))
    assert "metric 'auc' is for two classes, the model has 3 outputs; use metric='f1' or 'accuracy'" in said
    check_model(made(Y, metric="f1"))
    check_model(made(HALVES, linear(2), metric="auc"))
    check_model(made(HALVES, linear(1, nn.Flatten(0)), loss="bce", metric="auc"))


def test_auc_needs_both_classes_in_every_split():
    one_logit = {"model": linear(1, nn.Flatten(0)), "loss": "bce", "metric": "auc", "train": (X, HALVES)}
    said = refusal(task(test=(X, 0 * HALVES), **one_logit))
    assert "test data: auc needs labels 0 and 1, both of them; these are 0; give the split both classes" in said
    check_model(task(test=(X, HALVES), **one_logit))
    check_model(task(test=(X, 0 * HALVES), **{**one_logit, "metric": "bce"}))


def test_r2_needs_targets_that_differ():
    said = refusal(made(torch.ones(6), linear(1, nn.Flatten(0)), loss="mse", metric="r2"))
    assert said.endswith("all targets are equal, so r2 is not defined; use metric='mse'")
    check_model(made(torch.ones(6), linear(1, nn.Flatten(0)), loss="mse", metric="mse"))


def test_a_metric_over_the_split_returns_one_number():
    def own(function) -> Task:
        return made(Y, metric=Metric(name="mine", function=function, direction="maximise", over="split"))

    assert refusal(own(lambda o, t: o)).endswith("must return one number, not a tensor of shape (6, 3); return a float")
    assert refusal(own(lambda o, t: None)).endswith("must return one number, not NoneType; return a float")
    check_model(own(lambda o, t: 0.5))
    check_model(own(METRICS["accuracy"].function))


def test_a_metric_over_the_split_may_need_what_some_examples_lack():
    """One of 400 labels is 1: few examples may have none of them."""
    x, y = torch.zeros(400, 2), torch.zeros(400, dtype=torch.int64)
    y[399] = 1

    def strict(output: Tensor, target: Tensor) -> float:
        if len(target.unique()) < 2:
            raise ValueError("one class only")
        return 0.5

    metric = Metric(name="strict", function=strict, direction="maximise", over="split")
    check_model(made(y, x=x, metric=metric))
    assert "ValueError: one class only (test_output_check.py, line" in refusal(made(0 * y, x=x, metric=metric))
