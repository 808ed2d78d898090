"""Convolutions of many runs, each one node of a trace: a kernel on a GPU, plain PyTorch on a CPU.

Under `vmap` every run has its own filters, and PyTorch makes one grouped convolution of them, which is slow on a GPU.
These operations take its place where the kernels support the sizes (`fits`); see `dispatch.by_kernels`.

    isotherm::convolution                    images (M, B, C, H, W), filters (M, O, C, Y, X) -> images (M, B, O, H, W)
    isotherm::convolution_input_gradient     gradient of the result, filters -> gradient of the images (plus one given)
    isotherm::convolution_weight_gradient    gradient of the result, images -> gradient of the filters, in float32

Images and filters have their channels last in memory, in multiples of 16.

Shape suffixes: M runs, B examples, C channels in, O channels out, H x W pixels, Y x X taps of a filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.kernels import availability
from isotherm.kernels.availability import in_gluon
from isotherm.kernels.layout import (
    empty_images,
    has_channels_last,
    is_under_one_vmap,
    of_all_runs,
    runs_first,
    with_channels_last,
)
from isotherm.kernels.ops.registry import operation, unrounded
from isotherm.kernels.tiling.convolution import are_blocks, result_size

ALIGNED = 16
_FEWEST_PIXELS = 16
_SETTINGS = "int stride, int padding"


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
    steps, edges = _common(stride), None if isinstance(padding, str) else _common(padding)
    is_dense = _common(dilation) == groups == 1
    if steps is None or edges is None or not is_dense or not fits(input, weight, stride=steps, padding=edges):
        return _by_pytorch(input, weight, bias, stride, padding, dilation, groups)
    x = _padded(input.to(torch.bfloat16), dims=(1,))
    y: Tensor = _Convolution.apply(x, _padded(weight, dims=(1, 0)), steps, edges)  # type: ignore[no-untyped-call]
    y = y[:, : weight.shape[0]] if weight.shape[0] % ALIGNED else y
    return y if bias is None else y + bias.to(y.dtype).view(-1, 1, 1)


def _by_pytorch(input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor | None:
    """Return PyTorch's convolution of images that a kernel made and filters that autocast would round, else None.

    Under `vmap` PyTorch refuses images in bfloat16 with a bias in float32 before autocast rounds the bias.
    """
    parameters = [weight] if bias is None else [weight, bias]
    has_one_dtype = all(tensor.dtype == input.dtype for tensor in parameters)
    if has_one_dtype or not _half_precision_is_asked_for(input, *parameters):
        return None
    return torch.conv2d(input.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16(), *settings)


def _common(values: int | Sequence[int]) -> int | None:
    """Return the value shared by height and width, or None where they differ.

    >>> _common(2), _common((1, 1)), _common((1, 2))
    (2, 1, None)
    """
    if isinstance(values, int):
        return values
    return values[0] if len(set(values)) == 1 else None


def _padded(values: Tensor, *, dims: tuple[int, ...]) -> Tensor:
    """Return values padded with zeros, so that the sizes of some dimensions are multiples of 16."""
    padding = [0, 0] * values.ndim
    for dim in dims:
        padding[2 * (values.ndim - dim) - 1] = -values.shape[dim] % ALIGNED
    return functional.pad(values, padding) if any(padding) else values


def suits(module: nn.Module, device: torch.device) -> bool:
    """Tell from a module's layers whether the kernels support all its convolutions and are fast there."""
    parts = [part for part in module.modules() if isinstance(part, nn.modules.conv._ConvNd)]
    are_possible = all(
        isinstance(part, nn.Conv2d)
        and part.padding_mode == "zeros"
        and not isinstance(part.padding, str)
        and None not in (_common(part.stride), _common(part.padding))
        and _common(part.dilation) == part.groups == 1
        for part in parts
    )
    odd = [part for part in parts if not (_tiles_well(part.in_channels) and _tiles_well(part.out_channels))]
    return are_possible and (not odd or (_suit_row_kernels(odd) and _row_kernels_are_usable(device)))


def _suit_row_kernels(parts: Sequence[nn.modules.conv._ConvNd]) -> bool:
    """Tell whether all convolutions have whole blocks of channels and most suit the kernels that read rows once."""
    numbers = {number for part in parts for number in (part.in_channels, part.out_channels) if not _tiles_well(number)}
    num = sum((part.kernel_size, part.stride, part.padding) == ((3, 3), (1, 1), (1, 1)) for part in parts)
    return all(map(are_blocks, numbers)) and 2 * num >= len(parts)


def _tiles_well(num_channels: int) -> bool:
    """Tell whether this many channels, padded, divide into large tiles; the sides of tiles are powers of two.

    >>> [number for number in (3, 16, 20, 48, 64, 96, 128, 160, 192, 256) if _tiles_well(number)]
    [3, 16, 20, 64, 128, 192, 256]
    """
    padded = num_channels + -num_channels % ALIGNED
    return padded & -padded >= min(padded, 64)


