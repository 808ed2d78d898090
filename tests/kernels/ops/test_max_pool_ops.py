"""Max pooling of many runs against PyTorch's, ties and layouts included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from isotherm.engine.graph.trace import trace
from isotherm.kernels import availability
from isotherm.kernels.dispatch import by_kernels
from isotherm.kernels.layout import has_channels_last, with_channels_last
from isotherm.kernels.ops import max_pool as max_pool_ops

NUM_RUNS = 3
WINDOWS = {"2 x 2": (2, 8, 8), "1 x 4": ((1, 4), 3, 8), "2 x 3": ((2, 3), 4, 6)}


@pytest.fixture(autouse=True)
def _kernels_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "are_available", lambda *_, **__: True)


def images(height: int, width: int, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Return images with many equal pixels and the channels last in memory."""
    generator = torch.Generator().manual_seed(seed)
    return with_channels_last(torch.randint(-2, 3, (NUM_RUNS, 2, 4, height, width), generator=generator).to(dtype))


def weighted(x: Tensor, weights: Tensor, window: int | tuple[int, int]) -> Tensor:
    return (functional.max_pool2d(x, window).float() * weights).sum()


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_pytorchs(name, dtype):
    window, height, width = WINDOWS[name]
    x = images(height, width, dtype=dtype)
    y = vmap(lambda each: functional.max_pool2d(each, window))(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    ours = by_kernels(vmap(lambda each: functional.max_pool2d(each, window)))(x)
    assert torch.equal(ours, y)
    assert has_channels_last(ours)
    of_images = grad(lambda each, w: weighted(each, w, window))
    dx = by_kernels(vmap(of_images))(x, weights)
    assert torch.equal(dx, vmap(of_images)(x, weights))
    assert has_channels_last(dx)


def test_a_program_keeps_a_byte_for_every_window():
    x = images(8, 8, dtype=torch.bfloat16)
    gradient = by_kernels(vmap(grad(lambda each: functional.max_pool2d(each, 2).float().sum())))
    program = trace(lambda x: (gradient(x),), x)
    targets = {node.target for node in program.graph.nodes}
    assert torch.ops.aten.max_pool2d_with_indices.default not in targets
    kinds = {node.meta["val"].dtype for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)}
    assert torch.int64 not in kinds


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 2, "padding": 1},
        {"kernel_size": 2, "dilation": 2, "stride": 2},
        {"kernel_size": 5},  # does not divide the sides
        {"kernel_size": 4},  # too many pixels to be written out
    ],
    ids=str,
)
def test_other_windows_are_left_to_pytorch(options, monkeypatch):
    monkeypatch.setattr(max_pool_ops, "_MaxPool", None)
    x = images(8, 8)
    expected = vmap(lambda each: functional.max_pool2d(each, **options))(x)
    assert torch.equal(by_kernels(vmap(lambda each: functional.max_pool2d(each, **options)))(x), expected)


def test_other_layouts_and_other_calls_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(max_pool_ops, "_MaxPool", None)
    x = images(8, 8)
    by_kernels(vmap(lambda each: functional.max_pool2d(each, 2)))(x.contiguous())
    by_kernels(lambda each: functional.max_pool2d(each, 2))(x[0])
    by_kernels(vmap(lambda each: functional.max_pool2d(each, 2, return_indices=True)[0]))(x)
    monkeypatch.setattr(availability, "are_available", lambda *_, **__: False)
    by_kernels(vmap(lambda each: functional.max_pool2d(each, 2)))(x)


def test_second_derivatives_are_refused():
    x = images(4, 4)

    def slope(each: Tensor) -> Tensor:
        return grad(lambda values: functional.max_pool2d(values, 2).square().sum())(each).square().sum()

    with pytest.raises(RuntimeError, match="no second derivative"):
        by_kernels(vmap(grad(slope)))(x)
