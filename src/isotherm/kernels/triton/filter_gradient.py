"""Filter gradients of many runs at once as a Triton kernel: for each tap, sums over pixels of gradient x pixels.

The pixels of a run are split into parts, whose sums are added in a fixed order. The number of parts depends only on the
shape of one run's tensors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotherm.kernels.availability import device_of, in_gluon
from isotherm.kernels.tiling.convolution import Tile, WeightLaunch, are_blocks, tiles_of_part, weight_launch_for
from isotherm.kernels.triton.descriptors import COUNTS, boxes, constants, divisor, first_of_box, moved, rows


def weight_gradient(
    dy: Tensor,
    x: Tensor,
    *,
    taps: tuple[int, int],
    stride: int,
    padding: int,
    launch: WeightLaunch | None = None,
) -> Tensor:
    """Return the gradient of filters (M, O, C, Y, X) in float32, with the input channels last in memory."""
    num_runs, num_images, num_out, height, width = dy.shape
    num_in = x.shape[2]
    by_rows = in_gluon("row_convolution") if launch is None else None
    are_wide = are_blocks(num_in) and are_blocks(num_out)
    if by_rows is not None and are_wide and by_rows.fit(x, num_out, taps, stride=stride, padding=padding):
        gradient: Tensor = by_rows.weight_gradient(dy, x)
        return gradient
    launch = launch or weight_launch_for(num_in, num_out)
    tile = Tile.of(launch.pixels, num_images=num_images, height=height, width=width)
    outputs, inputs = divisor(num_out, launch.outputs), divisor(num_in, launch.inputs)
    taps_at_once = 3 if launch.takes_row and taps[1] == 3 else 1
    num_tiles = tile.count(num_images=num_images, height=height, width=width)
    num_products = (num_out // outputs) * (num_in // inputs) * (taps[0] * taps[1] // taps_at_once)
    in_part = tiles_of_part(num_tiles, num_products, num_images, num_programs=launch.num_programs)
    num_parts = triton.cdiv(num_tiles, in_part)
    parts = torch.empty(num_parts, num_runs, num_out, *taps, num_in, dtype=torch.float32, device=x.device)
    is_flat = tile.is_consecutive(height=height, width=width)
    with device_of(x):
        _sum_gradients[(num_runs * num_parts * num_products,)](
            rows(dy, tile, outputs) if is_flat else boxes(dy, tile, outputs),
            boxes(x, tile, inputs, stride=stride),
            parts,
            num_runs,
            num_images,
            height,
            width,
            num_tiles,
            in_part,
            **constants(taps, stride, padding, tile, outputs, inputs, launch),
            C=num_in,
            O=num_out,
            TAPS=taps_at_once,
            IS_FLAT=is_flat,
        )
    total = parts[0] if num_parts == 1 else parts.sum(dim=0)
    return total.permute(0, 1, 4, 2, 3)


@triton.jit(do_not_specialize=COUNTS)
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
    """Store one part of the gradient of one tap, or of three in a row, for one block of channels in and out."""
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
    by_y, rest_y = moved(tap // X, STRIDE, PADDING)
    by_x0, rest_x0 = moved(tap % X, STRIDE, PADDING)
    by_x1, rest_x1 = moved(tap % X + 1, STRIDE, PADDING)
    by_x2, rest_x2 = moved(tap % X + 2, STRIDE, PADDING)
    total0 = tl.zeros((BLOCK_O, BLOCK_C), tl.float32)
    total1 = total0
    total2 = total0
    tiles_of_run = images_of_run // BLOCK_B * tl.cdiv(height, BLOCK_H) * tl.cdiv(width, BLOCK_W)
    first = part * tiles_of_part
    for tile in tl.range(first, tl.minimum(first + tiles_of_part, num_tiles), num_stages=NUM_STAGES):
        image, row, column = first_of_box(run * tiles_of_run + tile, height, width, BLOCK_B, BLOCK_H, BLOCK_W)
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
