"""Models that are tried on a few examples before anything is trained."""

from __future__ import annotations

import dataclasses
import math
import re
import traceback

import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_tasks import X, Y, images_task, sequence_task, task
from isotherm.core.records import Direction
from isotherm.data.augment import Scaled
from isotherm.errors import UserError
from isotherm.tasks.metrics import Metric
from isotherm.tasks.model_check import check_model, example_batch


def refused_model(words: list[str], **changes) -> None:
    """Assert that the task is made, that its model is refused, and why."""
    made = task(**changes)
    with pytest.raises(UserError) as caught:
        check_model(made)
    assert [word for word in words if word not in str(caught.value)] == []


ALL_TASKS = [
    cases.blobs_task,
    cases.dropout_task,
    cases.conv_task,
    cases.batch_norm_task,
    cases.tied_task,
    cases.frozen_task,
    cases.unvectorisable_task,
    cases.stateful_task,
    cases.regression_task,
    cases.quadratic_task,
]


@pytest.mark.parametrize("make", ALL_TASKS)
def test_a_trainable_model_passes(make):
    assert check_model(make()) is None


def test_checking_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    check_model(cases.dropout_task())
    assert torch.equal(torch.rand(()), expected)


def test_a_builder_that_raises():
    def build() -> nn.Module:
        raise KeyError("width")

    refused_model(["'mine'", "building the model raised KeyError", "width"], model=build)


def test_a_builder_that_returns_no_module():
    refused_model(["returned list", "torch.nn.Module"], model=list)


def test_no_parameters():
    refused_model(["'mine'", "no trainable parameters"], model=nn.Identity)


def test_only_frozen_parameters():
    refused_model(["no trainable parameters"], model=lambda: nn.Linear(2, 3).requires_grad_(False))


def test_inputs_the_model_cannot_take():
    words = ["'mine'", "cannot take inputs of shape (4, 2)", "torch.float32", "RuntimeError"]
    refused_model(words, model=lambda: nn.Linear(7, 3))


class Wrapped(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return super().forward(x), None


class Named(nn.Linear):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x), "hidden": x}


class Chosen(nn.Module):
    """What the remedy says: a module whose forward returns one part of the output."""

    def __init__(self, model: nn.Module, remedy: str) -> None:
        super().__init__()
        self.model, self.remedy = model, remedy

    def forward(self, x: Tensor) -> Tensor:
        return eval(self.remedy, {"self": self, "x": x})


@pytest.mark.parametrize(
    ("kind", "returned"), [(Wrapped, "a tuple of 2"), (Named, "a dict of 'logits', 'hidden'")], ids=["tuple", "dict"]
)
def test_an_output_that_is_no_tensor_is_wrapped_as_the_remedy_says(kind, returned):
    with pytest.raises(UserError) as caught:
        check_model(task(model=lambda: kind(2, 3)))
    assert f"the model returns {returned}; let forward return one tensor, e.g. output[" in str(caught.value)
    remedy = re.search(r"whose forward is return (.*)$", str(caught.value))[1]
    check_model(task(model=lambda: Chosen(kind(2, 3), remedy)))


def test_an_output_of_another_kind():
    refused_model(["returns str; let forward return one tensor"], model=lambda: Says(2, 3))


class Says(nn.Linear):
    def forward(self, x: Tensor) -> str:
        return "hello"


def test_whole_numbers_reach_the_model_as_such():
    pixels = torch.zeros(6, 2, dtype=torch.uint8)
    words = ["cannot take inputs of shape (4, 2) and type torch.uint8", "use x.float(), or a transform"]
    refused_model(words, train=(pixels, Y), test=(pixels, Y))
    check_model(task(train=(pixels.float(), Y), test=(pixels.float(), Y)))
    check_model(task(train=(pixels, Y), test=(pixels, Y), transform=Scaled()))


class Fails(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(7, -1))


