"""Convolutions of many runs fused with the ghost batch norm next to them.

While a kernel still has a tile of a convolution's result in registers, it adds the residual and accumulates the moments
that a following norm needs. Likewise, while it has a tile of the gradient of a norm's output, it accumulates the sums
that the norm's own gradient needs. Each fusion saves one read of the whole result.

    isotherm::convolution_with_moments               images, filters (, residual) -> images, means and squares by part
    isotherm::ghost_norm_by_moments                  images, means and squares by part -> y, means, variances
    isotherm::convolution_input_gradient_with_sums   gradient of a convolution, input of the norm -> gradient, sums
    isotherm::ghost_norm_backward_by_sums            gradient, sums by part -> gradients, as `ghost_norm_backward`

Moments and sums are stored by part, an equal share of a ghost batch's pixels (`tiling.convolution.parts_for`). Models
never call these operations; the passes of `engine.graph` put them into a trace.

Shape suffixes: M runs, G ghost batches of each, P parts of a ghost batch, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isotherm.kernels.layout import with_channels_last
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops
from isotherm.kernels.ops.registry import operation, unrounded
from isotherm.kernels.tiling.convolution import parts_for, result_size

_NORM = "Tensor mean_GC, Tensor var_GC, Tensor scale, Tensor shift"


def num_parts(num_inner: int, shape: torch.Size, ghost_size: int, *, stride: int = 1) -> int | None:
    """Return how many parts a ghost batch of images (M, B, C, H, W) is split into; None where the kernels cannot.

    Args:
        num_inner: channels that the convolution sums over.
        shape: of the images.
        ghost_size: examples per ghost batch.
        stride: of the convolution, if the images are the gradient of its input.
    """
    height, width = (side // stride for side in shape[3:])
    parts = parts_for(num_inner, shape[2], ghost_size, height=height, width=width)
    return None if parts is None else stride**2 * parts


# -- in PyTorch -------------------------------------------------------------------------------------------------------


@operation(
    "convolution_with_moments",
    "(Tensor x, Tensor weight, Tensor? other, int stride, int padding, int ghost_size) -> (Tensor, Tensor, Tensor)",
)
def _with_moments(
    x: Tensor, weight: Tensor, other: Tensor | None, stride: int, padding: int, ghost_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    y: Tensor = convolution_ops.FORWARD(x, weight, stride, padding)
    y = y if other is None else with_channels_last(y + other)
    pixels = _by_part(y, ghost_size, _parts(weight.shape[2], y, ghost_size))
    means_MGPC = pixels.mean(dim=3)
    return y, means_MGPC, (pixels - means_MGPC.unsqueeze(3)).square().sum(dim=3)


@operation(
    "ghost_norm_by_moments",
    "(Tensor x, Tensor means, Tensor squares, Tensor weight, Tensor bias, float eps, bool relu)"
    " -> (Tensor, Tensor, Tensor)",
)
def _norm_by_moments(
    x: Tensor, means_MGPC: Tensor, squares_MGPC: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    ghost_norm_ops.check(x, weight, bias)
    mean_MGC = means_MGPC.mean(dim=2)
    num = x.numel() // mean_MGC.numel()
    between = (means_MGPC - mean_MGC.unsqueeze(2)).square().mean(dim=2)
    var_MGC = squares_MGPC.sum(dim=2) / num + between
    return ghost_norm_ops.normalised_by(x, mean_MGC, var_MGC, weight, bias, eps, relu), mean_MGC, var_MGC


@operation(
    "convolution_input_gradient_with_sums",
    f"(Tensor dy, Tensor weight, Tensor? other, Tensor x, {_NORM}, float eps, bool relu, int stride, int padding)"
    " -> (Tensor, Tensor, Tensor)",
)
def _with_sums(
    dy: Tensor,
    weight: Tensor,
    other: Tensor | None,
    x: Tensor,
    mean_MGC: Tensor,
    var_MGC: Tensor,
    scale_MC: Tensor,
    shift_MC: Tensor,
    eps: float,
    relu: bool,
    stride: int,
    padding: int,
) -> tuple[Tensor, Tensor, Tensor]:
    dx: Tensor = convolution_ops.INPUT_GRADIENT(dy, weight, other, *x.shape[3:], stride, padding)
    found = ghost_norm_ops.gradient_sums(dx, x, mean_MGC, var_MGC, scale_MC, shift_MC, eps, relu)
    parts = _parts(weight.shape[1], x, x.shape[1] // mean_MGC.shape[1], stride=stride)
    d_shift, d_scale = (_in_first_part(total_MGC, parts) for total_MGC in found)
    return dx, d_shift, d_scale


@operation(
    "ghost_norm_backward_by_sums",
    f"(Tensor dy, Tensor x, {_NORM}, Tensor d_shift, Tensor d_scale, float eps, bool relu, Tensor? other)"
    " -> (Tensor, Tensor, Tensor)",
)
def _norm_backward_by_sums(
    dy: Tensor,
    x: Tensor,
    mean_MGC: Tensor,
    var_MGC: Tensor,
    scale_MC: Tensor,
    shift_MC: Tensor,
    d_shift_MGPC: Tensor,
    d_scale_MGPC: Tensor,
    eps: float,
    relu: bool,
    other: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    d_shift, d_scale = d_shift_MGPC.sum(dim=2), d_scale_MGPC.sum(dim=2)
    given = dy, x, mean_MGC, var_MGC, scale_MC, shift_MC
    return ghost_norm_ops.gradient_by_sums(*given, d_shift, d_scale, eps, relu, other), d_scale, d_shift


def _by_part(images: Tensor, ghost_size: int, parts: int) -> Tensor:
    """Return images as (M, G, P, pixels, C) in full precision."""
    num_runs, batch_size, num_channels = images.shape[:3]
    pixels = images.movedim(2, -1).to(unrounded(images.dtype))
    return pixels.reshape(num_runs, batch_size // ghost_size, parts, -1, num_channels)


def _in_first_part(total_MGC: Tensor, parts: int) -> Tensor:
    """Return sums by part (M, G, P, C) whose first part holds the total and whose other parts are zero."""
    found = total_MGC.new_zeros(*total_MGC.shape[:2], parts, total_MGC.shape[2])
    found[:, :, 0] = total_MGC
    return found


def _parts(num_inner: int, images: Tensor, ghost_size: int, *, stride: int = 1) -> int:
    parts = num_parts(num_inner, images.shape, ghost_size, stride=stride)
    if parts is None or images.shape[1] % ghost_size:
        raise ValueError(
            f"ghost batches of {ghost_size} examples of images {tuple(images.shape)} cannot be split into equal parts"
        )
    return parts


# The operations as they appear in a trace.
WITH_MOMENTS = torch.ops.isotherm.convolution_with_moments.default
NORM_BY_MOMENTS = torch.ops.isotherm.ghost_norm_by_moments.default
WITH_SUMS = torch.ops.isotherm.convolution_input_gradient_with_sums.default
NORM_BACKWARD_BY_SUMS = torch.ops.isotherm.ghost_norm_backward_by_sums.default


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@_with_moments.register_kernel("cuda")
def _(
    x: Tensor, weight: Tensor, other: Tensor | None, stride: int, padding: int, ghost_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    from isotherm.kernels.triton import convolution as kernels

    convolution_ops.check(x, weight, weight.shape[2])
    sides = result_size(x.shape[3:], weight.shape[3:], stride=stride, padding=padding)
    convolution_ops.check_added(other, (*x.shape[:2], weight.shape[1], *sides), x.dtype)
    y, moments = kernels.forward(x, weight, stride=stride, padding=padding, other=other, ghost_size=ghost_size)
    assert moments is not None
    return y, *moments


@_norm_by_moments.register_kernel("cuda")
def _(
    x: Tensor, means_MGPC: Tensor, squares_MGPC: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, ...]:
    from isotherm.kernels.triton import ghost_norm as kernels

    ghost_norm_ops.check_for_kernels(x, weight, bias)
    moments, num_ghosts = (means_MGPC, squares_MGPC), means_MGPC.shape[1]
    return kernels.forward(x, weight, bias, num_ghosts=num_ghosts, eps=eps, relu=relu, moments=moments)[1:]


@_with_sums.register_kernel("cuda")
def _(dy: Tensor, weight: Tensor, other: Tensor | None, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    from isotherm.kernels.tiling.partial_sums import Normalised
    from isotherm.kernels.triton import convolution as kernels

    *norm, stride, padding = rest
    normalised = Normalised(x, *norm)
    convolution_ops.check(dy, weight, weight.shape[1])
    convolution_ops.check_sizes(x.shape[3:], dy, weight.shape[3:], stride, padding)
    ghost_norm_ops.check_for_kernels(x, *normalised[3:5], *(() if other is None else (other,)))
    ghost_norm_ops.check_statistics(x, *normalised[1:3])
    height, width = x.shape[3:]
    dx, sums = kernels.input_gradient(
        dy,
        weight,
        size=(height, width),
        stride=stride,
        padding=padding,
        other=other,
        normalised=normalised,
    )
    assert sums is not None
    return dx, *sums


@_norm_backward_by_sums.register_kernel("cuda")
def _(dy: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from isotherm.kernels.triton import ghost_norm as kernels

    mean_MGC, var_MGC, scale_MC, shift_MC, *sums, eps, relu, other = rest
    ghost_norm_ops.check_for_kernels(x, scale_MC, shift_MC, dy, *(() if other is None else (other,)))
    ghost_norm_ops.check_statistics(x, mean_MGC, var_MGC)
    return kernels.backward(dy, x, *rest[:4], eps=eps, relu=relu, other=other, sums=(sums[0], sums[1]))


# -- fakes: shapes and dtypes without values --------------------------------------------------------------------------


def _empty_by_part(images: Tensor, ghost_size: int, parts: int) -> tuple[Tensor, Tensor]:
    wide = unrounded(images.dtype)
    shape = len(images), images.shape[1] // ghost_size, parts, images.shape[2]
    return images.new_empty(shape, dtype=wide), images.new_empty(shape, dtype=wide)


def _empty_statistics(by_part: Tensor) -> tuple[Tensor, Tensor]:
    shape = *by_part.shape[:2], by_part.shape[3]
    return by_part.new_empty(shape), by_part.new_empty(shape)


@_with_moments.register_fake
def _(
    x: Tensor, weight: Tensor, other: Tensor | None, stride: int, padding: int, ghost_size: int
) -> tuple[Tensor, ...]:
    y: Tensor = convolution_ops.FORWARD(x, weight, stride, padding)
    return y, *_empty_by_part(y, ghost_size, _parts(weight.shape[2], y, ghost_size))


@_norm_by_moments.register_fake
def _(
    x: Tensor, means_MGPC: Tensor, squares_MGPC: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, ...]:
    return torch.empty_like(x), *_empty_statistics(means_MGPC)


@_with_sums.register_fake
def _(dy: Tensor, weight: Tensor, other: Tensor | None, x: Tensor, mean_MGC: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *_, stride, _ = rest
    ghost_size = x.shape[1] // mean_MGC.shape[1]
    return torch.empty_like(x), *_empty_by_part(x, ghost_size, _parts(weight.shape[1], x, ghost_size, stride=stride))


@_norm_backward_by_sums.register_fake
def _(dy: Tensor, x: Tensor, mean_MGC: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(mean_MGC), torch.empty_like(mean_MGC)
