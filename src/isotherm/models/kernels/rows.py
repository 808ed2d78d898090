"""Convolutions with filters of 3 x 3 taps whose rows of pixels are read once for three taps, in Gluon, for Hopper.

Products are quicker than the GPU's cache: a tile that is copied anew for each of nine taps keeps them waiting. Here a
box of rows, with one more above and one below, is copied for each column of taps, and the three taps of the column read
it where it lies, moved by whole rows. Boxes have the rows outermost, then images, then pixels of a row, so that also
tiles of several images are moved as wholes. The rest is as in `convolution` and `filter_gradient`, which ask here
first.

    convolve           a convolution, or the gradient of its images, with what these take along
    weight_gradient    gradients of the filters, in parts

Shape suffixes: M runs, B examples, C channels in, O channels out, H x W pixels.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from isotherm.models.kernels import device_of
from isotherm.models.kernels.parts import NOT_NORMALISED, Normalised, by_part
from isotherm.models.kernels.row_kernels import convolve_rows, sum_rows
from isotherm.models.kernels.tiles import (
    PIXELS_BY_ROWS,
    RowWeightLaunch,
    Tile,
    parts_for,
    row_weight_launch_for,
    tiles_of_part,
)
from isotherm.models.layout import empty_images

logger = logging.getLogger("isotherm")

# Channels of a tile, and those that are summed over at once: rows of 128 bytes, the widest that products read.
_CHANNELS = 64
_LAYOUTS = {rank: gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=rank) for rank in (2, 4)}
_GENERATION = 9
# Fewer rows of a tile are not worth the one above and the one below.
_FEWEST_ROWS = 8
# Places in shared memory begin where the pattern does in which products read it, every eight pixels.
_FEWEST_COLUMNS = 8


def fit(
    images: Tensor, num_out: int, taps: Sequence[int], *, stride: int, padding: int, ghost_size: int | None = None
) -> bool:
    """Tell whether these kernels are made for a convolution, or its gradients, that reads images (M, B, C, H, W).

    Args:
        images: what is read.
        num_out: channels of the result.
        taps: of the filters.
        stride: of the filters.
        padding: zeros around the images.
        ghost_size: where sums are taken, of ghosts of so many examples.
    """
    _, num_images, num_in, height, width = images.shape
    if tuple(taps) != (3, 3) or stride != 1 or padding != 1 or num_in % _CHANNELS or num_out % _CHANNELS:
        return False
    tile = Tile.of(PIXELS_BY_ROWS, num_images=ghost_size or num_images, height=height, width=width)
    is_filled = tile.num_pixels == PIXELS_BY_ROWS and tile.columns == width and height % tile.rows == 0
    has_rows = tile.rows >= _FEWEST_ROWS and width >= _FEWEST_COLUMNS
    return is_filled and has_rows and images.dtype == torch.bfloat16 and _are_usable(images.device)


@functools.cache
def _are_usable(device: torch.device) -> bool:
    """Tell whether the kernels are made for a device and right there: Gluon may change between versions of Triton."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != _GENERATION:
        return False
    try:
        are_right = _are_right(device)
    except torch.cuda.OutOfMemoryError:  # says nothing about them
        raise
    except Exception as error:  # of a compiler that does not take them; what it says is long
        reason = str(error).strip().partition("\n")[0]
        logger.warning(
            "convolutions are slower than they could be: those of rows do not compile with Triton %s (%s: %s)",
            triton.__version__,
            type(error).__name__,
            reason,
        )
        return False
    if not are_right:
        logger.warning("convolutions of rows are wrong with Triton %s; slower kernels are used", triton.__version__)
    return are_right


def _are_right(device: torch.device) -> bool:
    """Compare with PyTorch on whole numbers, which are not rounded."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        values = torch.randint(-2, 3, shape, generator=generator).to(device, torch.bfloat16)
        return values.movedim(-1, 2)  # channels were made last

    x, dy, weight = numbers(1, 2, 16, 16, _CHANNELS), numbers(1, 2, 16, 16, _CHANNELS), numbers(1, _CHANNELS, 3, 3, 64)
    settings = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    wide = [t[0].double().cpu() for t in (dy, x, weight)]
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(*wide, *settings)
    expected = torch.conv2d(wide[1], wide[2], padding=1), of_x, of_weight
    forward, backward = convolve(x, weight)[0], convolve(dy, weight, is_gradient=True)[0]
    found = forward, backward, weight_gradient(dy, x)
    return all(torch.equal(a[0].cpu(), b.to(a.dtype)) for a, b in zip(found, expected, strict=True))


def convolve(
    images: Tensor,
    weight: Tensor,
    *,
    is_gradient: bool = False,
    other: Tensor | None = None,
    ghost_size: int | None = None,
    normalised: Normalised | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Return a convolution of images with filters (M, O, C, 3, 3), or the gradient of images where that is given.

    Args:
        images: or the gradient of the convolution.
        weight: filters.
        is_gradient: which of the two.
        other: added to the result.
        ghost_size: also return the moments of the result, of ghosts of so many examples.
        normalised: what the result is the gradient of a normalisation of; also return the sums that it needs.
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
    with device_of(images):
        convolve_rows[(num_runs * num_tiles // in_program * (num_out // _CHANNELS),)](
            _boxes(images, tile),
            _boxes(images, tile, num_rows=2),
            _filters(weight),
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
            num_warps=4,
        )
    return result, sums


def weight_gradient(dy: Tensor, x: Tensor, *, launch: RowWeightLaunch | None = None) -> Tensor:
    """Return the gradient of filters (M, O, C, 3, 3) in float32, the input channels last in memory."""
    num_runs, num_images, num_out, height, width = dy.shape
    num_in = x.shape[2]
    launch = launch or row_weight_launch_for(num_out, num_images)
    tile = Tile.of(launch.pixels, num_images=num_images, height=height, width=width)
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    num_products = (num_out // launch.outputs) * (num_in // _CHANNELS) * 3
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
            LAYOUT=_LAYOUTS[2],
            num_warps=4,
        )
    total = parts[0] if num_parts == 1 else parts.sum(dim=0)
    return total.permute(0, 1, 4, 2, 3)


def _boxes(x: Tensor, tile: Tile, *, num_rows: int | None = None, num_channels: int = _CHANNELS) -> TensorDescriptor:
    """Return images as something that boxes of whole rows are copied from or to, the rows outermost."""
    num_runs, num_images, channels, height, width = x.shape
    row = width * channels
    block = [num_rows or tile.rows, tile.images, tile.columns, num_channels]
    shape = [height, num_runs * num_images, width, channels]
    return TensorDescriptor(x, shape, [row, height * row, channels, 1], block, _LAYOUTS[4])


def _filters(weight: Tensor) -> TensorDescriptor:
    """Return filters as a matrix with a row for each output channel of each run."""
    num_runs, num_out, *rest = weight.shape
    columns = rest[0] * rest[1] * rest[2]
    return TensorDescriptor(weight, [num_runs * num_out, columns], [columns, 1], [_CHANNELS, _CHANNELS], _LAYOUTS[2])
