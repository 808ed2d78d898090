"""A function that can be differentiated once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class CubeOnce(torch.autograd.Function):
    """x³, whose derivative is a function that refuses to be differentiated."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _CubeGradient.apply(gradient, ctx.saved_tensors[0])

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return CubeOnce.apply(x), in_dims[0]


class _CubeGradient(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, x: Tensor) -> Tensor:
        return 3 * x**2 * gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> Tensor:
        raise NotImplementedError("a cube knows one derivative")

    @staticmethod
    def vmap(info: Any, in_dims: Any, gradient: Tensor, x: Tensor) -> tuple[Tensor, int]:
        return _CubeGradient.apply(gradient, x), 0
