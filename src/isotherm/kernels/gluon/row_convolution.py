"""3 x 3 convolutions that read rows of pixels once for three taps, in Gluon, for Hopper.

Tensor cores are faster than the L2 cache: copying a tile again for each of nine taps stalls them. Here a box of rows,
plus one row above and one below, is copied once for each column of taps, and the three taps of the column read it in
place, shifted by whole rows. Boxes have rows outermost, then images, then the pixels of a row, so that tiles of several
images shift in the same way. `triton.convolution` and `triton.filter_gradient` use these kernels where they support the
sizes.

    convolve           a convolution, or the gradient of its images, fused as in `triton.convolution`
    weight_gradient    gradients of the filters, in parts

Shape suffixes: M runs, B examples, C channels in, O channels out, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from isotherm.kernels.availability import device_of
from isotherm.kernels.gluon.row_kernels import convolve_rows, sum_rows
from isotherm.kernels.kernel_check import KernelCheck
from isotherm.kernels.layout import empty_images
from isotherm.kernels.tiling.convolution import (
    CHANNELS_BY_ROWS,
    PIXELS_BY_ROWS,
    RowWeightLaunch,
    Tile,
    are_blocks,
    parts_for,
    row_weight_launch_for,
    tiles_of_part,
)
from isotherm.kernels.tiling.partial_sums import NOT_NORMALISED, Normalised, by_part

# With fewer rows per tile, the extra rows above and below do not pay.
_FEWEST_ROWS = 8
# Boxes in shared memory start where the swizzle pattern of the tensor cores does, every eight pixels.
_FEWEST_COLUMNS = 8


def fit(
    images: Tensor, num_out: int, taps: Sequence[int], *, stride: int, padding: int, ghost_size: int | None = None
) -> bool:
    """Tell whether these kernels support a convolution, or its gradients, that reads images (M, B, C, H, W).

    Args:
        images: to be read.
        num_out: channels of the result.
        taps: of the filters.
        stride: of the filters.
        padding: zeros around the images.
        ghost_size: if sums are taken, the size of the ghost batches.
    """
    _, num_images, num_in, height, width = images.shape
    if tuple(taps) != (3, 3) or stride != 1 or padding != 1 or not all(map(_are_made, (num_in, num_out))):
        return False
    tile = Tile.of(PIXELS_BY_ROWS, num_images=ghost_size or num_images, height=height, width=width)
    is_filled = tile.num_pixels == PIXELS_BY_ROWS and tile.columns == width and height % tile.rows == 0
    has_rows = tile.rows >= _FEWEST_ROWS and width >= _FEWEST_COLUMNS
    return is_filled and has_rows and images.dtype == torch.bfloat16 and are_usable(images.device)


def _are_made(num_channels: int) -> bool:
    """Tell whether this number of channels can be read and written: in blocks, or at once."""
    return num_channels in (16, 32) or are_blocks(num_channels)


def _block(num_channels: int) -> int:
    return min(num_channels, CHANNELS_BY_ROWS)


def _layout(num_channels: int, *, rank: int) -> gl.NVMMASharedLayout:
    """Return the shared-memory layout of rows with this many channels, at most 128 bytes."""
    return gl.NVMMASharedLayout(swizzle_byte_width=2 * num_channels, element_bitwidth=16, rank=rank)


def are_usable(device: torch.device) -> bool:
    """Tell whether the kernels support a device and give correct results on it."""
    return CHECK.passes(device)


def _are_right(device: torch.device) -> bool:
    """Compare with PyTorch on small integers, which are exact until the final rounding, and check the moments."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        values = torch.randint(-2, 3, shape, generator=generator).to(device, torch.bfloat16)
        return values.movedim(-1, 2)  # generated with channels last

    settings = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    are_equal = []
    for num_in, num_out in ((64, 112), (16, 32)):
        x, dy, weight = numbers(1, 2, 16, 16, num_in), numbers(1, 2, 16, 16, num_out), numbers(1, num_out, 3, 3, num_in)
        exact = [t[0].double().cpu() for t in (dy, x, weight)]
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(*exact, *settings)
        y, moments = convolve(x, weight, ghost_size=2)
        assert moments is not None
        found = [y, convolve(dy, weight, is_gradient=True)[0]]
        expected = [torch.conv2d(exact[1], exact[2], padding=1), of_x]
        if are_blocks(num_in):
            found.append(weight_gradient(dy, x))
            expected.append(of_weight)
        are_equal += [torch.equal(a[0].cpu(), b.to(a.dtype)) for a, b in zip(found, expected, strict=True)]
        means = moments[0].mean(dim=(0, 1, 2)), y.double().mean(dim=(0, 1, 3, 4))
        are_equal.append(torch.allclose(means[0].double(), means[1], rtol=1e-4, atol=1e-4))
    return all(are_equal)


CHECK = KernelCheck("convolutions", _are_right)


