"""Convolutions of many runs at once, each with filters of its own, as Triton kernels for images with the channels last.

One run's small batch is too little work for a GPU, and libraries have one set of filters for all images. Here every
program belongs to a run and makes a tile of its result, a sum of products over taps and channels. Pixels come as boxes,
which the GPU copies by itself (TMA) to where products read them. A box moved by a tap is the same box elsewhere, and
what lies outside of the image arrives as zeros. With a stride s, pixels that lie s apart are neighbours in a view of
shape (images, height / s, s, width / s, s * channels).

    forward            sum over taps and input channels of filters x pixels
    input_gradient     the same with the filters turned; pixels of each remainder by the stride meet taps of their own
    weight_gradient    by tap, sum over pixels of gradient x pixels; parts of it are added up in a fixed order

How work is cut depends on the shape of one run's tensors alone, not on the number of runs; so do a run's results.

Shape suffixes: M runs, B examples, C channels in, O channels out, H x W pixels, Y x X taps of a filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from isotherm.models.kernels import device_of
from isotherm.models.kernels.tiles import (
    Launch,
    Tile,
    WeightLaunch,
    launch_for,
    parts_of_ghost,
    result_size,
    weight_launch_for,
)
from isotherm.models.layout import empty_images

# What the kernel is told where nothing was normalised.
_NOT_NORMALISED: dict[str, Any] = {
    "normalised": None,
    "mean_ptr": None,
    "var_ptr": None,
    "weight_ptr": None,
    "bias_ptr": None,
    "eps": 0.0,
    "ghosts_of_run": 1,
}


class Moments(NamedTuple):
    """Means, and sums of squared distances from them, of equal parts of every ghost, shape (M, G, P, C) each."""

    means: Tensor
    squares: Tensor


class Normalised(NamedTuple):
    """What was normalised by ghosts, and how: the gradient of the result is about to be computed."""

    x: Tensor
    mean_MGC: Tensor
    var_MGC: Tensor
    weight_MC: Tensor
    bias_MC: Tensor
    eps: float
    relu: bool


class Sums(NamedTuple):
    """By channel, sums of the gradient behind the ReLU and of its product with the normalised x, (M, G, P, C) each."""

    gradients: Tensor
    products: Tensor


def forward(
    x: Tensor,
    weight: Tensor,
    *,
    stride: int,
    padding: int,
    other: Tensor | None = None,
    ghost_size: int | None = None,
    launch: Launch | None = None,
) -> tuple[Tensor, Moments | None]:
    """Return the convolution (M, B, O, H, W) of images (M, B, C, H, W) with filters (M, O, C, Y, X).

    Args:
        x: images.
        weight: filters.
        stride: of the filters.
        padding: zeros around the images.
        other: added to the result.
        ghost_size: also return the moments of the result, of ghosts of so many examples.
        launch: how much a program does.
    """
    (num_out, num_in, *taps), num_images = weight.shape[1:], x.shape[1]
    height, width = result_size(x.shape[3:], taps, stride=stride, padding=padding)
    y = empty_images(x, (*x.shape[:2], num_out, height, width))
    launch = launch or launch_for(num_in, num_out)
    tile = Tile.of(launch.pixels, num_images=ghost_size or num_images, height=height, width=width)
    channels, inner = _divisor(num_out, launch.channels), _divisor(num_in, launch.inner)
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    moments, tiles_of_part = None, 1
    if ghost_size is not None:
        cut = parts_of_ghost(tile, ghost_size, height=height, width=width)
        assert cut is not None
        moments, tiles_of_part = Moments(*_by_part(y, ghost_size, cut.num_parts)), cut.tiles_of_part
    with device_of(x):
        _convolve[(len(x) * num_tiles // tiles_of_part * (num_out // channels),)](
            _boxes(x, tile, inner, stride=stride),
            _filters(weight, (channels, inner)),
            None if other is None else _boxes(other, tile, channels),
            _boxes(y, tile, channels),
            *(moments or (None, None)),
            **_NOT_NORMALISED,
            images_of_run=num_images,
            height=height,
            width=width,
            **_constants(taps, stride, padding, tile, channels, inner, launch),
            C=num_in,
            O=num_out,
            BACKWARD=False,
            TILES=tiles_of_part,
        )
    return y, moments


def input_gradient(
    dy: Tensor,
    weight: Tensor,
    *,
    size: tuple[int, int],
    stride: int,
    padding: int,
    other: Tensor | None = None,
    normalised: Normalised | None = None,
    launch: Launch | None = None,
) -> tuple[Tensor, Sums | None]:
    """Return the gradient of images (M, B, C, *size), whose sides are multiples of the stride.

    Args:
        dy: gradient of the convolution.
        weight: filters.
        size: of the images.
        stride: of the filters.
        padding: zeros around the images.
        other: added to the result.
        normalised: what the images are the normalisation of; also return the sums that its gradient needs.
        launch: how much a program does.
    """
    (num_out, num_in, *taps), num_images = weight.shape[1:], dy.shape[1]
    dx = empty_images(dy, (*dy.shape[:2], num_in, *size))
    height, width = (side // stride for side in size)
    launch = launch or launch_for(num_out, num_in)
    ghost_size = num_images if normalised is None else num_images // normalised.mean_MGC.shape[1]
    tile = Tile.of(launch.pixels, num_images=ghost_size, height=height, width=width)
    channels, inner = _divisor(num_in, launch.channels), _divisor(num_out, launch.inner)
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    sums, tiles_of_part = None, 1
    norm = _NOT_NORMALISED
    if normalised is not None:
        cut = parts_of_ghost(tile, ghost_size, height=height, width=width)
        assert cut is not None
        sums = Sums(*_by_part(dx, ghost_size, stride**2 * cut.num_parts))
        tiles_of_part = cut.tiles_of_part
        norm = {
            "normalised": _boxes(normalised.x, tile, channels, stride=stride),
            "mean_ptr": normalised.mean_MGC,
            "var_ptr": normalised.var_MGC,
            "weight_ptr": normalised.weight_MC,
            "bias_ptr": normalised.bias_MC,
            "eps": normalised.eps,
            "ghosts_of_run": num_images // ghost_size,
        }
    with device_of(dy):
        _convolve[(len(dy) * num_tiles // tiles_of_part * stride**2 * (num_in // channels),)](
            _boxes(dy, tile, inner),
            _filters(weight, (inner, channels)),
            None if other is None else _boxes(other, tile, channels, stride=stride),
            _boxes(dx, tile, channels, stride=stride),
            *(sums or (None, None)),
            **norm,
            images_of_run=num_images,
            height=height,
            width=width,
            **_constants(taps, stride, padding, tile, channels, inner, launch),
            C=num_out,
            O=num_in,
            BACKWARD=True,
            TILES=tiles_of_part,
            RELU=normalised is not None and normalised.relu,
        )
    return dx, sums


def weight_gradient(
    dy: Tensor,
    x: Tensor,
    *,
    taps: tuple[int, int],
    stride: int,
    padding: int,
    launch: WeightLaunch | None = None,
) -> Tensor:
    """Return the gradient of filters (M, O, C, Y, X) in float32, the input channels last in memory."""
    num_runs, num_images, num_out, height, width = dy.shape
    num_in = x.shape[2]
    launch = launch or weight_launch_for(num_in, num_out)
    tile = Tile.of(launch.pixels, num_images=num_images, height=height, width=width)
    outputs, inputs = _divisor(num_out, launch.outputs), _divisor(num_in, launch.inputs)
    taps_at_once = 3 if launch.takes_row and taps[1] == 3 else 1
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    num_products = (num_out // outputs) * (num_in // inputs) * (taps[0] * taps[1] // taps_at_once)
    num_programs = launch.num_programs * num_images / 64
    tiles_of_part = max(1, min(num_tiles, round(num_tiles * num_products / num_programs)))
    num_parts = triton.cdiv(num_tiles, tiles_of_part)
    parts = torch.empty(num_parts, num_runs, num_out, *taps, num_in, dtype=torch.float32, device=x.device)
    is_flat = tile.is_consecutive(height=height, width=width)
    with device_of(x):
        _sum_gradients[(num_runs * num_parts * num_products,)](
            _rows(dy, tile, outputs) if is_flat else _boxes(dy, tile, outputs),
            _boxes(x, tile, inputs, stride=stride),
            parts,
            num_runs,
            num_images,
            height,
            width,
            num_tiles,
            tiles_of_part,
            **_constants(taps, stride, padding, tile, outputs, inputs, launch),
            C=num_in,
            O=num_out,
            TAPS=taps_at_once,
            IS_FLAT=is_flat,
        )
    total = parts[0] if num_parts == 1 else parts.sum(dim=0)
    return total.permute(0, 1, 4, 2, 3)


# -- what the kernels are told ----------------------------------------------------------------------------------------


def _constants(
    taps: Sequence[int],
    stride: int,
    padding: int,
    tile: Tile,
    channels: int,
    inner: int,
    launch: Launch | WeightLaunch,
) -> dict[str, int]:
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


def _by_part(images: Tensor, ghost_size: int, num_parts: int) -> tuple[Tensor, Tensor]:
    """Return two new tensors (M, G, P, C)."""
    num_runs, num_images, num_channels = images.shape[:3]
    shape = num_runs, num_images // ghost_size, num_parts, num_channels
    first, second = (images.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return first, second


def _boxes(x: Tensor, tile: Tile, num_channels: int, *, stride: int = 1) -> TensorDescriptor:
    """Return images as something that boxes of pixels of one remainder by the stride are copied from or to."""
    num_runs, num_images, channels, height, width = x.shape
    shape = [num_runs * num_images, height // stride, stride, width // stride, stride * channels]
    row = width * channels
    strides = [height * row, stride * row, row, stride * channels, 1]
    return TensorDescriptor(x, shape, strides, [tile.images, tile.rows, 1, tile.columns, num_channels])


def _rows(x: Tensor, tile: Tile, num_channels: int) -> TensorDescriptor:
    """Return images as a matrix with a row for each pixel."""
    channels = x.shape[2]
    return TensorDescriptor(x, [x.numel() // channels, channels], [channels, 1], [tile.num_pixels, num_channels])


def _filters(weight: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """Return filters as a matrix with a row for each output channel of each run."""
    num_runs, num_out, *rest = weight.shape
    columns = rest[0] * rest[1] * rest[2]
    return TensorDescriptor(weight, [num_runs * num_out, columns], [columns, 1], list(block))


def _divisor(number: int, largest: int) -> int:
    """Return the largest power of two up to one given that divides a number."""
    return min(number & -number, largest)


# -- the kernels ------------------------------------------------------------------------------------------------------

# A kernel is not compiled anew for another number of these.
_COUNTS = ("images_of_run", "ghosts_of_run", "num_runs", "height", "width", "num_tiles", "tiles_of_part")


@triton.jit(do_not_specialize=_COUNTS)
def _convolve(
    source,
    filters,
    other,
    target,
    first_ptr,
    second_ptr,
    normalised,
    mean_ptr,
    var_ptr,
    weight_ptr,
    bias_ptr,
    eps,
    ghosts_of_run,
    images_of_run,
    height,
    width,
    Y: tl.constexpr,
    X: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BACKWARD: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    TILES: tl.constexpr,
    RELU: tl.constexpr = False,
):
    """Make tiles of the target from C channels of the source; O are the target's, height and width its boxes'.

    Then, where there are pointers for it, store two sums by channel over all tiles: the moments of the target, or if it
    is the gradient of something normalised, what the gradient of that needs.
    """
    PIXELS: tl.constexpr = BLOCK_B * BLOCK_H * BLOCK_W
    # Products have 64 rows at least. Where there are fewer channels, pixels are the rows.
    PIXELS_FIRST: tl.constexpr = BLOCK_O < 64
    OVER_PIXELS: tl.constexpr = 0 if PIXELS_FIRST else 1
    place = tl.program_id(0)
    channel = place % (O // BLOCK_O) * BLOCK_O
    place = place // (O // BLOCK_O)
    part = place
    first_y, first_x, down, across = 0, 0, 0, 0
    num_y, num_x = Y, X
    if BACKWARD and STRIDE > 1:
        # Pixels that leave the remainders `down` and `across` by the stride, and the taps that meet them.
        across = place % STRIDE
        down = place // STRIDE % STRIDE
        place = place // (STRIDE * STRIDE)
        first_y, first_x = (down + PADDING) % STRIDE, (across + PADDING) % STRIDE
        num_y, num_x = (Y - first_y + STRIDE - 1) // STRIDE, (X - first_x + STRIDE - 1) // STRIDE
    first = tl.zeros((BLOCK_O,), tl.float32)
    second = tl.zeros((BLOCK_O,), tl.float32)
    for number in range(TILES):
        image, row, column = _box(place * TILES + number, height, width, BLOCK_B, BLOCK_H, BLOCK_W)
        run = image // images_of_run
        total = tl.zeros((PIXELS, BLOCK_O) if PIXELS_FIRST else (BLOCK_O, PIXELS), tl.float32)
        for step in tl.range(0, num_y * num_x * (C // BLOCK_C), num_stages=NUM_STAGES):
            inner = step % (C // BLOCK_C) * BLOCK_C
            tap = step // (C // BLOCK_C)
            if BACKWARD:
                y, x = first_y + tap // num_x * STRIDE, first_x + tap % num_x * STRIDE
                # Both are multiples of the stride.
                by_y, by_x = (down + PADDING - y) // STRIDE, (across + PADDING - x) // STRIDE
                pixels = source.load([image, row + by_y, 0, column + by_x, inner]).reshape(PIXELS, BLOCK_C)
                some = filters.load([run * C + inner, (y * X + x) * O + channel]).T
            else:
                by_y, rest_y = _moved(tap // X, STRIDE, PADDING)
                by_x, rest_x = _moved(tap % X, STRIDE, PADDING)
                box = source.load([image, row + by_y, rest_y, column + by_x, rest_x * C + inner])
                pixels = box.reshape(PIXELS, BLOCK_C)
                some = filters.load([run * O + channel, tap * C + inner])
            total = tl.dot(pixels, some.T, total) if PIXELS_FIRST else tl.dot(some, pixels.T, total)
        at = [image, row, down, column, across * O + channel]
        if other is not None:
            total += _by_channel(other.load(at), PIXELS, BLOCK_O, PIXELS_FIRST).to(tl.float32)
        result = total.to(target.dtype)
        stored = result if PIXELS_FIRST else result.T
        target.store(at, stored.reshape(BLOCK_B, BLOCK_H, 1, BLOCK_W, BLOCK_O))
        if normalised is not None:
            ghost = image // (images_of_run // ghosts_of_run)
            channels = channel + tl.arange(0, BLOCK_O)
            inverse = tl.rsqrt(tl.load(var_ptr + (ghost * O + channels)) + eps)
            mean = tl.load(mean_ptr + (ghost * O + channels))
            centred = _by_channel(normalised.load(at), PIXELS, BLOCK_O, PIXELS_FIRST).to(tl.float32)
            centred -= tl.expand_dims(mean, OVER_PIXELS)
            dz = result.to(tl.float32)
            if RELU:
                scale = tl.load(weight_ptr + (run * O + channels)).to(tl.float32) * inverse
                bias = tl.load(bias_ptr + (run * O + channels)).to(tl.float32)
                z = centred * tl.expand_dims(scale, OVER_PIXELS) + tl.expand_dims(bias, OVER_PIXELS)
                dz = tl.where(z <= 0.0, 0.0, dz)
            first += tl.sum(dz, axis=OVER_PIXELS)
            second += tl.sum(dz * centred, axis=OVER_PIXELS) * inverse
        elif first_ptr is not None:
            # Means of tiles, and squared distances from them, put together tile by tile.
            values = result.to(tl.float32)
            mean = tl.sum(values, axis=OVER_PIXELS) / PIXELS
            values -= tl.expand_dims(mean, OVER_PIXELS)
            away = mean - first
            first += away / (number + 1)
            second += tl.sum(values * values, axis=OVER_PIXELS) + away * away * (PIXELS * number / (number + 1))
    if first_ptr is not None:
        to = part * O + channel + tl.arange(0, BLOCK_O)
        tl.store(first_ptr + to, first)
        tl.store(second_ptr + to, second)


@triton.jit
def _by_channel(box, PIXELS: tl.constexpr, BLOCK_O: tl.constexpr, PIXELS_FIRST: tl.constexpr):
    """Return a box as a matrix like the one that products are added up in."""
    matrix = box.reshape(PIXELS, BLOCK_O)
    return matrix if PIXELS_FIRST else matrix.T


@triton.jit(do_not_specialize=_COUNTS)
def _sum_gradients(
    gradients,
    source,
    parts_ptr,
    num_runs,
    images_of_run,
    height,
    width,
    num_tiles,
    tiles_of_part,
    Y: tl.constexpr,
    X: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr,
    TAPS: tl.constexpr,
    IS_FLAT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Store one part of the gradient of one tap, or of three in a row, for a block of either side's channels."""
    PIXELS: tl.constexpr = BLOCK_B * BLOCK_H * BLOCK_W
    place = tl.program_id(0)
    inner = place % (C // BLOCK_C) * BLOCK_C
    place = place // (C // BLOCK_C)
    channel = place % (O // BLOCK_O) * BLOCK_O
    place = place // (O // BLOCK_O)
    tap = place % (Y * X // TAPS) * TAPS
    place = place // (Y * X // TAPS)
    run = place % num_runs
    part = place // num_runs
    by_y, rest_y = _moved(tap // X, STRIDE, PADDING)
    by_x0, rest_x0 = _moved(tap % X, STRIDE, PADDING)
    by_x1, rest_x1 = _moved(tap % X + 1, STRIDE, PADDING)
    by_x2, rest_x2 = _moved(tap % X + 2, STRIDE, PADDING)
    total0 = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    total1 = total0
    total2 = total0
    tiles_of_run = images_of_run // BLOCK_B * tl.cdiv(height, BLOCK_H) * tl.cdiv(width, BLOCK_W)
    first = part * tiles_of_part
    for tile in tl.range(first, tl.minimum(first + tiles_of_part, num_tiles), num_stages=NUM_STAGES):
        image, row, column = _box(run * tiles_of_run + tile, height, width, BLOCK_B, BLOCK_H, BLOCK_W)
        if IS_FLAT:
            gradient = gradients.load([(image * height + row) * width + column, channel]).T
        else:
            gradient = gradients.load([image, row, 0, column, channel]).reshape(PIXELS, BLOCK_O).T
        at_y = row + by_y
        pixels0 = source.load([image, at_y, rest_y, column + by_x0, rest_x0 * C + inner]).reshape(PIXELS, BLOCK_C)
        total0 = tl.dot(gradient, pixels0, total0)
        if TAPS == 3:
            pixels1 = source.load([image, at_y, rest_y, column + by_x1, rest_x1 * C + inner]).reshape(PIXELS, BLOCK_C)
            total1 = tl.dot(gradient, pixels1, total1)
            pixels2 = source.load([image, at_y, rest_y, column + by_x2, rest_x2 * C + inner]).reshape(PIXELS, BLOCK_C)
            total2 = tl.dot(gradient, pixels2, total2)
    parts_ptr += (part * num_runs + run).to(tl.int64) * (O * Y * X * C)
    at = (channel + tl.arange(0, BLOCK_O))[:, None] * (Y * X * C) + (tap * C + inner + tl.arange(0, BLOCK_C))[None, :]
    tl.store(parts_ptr + at, total0)
    if TAPS == 3:
        tl.store(parts_ptr + at + C, total1)
        tl.store(parts_ptr + at + 2 * C, total2)


@triton.jit
def _box(place, height, width, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr):
    """Return the first image, row and column of a box."""
    across, down = tl.cdiv(width, BLOCK_W), tl.cdiv(height, BLOCK_H)
    return place // (across * down) * BLOCK_B, place // across % down * BLOCK_H, place % across * BLOCK_W


@triton.jit
def _moved(tap, STRIDE: tl.constexpr, PADDING: tl.constexpr):
    """Return by how many strides a tap lies beside its pixel, and the remainder."""
    rest = (tap + PADDING * (STRIDE - 1)) % STRIDE
    return (tap - PADDING - rest) // STRIDE, rest
