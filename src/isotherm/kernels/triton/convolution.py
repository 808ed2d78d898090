"""Convolutions of many runs at once, each with its own filters, as Triton kernels for channels-last images.

The small batch of one run is too little work for a GPU, and libraries use the same filters for all images. Here every
program belongs to one run and computes tiles of its result, summing matmuls over taps and channels. Pixels are copied
to shared memory as boxes by TMA (`descriptors.boxes`).

    forward            sum over taps and input channels of filters x pixels
    input_gradient     the same with the filters transposed; each remainder modulo the stride has its own taps

The tiling depends only on the shape of one run's tensors, not on the number of runs, and so do a run's results.

Shape suffixes: M runs, B examples, C channels in, O channels out, H x W pixels, Y x X taps of a filter.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from isotherm.kernels.availability import device_of, in_gluon
from isotherm.kernels.layout import empty_images
from isotherm.kernels.tiling.convolution import Launch, Tile, cut_ghost, launch_for, result_size
from isotherm.kernels.tiling.partial_sums import NOT_NORMALISED, Moments, Normalised, Sums, by_part
from isotherm.kernels.triton.descriptors import COUNTS, boxes, constants, divisor, filters_of, first_of_box, moved


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
        ghost_size: if given, also return the moments of the result, for ghost batches of this size.
        launch: tile sizes, warps and stages.
    """
    (num_out, num_in, *taps), num_images = weight.shape[1:], x.shape[1]
    settings = {"stride": stride, "padding": padding, "ghost_size": ghost_size}
    by_rows = in_gluon("row_convolution") if launch is None else None
    if by_rows is not None and by_rows.fit(x, num_out, taps, **settings):
        y, found = by_rows.convolve(x, weight, other=other, ghost_size=ghost_size)
        return y, None if found is None else Moments(*found)
    height, width = result_size(x.shape[3:], taps, stride=stride, padding=padding)
    y = empty_images(x, (*x.shape[:2], num_out, height, width))
    launch = launch or launch_for(num_in, num_out)
    tile = Tile.of(launch.pixels, num_images=ghost_size or num_images, height=height, width=width)
    channels, inner = divisor(num_out, launch.channels), divisor(num_in, launch.inner)
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    moments, tiles_of_part = None, 1
    if ghost_size is not None:
        num_parts, tiles_of_part = cut_ghost(tile, num_in, num_out, ghost_size, height=height, width=width)
        moments = Moments(*by_part(y, ghost_size, num_parts))
    with device_of(x):
        _convolve[(len(x) * num_tiles // tiles_of_part * (num_out // channels),)](
            boxes(x, tile, inner, stride=stride),
            filters_of(weight, (channels, inner)),
            None if other is None else boxes(other, tile, channels),
            boxes(y, tile, channels),
            *(moments or (None, None)),
            **NOT_NORMALISED,
            images_of_run=num_images,
            height=height,
            width=width,
            **constants(taps, stride, padding, tile, channels, inner, launch),
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
        normalised: the norm whose output the images are; if given, also return the sums that its gradient needs.
        launch: tile sizes, warps and stages.
    """
    (num_out, num_in, *taps), num_images = weight.shape[1:], dy.shape[1]
    settings = {"stride": stride, "padding": padding, "ghost_size": normalised and normalised.ghost_size}
    by_rows = in_gluon("row_convolution") if launch is None else None
    if by_rows is not None and by_rows.fit(dy, num_in, taps, **settings):
        dx, found = by_rows.convolve(dy, weight, is_gradient=True, other=other, normalised=normalised)
        return dx, None if found is None else Sums(*found)
    dx = empty_images(dy, (*dy.shape[:2], num_in, *size))
    height, width = (side // stride for side in size)
    launch = launch or launch_for(num_out, num_in)
    ghost_size = num_images if normalised is None else normalised.ghost_size
    tile = Tile.of(launch.pixels, num_images=ghost_size, height=height, width=width)
    channels, inner = divisor(num_in, launch.channels), divisor(num_out, launch.inner)
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    sums, tiles_of_part = None, 1
    norm = NOT_NORMALISED
    if normalised is not None:
        num_parts, tiles_of_part = cut_ghost(tile, num_out, num_in, ghost_size, height=height, width=width)
        sums = Sums(*by_part(dx, ghost_size, stride**2 * num_parts))
        norm = normalised.arguments(boxes(normalised.x, tile, channels, stride=stride))
    with device_of(dy):
        _convolve[(len(dy) * num_tiles // tiles_of_part * stride**2 * (num_in // channels),)](
            boxes(dy, tile, inner),
            filters_of(weight, (inner, channels)),
            None if other is None else boxes(other, tile, channels, stride=stride),
            boxes(dx, tile, channels, stride=stride),
            *(sums or (None, None)),
            **norm,
            images_of_run=num_images,
            height=height,
            width=width,
            **constants(taps, stride, padding, tile, channels, inner, launch),
            C=num_out,
            O=num_in,
            BACKWARD=True,
            TILES=tiles_of_part,
            RELU=normalised is not None and normalised.relu,
        )
    return dx, sums


# -- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=COUNTS)
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
    """Compute tiles of the target (O channels) from the source (C channels); height and width count the target's boxes.

    If there are pointers for them, also store two sums over all tiles by channel: the moments of the target, or, if the
    target is the gradient of a norm's output, the sums that the norm's gradient needs.
    """
    PIXELS: tl.constexpr = BLOCK_B * BLOCK_H * BLOCK_W
    # A matmul has at least 64 rows. With fewer channels than that, the pixels are the rows.
    PIXELS_FIRST: tl.constexpr = BLOCK_O < 64
    OVER_PIXELS: tl.constexpr = 0 if PIXELS_FIRST else 1
    place = tl.program_id(0)
    channel = place % (O // BLOCK_O) * BLOCK_O
    place = place // (O // BLOCK_O)
    part = place
    first_y, first_x, down, across = 0, 0, 0, 0
    num_y, num_x = Y, X
    if BACKWARD and STRIDE > 1:
        # Pixels with remainders `down` and `across` modulo the stride, and the taps that reach them.
        across = place % STRIDE
        down = place // STRIDE % STRIDE
        place = place // (STRIDE * STRIDE)
        first_y, first_x = (down + PADDING) % STRIDE, (across + PADDING) % STRIDE
        num_y, num_x = (Y - first_y + STRIDE - 1) // STRIDE, (X - first_x + STRIDE - 1) // STRIDE
    first = tl.zeros((BLOCK_O,), tl.float32)
    second = tl.zeros((BLOCK_O,), tl.float32)
    for number in range(TILES):
        image, row, column = first_of_box(place * TILES + number, height, width, BLOCK_B, BLOCK_H, BLOCK_W)
        run = image // images_of_run
        total = tl.zeros((PIXELS, BLOCK_O) if PIXELS_FIRST else (BLOCK_O, PIXELS), tl.float32)
        for step in tl.range(0, num_y * num_x * (C // BLOCK_C), num_stages=NUM_STAGES):
            inner = step % (C // BLOCK_C) * BLOCK_C
            tap = step // (C // BLOCK_C)
            if BACKWARD:
                y, x = first_y + tap // num_x * STRIDE, first_x + tap % num_x * STRIDE
                # Both differences are multiples of the stride.
                by_y, by_x = (down + PADDING - y) // STRIDE, (across + PADDING - x) // STRIDE
                pixels = source.load([image, row + by_y, 0, column + by_x, inner]).reshape(PIXELS, BLOCK_C)
                some = filters.load([run * C + inner, (y * X + x) * O + channel]).T
            else:
                by_y, rest_y = moved(tap // X, STRIDE, PADDING)
                by_x, rest_x = moved(tap % X, STRIDE, PADDING)
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
            # Merge the mean and the squared deviations of each tile into the running ones.
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
    """Return a box as a matrix laid out like the accumulator."""
    matrix = box.reshape(PIXELS, BLOCK_O)
    return matrix if PIXELS_FIRST else matrix.T
