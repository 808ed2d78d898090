"""Fused activations and their gradients: the operations, and their kernels, interpreted or on a GPU."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor

from helpers_kernels import DEVICE, HALF, with_kernels
from isotherm.kernels.ops import activation as activation_ops

every_kind = pytest.mark.parametrize("kind", get_args(activation_ops.Kind))


def inputs(num_rows: int, width: int, num: int, *, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return products, biases as part of something larger, and a gradient."""
    generator = torch.Generator().manual_seed(0)
    products, dy = (torch.randn(3, num_rows, width, generator=generator).to(dtype) for _ in range(2))
    biases = torch.randn(3, num + 7, generator=generator)[:, 4 : 4 + num]
    return products, biases, dy


def by_autograd(products: Tensor, biases: Tensor, dy: Tensor, kind: str) -> list[Tensor]:
    """Return units, gradient of products and its sums of the first columns, computed in float64."""
    num = biases.shape[1]
    z = (products[..., :num].double() + biases.to(products.dtype).double().unsqueeze(1)).requires_grad_()
    y = getattr(torch, kind)(z)
    (dz,) = torch.autograd.grad(y, z, dy[..., :num].double())
    return [y.detach(), dz, dz.sum(dim=1)]


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_operations_are_what_autograd_computes(kind, dtype):
    products, biases, dy = inputs(70, 24, 20, dtype=dtype)
    y = activation_ops.FORWARD(products, biases, kind)
    dz, sums = activation_ops.BACKWARD(dy, y, 20, kind)
    assert sums.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert not y[..., 20:].any()
    assert not dz[..., 20:].any()
    expected = by_autograd(products, biases, dy, kind)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(y[..., :20].double(), expected[0], **tolerance)
    torch.testing.assert_close(dz[..., :20].double(), expected[1], **tolerance)
    torch.testing.assert_close(sums.double(), dz[..., :20].double().sum(dim=1), rtol=1e-5, atol=1e-5)
    checks = {"test_utils": ("test_schema", "test_faketensor")}
    torch.library.opcheck(activation_ops.FORWARD, (products, biases, kind), **checks)
    torch.library.opcheck(activation_ops.BACKWARD, (dy, y, 20, kind), **checks)


@pytest.mark.parametrize(
    ("shape", "biases", "kind", "message"),
    [
        ((2, 3, 8), torch.zeros(2, 8), "gelu", "unknown activation 'gelu'; known: tanh, sigmoid, relu"),
        ((2, 3, 8), torch.zeros(2, 9), "tanh", r"\(2, 3, 8\); need \(runs, batch, at least 9 columns"),
        ((2, 3, 8), torch.zeros(2, 0), "tanh", "at least 0 columns"),
        ((3, 8), torch.zeros(3, 8), "tanh", r"shape \(3, 8\); need \(runs, batch, at least 8 columns\)"),
        (
            (2, 3, 8),
            torch.zeros(1, 8),
            "tanh",
            r"biases have shape \(1, 8\) .* one contiguous vector for each of 2 runs",
        ),
        ((2, 3, 8), torch.zeros(8), "tanh", "need one contiguous vector for each of 2 runs"),
        ((2, 3, 8), torch.zeros(2, 16)[:, ::2], "tanh", r"strides \(16, 2\); need one contiguous vector"),
    ],
)
def test_what_the_kernels_would_read_wrongly_is_refused(shape, biases, kind, message):
    with pytest.raises(ValueError, match=message):
        activation_ops.check(torch.zeros(shape), biases, kind)


@pytest.mark.parametrize("dy", [torch.zeros(2, 3, 7), torch.zeros(2, 3, 8).double()])
def test_a_gradient_of_something_else_is_refused(dy):
    with pytest.raises(ValueError, match="does not match the activations"):
        activation_ops.check_gradient(dy, torch.zeros(2, 3, 8), 8, "tanh")


@with_kernels
@every_kind
@pytest.mark.parametrize(
    ("num_rows", "width", "num"),
    [(300, 504, 500), (128, 256, 250), (65, 32, 30), (40, 1008, 1000), (40, 1040, 1030), (200, 8, 5)],
)
def test_kernels_are_what_pytorch_computes(kind, num_rows, width, num):
    from isotherm.kernels.triton import activation

    products, biases, dy = inputs(num_rows, width, num, dtype=HALF)
    y = activation.forward(products.to(DEVICE), biases.to(DEVICE), kind=kind)
    dz, sums = activation.backward(dy.to(DEVICE), y, num, kind=kind)
    expected = by_autograd(products, biases, dy, kind)
    torch.testing.assert_close(y[..., :num].double().cpu(), expected[0], rtol=0.01, atol=1e-3)
    from_y = activation_ops.BACKWARD(dy, y.cpu(), num, kind)
    torch.testing.assert_close(dz.cpu(), from_y[0], rtol=0.01, atol=1e-6)
    torch.testing.assert_close(sums.double().cpu(), dz[..., :num].double().cpu().sum(dim=1), rtol=1e-4, atol=1e-4)
    for values in (y, dz):
        assert not values[..., num:].any()


@with_kernels
@every_kind
def test_a_run_that_overflows_stays_alone(kind):
    from isotherm.kernels.triton import activation

    products = torch.ones(2, 70, 16, dtype=HALF, device=DEVICE)
    products[0, 3, 5] = torch.nan
    biases = torch.zeros(2, 12, device=DEVICE)
    y = activation.forward(products, biases, kind=kind)
    dz, sums = activation.backward(torch.ones_like(y), y, 12, kind=kind)
    assert y.isnan().nonzero().tolist() == [[0, 3, 5]]
    assert sums.isfinite()[1].all()
    assert dz.isfinite()[1].all()
    # As PyTorch has it: what is no number is let through by a ReLU, with the gradient as it is.
    assert sums.isnan().nonzero().tolist() == ([] if kind == "relu" else [[0, 5]])


@with_kernels
def test_small_units_are_as_exact_as_others():
    from isotherm.kernels.triton import activation

    z = torch.tensor([1e-7, 1e-6, 1e-4, 0.0299, 0.0301, 0.1, 1.0, 20.0])
    products = torch.cat([z, -z]).to(DEVICE, torch.float32).view(1, 1, 16)
    y = activation.forward(products, torch.zeros(1, 16, device=DEVICE), kind="tanh")
    torch.testing.assert_close(y.cpu().double(), products.cpu().double().tanh(), rtol=1e-5, atol=0.0)


@with_kernels
def test_a_closed_unit_has_no_gradient_whatever_comes_back():
    from isotherm.kernels.triton import activation

    y = torch.tensor([0.0, 0.0, 1.0, 1.0, torch.nan, 0.0, 0.0, 0.0], dtype=HALF).view(1, 1, 8)
    dy = torch.tensor([torch.inf, torch.nan, torch.inf, 3.0, 2.0, 1.0, 1.0, 1.0], dtype=HALF).view(1, 1, 8)
    expected = torch.ops.aten.threshold_backward(dy, y, 0)
    by_kernel, _ = activation.backward(dy.to(DEVICE), y.to(DEVICE), 8, kind="relu")
    for dz in (by_kernel.cpu(), activation_ops.BACKWARD(dy, y, 8, "relu")[0]):
        torch.testing.assert_close(dz, expected, rtol=0.0, atol=0.0, equal_nan=True)