def test_an_error_in_the_model_says_where_it_arose_and_keeps_its_traceback():
    line = Fails.forward.__code__.co_firstlineno + 1
    with pytest.raises(UserError, match=rf"RuntimeError: shape .* \(test_model_check\.py, line {line}\)") as caught:
        check_model(task(model=lambda: Fails(2, 3)))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "x.view(7, -1)" in "".join(traceback.format_tb(caught.value.__cause__.__traceback__))


def test_a_label_out_of_range_in_any_split():
    y = Y.clone()
    y[5] = 3
    words = ["label 3 is out of range", "3 outputs", "from 0 to 2", "give the last layer 4 outputs"]
    refused_model(words, test=(X, y))
    check_model(task(model=lambda: nn.Linear(2, 4), test=(X, y)))


def test_a_loss_that_returns_a_vector():
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none")

    refused_model(["the loss must return a scalar tensor", "mean over the batch", "(4,)"], loss=loss)


def test_a_loss_that_returns_a_number():
    words = ["the loss must return a scalar tensor", "not float"]
    refused_model(words, loss=lambda output, target: float(output.sum()))


def test_a_metric_that_returns_a_vector():
    metric = Metric(name="hits", function=lambda o, t: o.argmax(-1) == t, direction=Direction.MAXIMISE)
    refused_model(
        ["the metric must return a scalar tensor", "(4,)", "end it in .mean(), or pass over='split'"], metric=metric
    )


def test_a_loss_that_raises():
    def loss(output: Tensor, target: Tensor) -> Tensor:
        raise IndexError("no such class")

    words = ["the loss cannot take outputs of shape (4, 3)", "targets of shape (4,)", "IndexError: no such class"]
    refused_model(words, loss=loss)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_initial_loss_that_is_not_finite(value):
    words = ["loss of the untrained model is", str(value), "initialisation", "scale of the inputs"]
    refused_model(words, loss=lambda output, target: output.sum() * 0 + value)


@pytest.mark.parametrize("unroll", [1, 5, 29, 40])
def test_a_model_with_a_state_passes(unroll):
    made = sequence_task(unroll=unroll)
    assert check_model(made) is None
    x, y = example_batch(made)
    assert x.shape == y.shape == (4, unroll)


def test_a_model_without_a_state_for_a_sequence():
    with pytest.raises(
        UserError, match=r"'mine': with unroll the model carries a state: .*initial_state\(batch_size\)"
    ):
        check_model(sequence_task(model=lambda: nn.Linear(5, 4)))


def test_batch_sizes_that_ghost_batch_norm_cannot_divide_are_refused_before_anything_runs():
    check_model(images_task(), [7, 64, 128])
    with pytest.raises(UserError, match=r"a batch of 100 cannot be split into ghost batches of 64; use .* 64 or 128"):
        check_model(images_task(), [64, 100])


def test_the_transform_is_tried_as_training_uses_it():
    with pytest.raises(UserError, match=r"pad=8 is not below the image size 8 x 8"):
        check_model(images_task().with_options(transform={"pad": 8}))


class FailsInTraining:
    def train(self, inputs, bits):
        raise KeyError("no such colour")

    def evaluate(self, inputs):
        return inputs.float()

    def targets(self, targets):
        return targets


def test_a_transform_that_raises_is_named():
    with pytest.raises(UserError, match=r"the transform cannot take inputs of shape .* KeyError: 'no such colour'"):
        check_model(dataclasses.replace(images_task(), transform=FailsInTraining()))


class InPlace(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5))


def test_a_model_may_write_into_its_inputs_and_the_data_stay():
    x = X.clone()
    assert check_model(task(model=lambda: InPlace(2, 3), train=(x, Y))) is None
    assert torch.equal(x, X)


def test_a_model_may_change_what_a_transform_made_for_it():
    pixels = torch.zeros(6, 2, dtype=torch.uint8)
    made = task(model=lambda: InPlace(2, 3), train=(pixels, Y), test=(pixels, Y), transform=Scaled())
    assert check_model(made) is None
