"""Bias and activation of a layer as one operation, with its gradient: kernels on a GPU, PyTorch on a CPU.

    isotherm::activation             matmul (M, B, W), biases (M, N) -> activations (M, B, W)
    isotherm::activation_gradient    gradient of the activations, activations -> gradients of the matmul and the biases

Rows are padded: the first N of W columns hold values, and the rest of a result is zero. The bias gradient is summed in
the same pass and is not rounded.

Shape suffixes: M runs, B examples, W columns, N features.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from isotherm.kernels.ops.registry import operation, unrounded

# The gradient of each follows from its output alone.
Kind = Literal["tanh", "sigmoid", "relu"]


@operation("activation", "(Tensor matmul, Tensor biases, str kind) -> Tensor")
def _forward(matmul_MBW: Tensor, biases_MN: Tensor, kind: Kind) -> Tensor:
    check(matmul_MBW, biases_MN, kind)
    wide = unrounded(matmul_MBW.dtype)
    num = biases_MN.shape[1]
    z = matmul_MBW[..., :num].to(wide) + biases_MN.to(matmul_MBW.dtype).to(wide).unsqueeze(1)
    return _padded(getattr(torch, kind)(z).to(matmul_MBW.dtype), matmul_MBW.shape[2])


@operation("activation_gradient", "(Tensor dy, Tensor y, int num, str kind) -> (Tensor, Tensor)")
def _backward(dy_MBW: Tensor, y_MBW: Tensor, num: int, kind: Kind) -> tuple[Tensor, Tensor]:
    check_gradient(dy_MBW, y_MBW, num, kind)
    wide = unrounded(y_MBW.dtype)
    dy, y = (values[..., :num].to(wide) for values in (dy_MBW, y_MBW))
    if kind == "relu":
        dz = torch.where(y <= 0, 0.0, dy).to(y_MBW.dtype)
    else:
        dz = (dy * (1 - y * y if kind == "tanh" else y * (1 - y))).to(y_MBW.dtype)
    return _padded(dz, y_MBW.shape[2]), dz.sum(dim=1, dtype=wide)


def _padded(values: Tensor, width: int) -> Tensor:
    return functional.pad(values, (0, width - values.shape[2]))


@_forward.register_kernel("cuda")
def _(matmul_MBW: Tensor, biases_MN: Tensor, kind: Kind) -> Tensor:
    from isotherm.kernels.triton import activation

    check(matmul_MBW, biases_MN, kind)
    return activation.forward(matmul_MBW.contiguous(), biases_MN, kind=kind)


@_backward.register_kernel("cuda")
def _(dy_MBW: Tensor, y_MBW: Tensor, num: int, kind: Kind) -> tuple[Tensor, Tensor]:
    from isotherm.kernels.triton import activation

    check_gradient(dy_MBW, y_MBW, num, kind)
    return activation.backward(dy_MBW.contiguous(), y_MBW.contiguous(), num, kind=kind)


@_forward.register_fake
def _(matmul_MBW: Tensor, biases_MN: Tensor, kind: Kind) -> Tensor:
    return matmul_MBW.new_empty(matmul_MBW.shape)


@_backward.register_fake
def _(dy_MBW: Tensor, y_MBW: Tensor, num: int, kind: Kind) -> tuple[Tensor, Tensor]:
    return y_MBW.new_empty(y_MBW.shape), y_MBW.new_empty(len(y_MBW), num, dtype=unrounded(y_MBW.dtype))


def check(matmul_MBW: Tensor, biases_MN: Tensor, kind: str) -> None:
    """Raise a ValueError for tensors that the kernels would misread."""
    if biases_MN.ndim != 2 or len(biases_MN) != len(matmul_MBW) or biases_MN.stride(1) != 1:
        raise ValueError(
            f"biases have shape {tuple(biases_MN.shape)} and strides {biases_MN.stride()}; "
            f"need one contiguous vector for each of {len(matmul_MBW)} runs"
        )
    _check_values(matmul_MBW, biases_MN.shape[1], kind)


def _check_values(values_MBW: Tensor, num: int, kind: str) -> None:
    if kind not in get_args(Kind):
        raise ValueError(f"unknown activation {kind!r}; known: {', '.join(get_args(Kind))}")
    if values_MBW.ndim != 3 or not 0 < num <= values_MBW.shape[2]:
        raise ValueError(f"values have shape {tuple(values_MBW.shape)}; need (runs, batch, at least {num} columns)")
    if values_MBW.is_cuda and values_MBW.dtype == torch.float64:
        raise ValueError("the activation kernels sum in float32 and do not support float64")


def check_gradient(dy_MBW: Tensor, y_MBW: Tensor, num: int, kind: str) -> None:
    """Raise a ValueError for tensors that the kernels would misread."""
    _check_values(y_MBW, num, kind)
    if dy_MBW.shape != y_MBW.shape or dy_MBW.dtype != y_MBW.dtype:
        raise ValueError(
            f"the gradient ({tuple(dy_MBW.shape)}, {dy_MBW.dtype}) does not match the activations "
            f"({tuple(y_MBW.shape)}, {y_MBW.dtype})"
        )


# The operations as they appear in a trace.
FORWARD = torch.ops.isotherm.activation.default
BACKWARD = torch.ops.isotherm.activation_gradient.default