def convolve(
    images: Tensor,
    weight: Tensor,
    *,
    is_gradient: bool = False,
    other: Tensor | None = None,
    ghost_size: int | None = None,
    normalised: Normalised | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Return a convolution of images with filters (M, O, C, 3, 3), or the gradient of its images.

    Args:
        images: images, or the gradient of the convolution.
        weight: filters.
        is_gradient: compute the gradient of the images.
        other: added to the result.
        ghost_size: if given, also return the moments of the result, for ghost batches of this size.
        normalised: the norm whose output the result is the gradient of; if given, also return the sums that it needs.
    """
    num_runs, num_images, num_in, height, width = images.shape
    num_out = weight.shape[2 if is_gradient else 1]
    result = empty_images(images, (num_runs, num_images, num_out, height, width))
    ghost_size = ghost_size if normalised is None else normalised.ghost_size
    sizes = {"height": height, "width": width}
    tile = Tile.of(PIXELS_BY_ROWS, num_images=ghost_size or num_images, **sizes)
    num_tiles, sums, in_program, repeats = tile.count(num_images=num_images, **sizes), None, 1, 1
    if ghost_size is not None:
        num_parts = parts_for(num_in, num_out, ghost_size, **sizes)
        assert num_parts is not None
        sums = by_part(result, ghost_size, num_parts)
        in_ghost = tile.count(num_images=ghost_size, **sizes)
        in_program, repeats = max(1, in_ghost // num_parts), max(1, num_parts // in_ghost)
    norm = NOT_NORMALISED if normalised is None else normalised.arguments(_boxes(normalised.x, tile))
    filters = _filters(weight)
    with device_of(images):
        convolve_rows[(num_runs * num_tiles // in_program * triton.cdiv(num_out, _block(num_out)),)](
            _boxes(images, tile),
            _boxes(images, tile, num_rows=2),
            filters,
            None if other is None else _boxes(other, tile),
            _boxes(result, tile),
            *(sums or (None, None)),
            **norm,
            images_of_run=num_images,
            height=height,
            C=num_in,
            O=num_out,
            IS_GRADIENT=is_gradient,
            TILES=in_program,
            PARTS=repeats,
            RELU=normalised is not None and normalised.relu,
            ROW_LAYOUT=_layout(_block(num_in), rank=2),
            FILTER_LAYOUT=_layout(filters.block_shape[3], rank=2),
            TILE_LAYOUT=_layout(_block(num_out), rank=2),
            num_warps=4,
        )
    return result, sums


def weight_gradient(dy: Tensor, x: Tensor, *, launch: RowWeightLaunch | None = None) -> Tensor:
    """Return the gradient of filters (M, O, C, 3, 3) in float32, with the input channels last in memory."""
    num_runs, num_images, num_out, height, width = dy.shape
    num_in = x.shape[2]
    launch = launch or row_weight_launch_for(num_out, num_images)
    tile = Tile.of(launch.pixels, num_images=num_images, height=height, width=width)
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    num_products = triton.cdiv(num_out, launch.outputs) * triton.cdiv(num_in, CHANNELS_BY_ROWS) * 3
    in_part = tiles_of_part(num_tiles, num_products, num_images, num_programs=launch.num_programs)
    num_parts = triton.cdiv(num_tiles, in_part)
    parts = torch.empty(num_parts, num_runs, num_out, 3, 3, num_in, dtype=torch.float32, device=x.device)
    with device_of(x):
        sum_rows[(num_runs * num_parts * num_products,)](
            _boxes(dy, tile, num_channels=launch.outputs),
            _boxes(x, tile),
            _boxes(x, tile, num_rows=2),
            parts,
            num_runs=num_runs,
            images_of_run=num_images,
            height=height,
            num_tiles=num_tiles,
            tiles_of_part=in_part,
            C=num_in,
            O=num_out,
            STAGES=launch.num_stages,
            LAYOUT=_layout(CHANNELS_BY_ROWS, rank=2),
            num_warps=4,
        )
    total = parts[0] if num_parts == 1 else parts.sum(dim=0)
    return total.permute(0, 1, 4, 2, 3)


def _boxes(x: Tensor, tile: Tile, *, num_rows: int | None = None, num_channels: int | None = None) -> TensorDescriptor:
    """Return a descriptor of images for boxes of whole rows, with the rows outermost."""
    num_runs, num_images, channels, height, width = x.shape
    row = width * channels
    block = [num_rows or tile.rows, tile.images, tile.columns, num_channels or _block(channels)]
    shape, strides = [height, num_runs * num_images, width, channels], [row, height * row, channels, 1]
    return TensorDescriptor(x, shape, strides, block, _layout(min(block[3], CHANNELS_BY_ROWS), rank=4))


def _filters(weight: Tensor) -> TensorDescriptor:
    """Return a descriptor of filters for boxes of one tap."""
    num_runs, num_out, num_in, *_ = weight.shape
    strides = [num_out * 9 * num_in, 9 * num_in, num_in, 1]
    block = [1, _block(num_out), 1, _block(num_in)]
    return TensorDescriptor(weight, [num_runs, num_out, 9, num_in], strides, block, _layout(block[3], rank=4))
