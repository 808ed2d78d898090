"""Layers that cannot be differentiated twice are named, and measured in another way on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_hessian import (
    EXACT_WAYS,
    WAYS,
    built,
)
from helpers_second_derivative import CubeOnce
from isotherm.errors import UserError
from isotherm.tasks.losses import cross_entropy
from isotherm.theory.hessian import Differentiation, Hessian

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's forward derivatives


class _DoubleOnce(torch.autograd.Function):
    """2x, whose derivative does not depend on x and refuses to be differentiated all the same."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _DoubleGradient.apply(gradient)


class _DoubleGradient(_DoubleOnce):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise NotImplementedError("a double knows one derivative")


class _OldCube(torch.autograd.Function):
    """x³ as functions were written before `torch.func`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class _CubeWithoutForward(torch.autograd.Function):
    """x³ that can be differentiated backward as often as one likes, forward never."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    setup_context = CubeOnce.setup_context

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class Cube(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return x**3 if self._function is None else self._function.apply(x)


class Body(nn.Module):
    """Calls its layers by keyword and gives back more than a tensor."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.enter, self.cube, self.leave = nn.Linear(2, 3), Cube(function), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return self.leave(input=self.cube(self.enter(x))), "ignored"


class Cubic(nn.Module):
    def __init__(self, function: Any = None) -> None:
        super().__init__()
        self.body, self.head = Body(function), nn.Sequential(nn.Tanh(), nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0])


def cubic(function: Any, **changes: Any) -> Hessian:
    x, y = cases.blobs(24, seed=0)
    module = built(lambda: Cubic(function))
    return Hessian(module, cross_entropy, inputs=x, targets=y, **{"mode": "train", **changes})


@pytest.mark.parametrize(
    ("function", "ways"),
    [
        (CubeOnce, EXACT_WAYS),
        (_DoubleOnce, EXACT_WAYS),
        (_OldCube, EXACT_WAYS),
        (_CubeWithoutForward, ("forward_over_reverse",)),
    ],
)
def test_a_layer_without_a_second_derivative_is_named(function: Any, ways: tuple[Differentiation, ...]) -> None:
    for way in ways:
        others = [other for other in WAYS if other != way]
        pattern = (
            rf"^layer 'body.cube' \(Cube\) cannot be differentiated twice by {way}: .*'{others[0]}' or '{others[1]}'"
        )
        with pytest.raises(UserError, match=pattern):
            cubic(function, differentiation=way)


def test_it_is_measured_all_the_same_when_another_way_is_asked_for() -> None:
    exact = cubic(None)
    vector = np.random.default_rng(5).standard_normal(exact.num_parameters)
    expected = exact.product(vector)
    for function in (CubeOnce, _OldCube):
        found = cubic(function, differentiation="finite_difference").product(vector)
        np.testing.assert_allclose(found, expected, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(cubic(_CubeWithoutForward).product(vector), expected, atol=1e-12)


def test_all_such_layers_are_named() -> None:
    x, y = cases.blobs(24, seed=0)
    module = built(lambda: nn.Sequential(nn.Linear(2, 3), Cube(CubeOnce), nn.Linear(3, 3), Cube(CubeOnce)))
    with pytest.raises(UserError, match=r"^layer '1' \(Cube\) and layer '3' \(Cube\) cannot.*a cube knows one"):
        Hessian(module, cross_entropy, inputs=x, targets=y, mode="train")


def test_a_loss_without_a_second_derivative_is_named() -> None:
    x, y = cases.blobs(24, seed=0)
    with pytest.raises(UserError, match=r"^the loss cannot be differentiated twice by reverse_over_reverse: a cube"):
        Hessian(cases.build_mlp(), lambda o, t: CubeOnce.apply(o).mean(), inputs=x, targets=y, mode="train")


def test_other_errors_keep_their_own_words() -> None:
    x, y = cases.blobs(24, seed=0)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        Hessian(nn.Linear(5, 3), cross_entropy, inputs=x, targets=y, mode="train")
