"""Convolutions of many runs as batched matmuls of their pixels' neighbourhoods, in plain PyTorch.

Under `vmap` every run has its own filters, and PyTorch makes one grouped convolution of them, which is slow on a GPU.
Small networks that our kernels do not take, as in float32, gain by writing every neighbourhood out: one matmul then
computes all runs. It is written out again for the gradient of the filters, so that no memory is kept.

Shape suffixes: M runs, B examples, C channels in, O channels out, H x W pixels, Y x X taps of a filter, N pixels of all
examples, K taps of all channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.kernels.layout import is_under_one_vmap, of_all_runs, runs_first

_PIXELS = (0, 2, 3)  # of (B, C, H, W)


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return what `torch.conv2d` returns for a run's images, or None where PyTorch is to be asked itself."""
    step, edge = _common(stride), _edge(padding)
    is_plain = _common(dilation) == groups == 1 and input.ndim == weight.ndim == 4 and input.dtype == weight.dtype
    if step is None or edge is None or not is_plain or edge >= min(weight.shape[2:]) or not is_under_one_vmap():
        return None
    if of_all_runs(input) is None or of_all_runs(weight) is None:
        return None  # of images that all runs share PyTorch makes one dense convolution
    y: Tensor = _Convolution.apply(input, weight, step, edge)  # type: ignore[no-untyped-call]
    return y if bias is None else y + bias.view(-1, 1, 1)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Return what `torch.nn.functional.batch_norm` returns for images; None where PyTorch is to be asked itself.

    Under `vmap` PyTorch would change the memory layout in training, and on a GPU it refuses this one in evaluation.
    """
    num = input.numel() // input.shape[1] if input.ndim == 4 else 0
    if num < (2 if training else 1) or not is_under_one_vmap():  # of one value PyTorch raises an error that explains it
        return None
    if training:
        variance, mean = torch.var_mean(input, _PIXELS, correction=0)
    elif running_mean is None or running_var is None:
        return None
    else:
        variance, mean = running_var, running_mean
    scale = torch.rsqrt(variance + eps) if weight is None else torch.rsqrt(variance + eps) * weight
    y = (input - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1)
    if training and running_mean is not None and running_var is not None:
        running_mean.mul_(1 - momentum).add_(mean.detach() * momentum)
        running_var.mul_(1 - momentum).add_(variance.detach() * (momentum * num / (num - 1)))
    return y if bias is None else y + bias.view(-1, 1, 1)


def suits(module: nn.Module) -> bool:
    """Tell from a module's layers whether all its convolutions can be computed this way."""
    return all(
        isinstance(part, nn.Conv2d)
        and part.padding_mode == "zeros"
        and _common(part.stride) is not None
        and _common(part.dilation) == part.groups == 1
        and (edge := _edge(part.padding)) is not None
        and edge < min(part.kernel_size)
        for part in module.modules()
        if isinstance(part, nn.modules.conv._ConvNd)
    )


def most_flop(module: nn.Module, pixels: int) -> float:
    """Return an upper bound of the FLOP of an update per example: as if no image were smaller than the input.

    Args:
        module: the network.
        pixels: of an input.

    >>> most_flop(nn.Conv2d(1, 32, 3, padding=1), 28 * 28)
    1354752.0
    """
    parts = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    return 6.0 * pixels * sum(part.weight.numel() for part in parts)


def _common(values: int | Sequence[int]) -> int | None:
    """Return the value that height and width share, or None."""
    if isinstance(values, int):
        return values
    return values[0] if len(set(values)) == 1 else None


def _edge(padding: int | str | Sequence[int]) -> int | None:
    """Return the padding that height and width share, or None."""
    if isinstance(padding, str):
        return 0 if padding == "valid" else None
    return _common(padding)


def neighbourhoods(x: Tensor, taps: Sequence[int], step: int, edge: int) -> Tensor:
    """Return the pixels that every pixel of the result depends on, (M, N, K) with the channels last in K."""
    rows, columns = taps
    padded = functional.pad(x.movedim(2, -1), (0, 0, edge, edge, edge, edge))
    seen = padded.unfold(2, rows, step).unfold(3, columns, step)  # (M, B, H, W, C, Y, X)
    return seen.permute(0, 1, 2, 3, 5, 6, 4).reshape(len(x), -1, rows * columns * x.shape[2])


def images_of(of_neighbours: Tensor, sides: Sequence[int], step: int, edge: int) -> Tensor:
    """Return the sum at every pixel (M, B, C, H, W) of what neighbourhoods (M, B, h, w, Y, X, C) hold of it."""
    (height, width), (rows, columns) = sides, of_neighbours.shape[4:6]
    total: Tensor | None = None
    for row in range(rows):
        for column in range(columns):
            spread = _spread(of_neighbours[..., row, column, :], step)
            above, left = row - edge, column - edge
            below, right = height - spread.shape[2] - above, width - spread.shape[3] - left
            shifted = functional.pad(spread, (0, 0, left, right, above, below))
            total = shifted if total is None else total + shifted
    assert total is not None
    return total.movedim(-1, 2)


def _spread(images: Tensor, step: int) -> Tensor:
    """Return images (M, B, h, w, C) with zeros between their pixels."""
    if step == 1:
        return images
    apart = functional.pad(images.unsqueeze(4).unsqueeze(3), (0, 0, 0, step - 1, 0, 0, 0, step - 1))
    return apart.flatten(4, 5).flatten(2, 3)


def _matrix(images: Tensor) -> Tensor:
    """Return images (M, B, O, H, W) as matrices (M, N, O)."""
    return images.movedim(2, -1).reshape(len(images), -1, images.shape[2])


def _filters(weight: Tensor) -> Tensor:
    """Return filters (M, O, C, Y, X) as matrices (M, O, K)."""
    return weight.movedim(2, -1).reshape(*weight.shape[:2], -1)


class _Convolution(torch.autograd.Function):
    """The operation, differentiable once."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, step: int, edge: int) -> Tensor:
        num_runs, num_examples, _, height, width = x.shape
        rows, columns = weight.shape[3:]
        y = torch.bmm(neighbourhoods(x, (rows, columns), step, edge), _filters(weight).mT)
        sides = (height + 2 * edge - rows) // step + 1, (width + 2 * edge - columns) // step + 1
        return y.view(num_runs, num_examples, *sides, -1).movedim(-1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.step, ctx.edge = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx, d_weight = _Gradients.apply(dy, x, weight, ctx.step, ctx.edge)  # type: ignore[no-untyped-call]
        return dx, d_weight, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _Convolution.apply(*runs_first(info, in_dims, arguments)), 0  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    """The gradients, a function of their own so that a second derivative is refused and not wrong."""

    @staticmethod
    def forward(dy: Tensor, x: Tensor, weight: Tensor, step: int, edge: int) -> Any:
        num_runs, num_filters, num_channels, *taps = weight.shape
        gradient = _matrix(dy)
        d_weight = torch.bmm(gradient.mT, neighbourhoods(x, taps, step, edge))
        of_neighbours = torch.bmm(gradient, _filters(weight))
        shape = num_runs, len(x[0]), *dy.shape[3:], *taps, num_channels
        dx = images_of(of_neighbours.view(shape), x.shape[3:], step, edge)
        return dx, d_weight.view(num_runs, num_filters, *taps, num_channels).movedim(-1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("convolutions of many runs as matmuls have no second derivative")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _Gradients.apply(*runs_first(info, in_dims, arguments)), (0, 0)  # type: ignore[no-untyped-call]