def _row_kernels_are_usable(device: torch.device) -> bool:
    """Tell whether the kernels that read rows once work here; their last block of channels may be partly filled."""
    by_rows = in_gluon("row_convolution") if are_usable(device) else None
    return by_rows is not None and by_rows.are_usable(device)


def fits(x: Tensor, weight: Tensor, *, stride: int, padding: int) -> bool:
    """Tell whether the kernels support a convolution: many runs, each with its own filters, in bfloat16.

    Either both tensors are bfloat16 already, or autocast makes them so.
    """
    return (
        are_usable(x.device)
        and x.ndim == weight.ndim == 4
        and is_under_one_vmap()
        and of_all_runs(weight) is not None
        and _half_precision_is_asked_for(x, weight)
        and _sizes_fit(x.shape, weight.shape, stride=stride, padding=padding)
    )


def are_usable(device: torch.device) -> bool:
    """Tell whether the convolution kernels can be used on a device."""
    return availability.are_available(device, generations=availability.TILE_COPY_GENERATIONS)


def _half_precision_is_asked_for(*tensors: Tensor) -> bool:
    kind = tensors[0].device.type
    if torch.is_autocast_enabled(kind):  # which leaves float64 as it is
        is_wide = any(tensor.dtype == torch.float64 for tensor in tensors)
        return torch.get_autocast_dtype(kind) == torch.bfloat16 and not is_wide
    return all(tensor.dtype == torch.bfloat16 for tensor in tensors)


def _sizes_fit(images: torch.Size, filters: torch.Size, *, stride: int, padding: int) -> bool:
    """Tell whether the kernels support images (B, C, H, W) and filters (O, C, Y, X).

    The stride divides the sides of the images, and no filter covers padding only. Batches of small images are large
    enough for tiles of 16 pixels.
    """
    sides, taps = images[2:], filters[2:]
    results = result_size(sides, taps, stride=stride, padding=padding)
    if images[1] != filters[1] or any(side % stride for side in sides) or min(results) < 1 or padding >= min(taps):
        return False
    of_tiles = [math.prod(1 << (size - 1).bit_length() for size in (a, b)) for a, b in (results, _over(sides, stride))]
    return (images[0] & -images[0]) * min(of_tiles) >= _FEWEST_PIXELS


