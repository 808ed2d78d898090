"""Images and filters as TMA descriptors, and the boxes that a program copies.

Shifting a box by a tap of the filter gives the same box elsewhere, and pixels outside the image arrive as zeros. With
stride s, pixels s apart are neighbours in a view of shape (images, height / s, s, width / s, s * channels).
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from isotherm.kernels.tiling.convolution import Launch, Tile, WeightLaunch

# Arguments that kernels are not specialised (and so not recompiled) for.
COUNTS = ("images_of_run", "ghosts_of_run", "num_runs", "height", "width", "num_tiles", "tiles_of_part")


def boxes(x: Tensor, tile: Tile, num_channels: int, *, stride: int = 1) -> TensorDescriptor:
    """Return a descriptor of images for boxes of pixels with equal remainders modulo the stride."""
    num_runs, num_images, channels, height, width = x.shape
    shape = [num_runs * num_images, height // stride, stride, width // stride, stride * channels]
    row = width * channels
    strides = [height * row, stride * row, row, stride * channels, 1]
    return TensorDescriptor(x, shape, strides, [tile.images, tile.rows, 1, tile.columns, num_channels])


def rows(x: Tensor, tile: Tile, num_channels: int) -> TensorDescriptor:
    """Return a descriptor of images as a matrix with one row per pixel."""
    channels = x.shape[2]
    return TensorDescriptor(x, [x.numel() // channels, channels], [channels, 1], [tile.num_pixels, num_channels])


def filters_of(weight: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """Return a descriptor of filters as a matrix with one row per run and output channel."""
    num_runs, num_out, *rest = weight.shape
    columns = rest[0] * rest[1] * rest[2]
    return TensorDescriptor(weight, [num_runs * num_out, columns], [columns, 1], list(block))


def divisor(number: int, largest: int) -> int:
    """Return the largest power of two, up to a limit, that divides a number."""
    return min(number & -number, largest)


def constants(
    taps: Sequence[int],
    stride: int,
    padding: int,
    tile: Tile,
    channels: int,
    inner: int,
    launch: Launch | WeightLaunch,
) -> dict[str, int]:
    """Return the compile-time arguments of a kernel: taps, tile and channels."""
    return {
        "Y": taps[0],
        "X": taps[1],
        "STRIDE": stride,
        "PADDING": padding,
        "BLOCK_B": tile.images,
        "BLOCK_H": tile.rows,
        "BLOCK_W": tile.columns,
        "BLOCK_O": channels,
        "BLOCK_C": inner,
        "NUM_STAGES": launch.num_stages,
        "num_warps": launch.num_warps,
    }


@triton.jit
def first_of_box(place, height, width, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr):
    """Return the first image, row and column of a box."""
    across, down = tl.cdiv(width, BLOCK_W), tl.cdiv(height, BLOCK_H)
    return place // (across * down) * BLOCK_B, place // across % down * BLOCK_H, place % across * BLOCK_W


@triton.jit
def moved(tap, STRIDE: tl.constexpr, PADDING: tl.constexpr):
    """Return a tap's offset from its pixel, in whole strides and remainder."""
    rest = (tap + PADDING * (STRIDE - 1)) % STRIDE
    return (tap - PADDING - rest) // STRIDE, rest
