"""Models that cannot take their inputs, or return no tensor: what is said, and that doing it helps."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from helpers_tasks import X, Y, task
from isotherm.errors import UserError
from isotherm.tasks.model_check import check_model
from isotherm.tasks.task import Task


def remedy(pattern: str, refused: Task) -> str:
    with pytest.raises(UserError, match="the model cannot take inputs of shape") as caught:
        check_model(refused)
    found = re.search(pattern, str(caught.value))
    assert found is not None, str(caught.value)
    return found[1]


def linear(*first: nn.Module, num: int = 16) -> tuple[nn.Module, ...]:
    return (*first, nn.Linear(num, 5), nn.ReLU(), nn.Linear(5, 3))


def of(x: Tensor, *layers: nn.Module) -> Task:
    return task(train=(x, Y), test=(x, Y), model=lambda: nn.Sequential(*layers))


def test_images_for_a_linear_layer_are_flattened():
    x = torch.zeros(6, 4, 4)
    layer = remedy(r"; start the model with (nn\.Flatten\(\))$", of(x, *linear()))
    check_model(of(x, *linear(eval(layer))))


def test_single_values_are_a_column():
    x = torch.zeros(6)
    code = remedy(r"are a column: use (.*)$", of(x, *linear(num=1)))
    check_model(of(eval(code, {"x": x}), *linear(num=1)))


def test_a_first_layer_of_another_width():
    width = remedy(
        r"has (\d+) values in its last dimension, the first linear layer takes 16", of(torch.zeros(6, 7), *linear())
    )
    check_model(of(torch.zeros(6, 7), *linear(num=int(width))))


CONVOLUTION = (nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


def test_images_without_channels():
    x = torch.zeros(6, 4, 4)
    code = remedy(r"a dimension of channels: use (.*)$", of(x, *CONVOLUTION))
    check_model(of(eval(code, {"x": x}), *CONVOLUTION))


@pytest.mark.parametrize("given", [lambda x: x, Tensor.numpy], ids=["tensor", "array"])
def test_images_whose_channels_come_last(given):
    layers = (nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x = given(torch.zeros(6, 4, 4, 3))
    code = remedy(r"channels come before height and width: use (.*)$", of(x, *layers))
    check_model(of(eval(code, {"x": x, "torch": torch}), *layers))


def test_images_of_other_channels():
    words = r"(the first convolution takes images of shape \(n, 1, height, width\))"
    assert remedy(words, of(torch.zeros(6, 3, 4, 4), *CONVOLUTION))


def test_complex_inputs():
    x = X + 0j
    code = remedy(r"are two real ones: use (.*)$", of(x, *linear(num=2)))
    assert task(train=(eval(code, {"x": x, "torch": torch}), Y), test=(torch.zeros(6, 2, 2), Y)).num_train == 6


def test_another_first_layer():
    said = remedy(r"; (the first dimension of inputs counts the examples)", of(X, nn.BatchNorm2d(2), nn.Flatten()))
    assert said


class Auxiliary(nn.Linear):
    """Returns a second output in training mode, as some image classifiers do."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        output = super().forward(x)
        return (output, output) if self.training else output


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Auxiliary(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0] if self.training else self.model(x)


def test_a_model_that_returns_a_tuple_in_training_mode_only():
    with pytest.raises(
        UserError, match=r"in training mode the model returns a tuple of 2; let forward return one tensor"
    ):
        check_model(task(model=lambda: Auxiliary(2, 3)))
    check_model(task(model=Chosen))