def _over(sides: Sequence[int], stride: int) -> tuple[int, int]:
    height, width = (side // stride for side in sides)
    return height, width


class _Convolution(torch.autograd.Function):
    """The operation, differentiable once. It takes unrounded filters, so that their gradients are not rounded."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Any:
        return FORWARD(x, weight.to(x.dtype), stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx, d_weight = _Gradients.apply(dy, x, weight, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
        return dx, d_weight.to(weight.dtype), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _Convolution.apply(*runs_first(info, in_dims, arguments)), 0  # type: ignore[no-untyped-call]


class _Gradients(torch.autograd.Function):
    """The gradients, a function of their own so that a second derivative is refused and not wrong."""

    @staticmethod
    def forward(dy: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int) -> Any:
        dy = with_channels_last(dy)
        return (
            INPUT_GRADIENT(dy, weight.to(dy.dtype), None, *x.shape[3:], stride, padding),
            WEIGHT_GRADIENT(dy, x, *weight.shape[3:], stride, padding),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "the convolution kernels have no second derivative; set ISOTHERM_KERNELS=0 to run without them"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _Gradients.apply(*runs_first(info, in_dims, arguments)), (0, 0)  # type: ignore[no-untyped-call]


# -- in PyTorch -------------------------------------------------------------------------------------------------------


@operation("convolution", f"(Tensor x, Tensor weight, {_SETTINGS}) -> Tensor")
def _forward(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    check(x, weight, weight.shape[2])
    found = [functional.conv2d(*pair, stride=stride, padding=padding) for pair in zip(x, weight, strict=True)]
    return with_channels_last(torch.stack(found))


@operation(
    "convolution_input_gradient",
    f"(Tensor dy, Tensor weight, Tensor? other, int height, int width, {_SETTINGS}) -> Tensor",
)
def _input_gradient(
    dy: Tensor, weight: Tensor, other: Tensor | None, height: int, width: int, stride: int, padding: int
) -> Tensor:
    check(dy, weight, weight.shape[1])
    check_sizes((height, width), dy, weight.shape[3:], stride, padding)
    check_added(other, (*dy.shape[:2], weight.shape[2], height, width), dy.dtype)
    x = dy.new_zeros(*dy.shape[:2], weight.shape[2], height, width)
    found = _gradients(dy, x, weight, stride, padding, of_images=True)
    return found if other is None else with_channels_last(found + other)


@operation("convolution_weight_gradient", f"(Tensor dy, Tensor x, int rows, int columns, {_SETTINGS}) -> Tensor")
def _weight_gradient(dy: Tensor, x: Tensor, rows: int, columns: int, stride: int, padding: int) -> Tensor:
    check(x, dy, x.shape[2])
    check_sizes(x.shape[3:], dy, (rows, columns), stride, padding)
    wide = unrounded(x.dtype)
    weight = x.new_zeros(len(x), dy.shape[2], x.shape[2], rows, columns, dtype=wide)
    return _gradients(dy.to(wide), x.to(wide), weight, stride, padding, of_images=False)


def _gradients(dy: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, *, of_images: bool) -> Tensor:
    """Return the gradients of every run's images, or of its filters."""
    settings = None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [of_images, not of_images, False]
    found = [torch.ops.aten.convolution_backward(*run, *settings) for run in zip(dy, x, weight, strict=True)]
    return with_channels_last(torch.stack([of_x if of_images else of_weight for of_x, of_weight, _ in found]))


def check(x: Tensor, weight: Tensor, num_in: int) -> None:
    """Raise a ValueError for tensors that the kernels would misread."""
    if x.ndim != 5 or weight.ndim != 5 or len(x) != len(weight):
        raise ValueError(
            f"need images (runs, batch, channels, height, width) and filters of the same number of runs, "
            f"not {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if x.shape[2] != num_in or x.dtype != weight.dtype or x.device != weight.device:
        raise ValueError(
            f"images and filters do not match: {tuple(x.shape)} and {tuple(weight.shape)}, {x.dtype} and {weight.dtype}"
        )
    for tensor in (x, weight):
        if not has_channels_last(tensor) or tensor.shape[2] % ALIGNED:
            raise ValueError(
                f"channels must come last in memory, in multiples of {ALIGNED}; this tensor has shape "
                f"{tuple(tensor.shape)} and strides {tensor.stride()}"
            )


def check_added(other: Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise a ValueError unless `other` can be added to images of this shape and dtype."""
    if other is None:
        return
    if tuple(other.shape) != tuple(shape) or other.dtype != dtype or not has_channels_last(other):
        raise ValueError(
            f"cannot add images of shape {tuple(other.shape)}, {other.dtype} and strides {other.stride()} to images of "
            f"shape {tuple(shape)} and {dtype}"
        )


def check_sizes(sides: Sequence[int], dy: Tensor, taps: Sequence[int], stride: int, padding: int) -> None:
    """Raise a ValueError unless the gradient's size follows from the images' and the stride divides their sides."""
    expected = result_size(sides, taps, stride=stride, padding=padding)
    if tuple(dy.shape[3:]) != expected or any(side % stride for side in sides):
        raise ValueError(
            f"a gradient of {tuple(dy.shape[3:])} pixels does not match images of {tuple(sides)}, "
            f"filters of {tuple(taps)}, stride {stride} and padding {padding}"
        )


# The operations as they appear in a trace.
FORWARD = torch.ops.isotherm.convolution.default
INPUT_GRADIENT = torch.ops.isotherm.convolution_input_gradient.default
WEIGHT_GRADIENT = torch.ops.isotherm.convolution_weight_gradient.default


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@_forward.register_kernel("cuda")
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    from isotherm.kernels.triton import convolution as kernels

    check(x, weight, weight.shape[2])
    return kernels.forward(x, weight, stride=stride, padding=padding)[0]


@_input_gradient.register_kernel("cuda")
def _(dy: Tensor, weight: Tensor, other: Tensor | None, height: int, width: int, stride: int, padding: int) -> Tensor:
    from isotherm.kernels.triton import convolution as kernels

    check(dy, weight, weight.shape[1])
    check_sizes((height, width), dy, weight.shape[3:], stride, padding)
    check_added(other, (*dy.shape[:2], weight.shape[2], height, width), dy.dtype)
    return kernels.input_gradient(dy, weight, size=(height, width), stride=stride, padding=padding, other=other)[0]


@_weight_gradient.register_kernel("cuda")
def _(dy: Tensor, x: Tensor, rows: int, columns: int, stride: int, padding: int) -> Tensor:
    from isotherm.kernels.triton import filter_gradient

    check(x, dy, x.shape[2])
    check_sizes(x.shape[3:], dy, (rows, columns), stride, padding)
    return filter_gradient.weight_gradient(dy, x, taps=(rows, columns), stride=stride, padding=padding)


# -- fakes: shapes and dtypes without values --------------------------------------------------------------------------


@_forward.register_fake
def _(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    sides = result_size(x.shape[3:], weight.shape[3:], stride=stride, padding=padding)
    return empty_images(x, (*x.shape[:2], weight.shape[1], *sides))


@_input_gradient.register_fake
def _(dy: Tensor, weight: Tensor, other: Tensor | None, height: int, width: int, stride: int, padding: int) -> Tensor:
    return empty_images(dy, (*dy.shape[:2], weight.shape[2], height, width))


@_weight_gradient.register_fake
def _(dy: Tensor, x: Tensor, rows: int, columns: int, stride: int, padding: int) -> Tensor:
    return empty_images(x, (len(x), dy.shape[2], x.shape[2], rows, columns), dtype=unrounded(x.dtype))
