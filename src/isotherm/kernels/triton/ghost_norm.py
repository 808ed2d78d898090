"""Ghost batch norm with ReLU and residual adds as Triton kernels, for channels-last images.

Each direction takes two kernels over the same split of the batch: partial sums, then everything else. The second kernel
adds up the partial sums itself, in a fixed order, so there are no atomics and equal inputs give equal bits. All
arithmetic is in float32. Passes over a tensor of the input's size (R reads, W writes):

    forward     moments R, normalise R W                   with a residual: moments 2R W
    backward    sums 2R, gradient of the input 2R W        with a gradient to add: one R more

In memory such images are a matrix with one row per pixel and one column per channel; a ghost batch is a range of rows.
A program handles one part of a ghost batch and one block of channels (`tiling.ghost_norm.Split`), tile by tile.
Programs of the first kernel run from the last rows to the first, those of the second the other way round: each starts
with the data that was touched last and may still be cached.

Several contiguous runs are just more ghost batches, each of which reads the weight and bias of its run. Images are then
(M, batch, C, H, W), weight and bias (M, C), statistics and gradients by ghost batch (M, G, C).

Shape suffixes: M runs, G ghost batches of each, P parts of each, C channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotherm.kernels.availability import device_of
from isotherm.kernels.tiling.ghost_norm import LAUNCH, Launch, Split, parts_at_once


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    num_ghosts: int,
    eps: float,
    relu: bool,
    other: Tensor | None = None,
    moments: tuple[Tensor, Tensor] | None = None,
    launch: Launch = LAUNCH,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x (plus `other`, if given), its normalisation, and means and variances (G, C).

    Each run has `num_ghosts` ghost batches. If the moments of x are known already, pass them: means, and sums of
    squared deviations from them, of equal parts of each ghost batch (..., G, P, C).
    """
    split = _split(x, num_ghosts, launch)
    mean_GC, var_GC = _per_ghost(x, num_ghosts), _per_ghost(x, num_ghosts)
    total = x if other is None else torch.empty_like(x)
    y = torch.empty_like(x)
    with device_of(x):
        if moments is None:
            means, squares = _partial_sums(split, x)
            _moments[(split.num_programs,)](
                x, other, None if other is None else total, means, squares, **split.arguments()
            )
            rows_of_sum = split.rows_of_part
        else:
            assert other is None
            means, squares = moments
            rows_of_sum = split.num_rows // means.shape[-2]
        _normalise[(split.num_programs,)](
            total,
            means,
            squares,
            weight,
            bias,
            y,
            mean_GC,
            var_GC,
            eps,
            num_ghosts,
            means.shape[-2],
            rows_of_sum,
            **split.arguments(),
            BLOCK_P=parts_at_once(means.shape[-2]),
            RELU=relu,
        )
    return total, y, mean_GC, var_GC


def backward(
    dy: Tensor,
    x: Tensor,
    mean_GC: Tensor,
    var_GC: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    eps: float,
    relu: bool,
    other: Tensor | None = None,
    sums: tuple[Tensor, Tensor] | None = None,
    launch: Launch = LAUNCH,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x (plus `other`, if given), and of weight and bias by ghost batch (G, C).

    If they are known already, pass the sums of dy and of its product with the normalised x, both before the ReLU, of
    parts of each ghost batch (..., G, P, C).
    """
    num_ghosts = mean_GC.shape[-2]
    split = _split(x, num_ghosts, launch)
    weight_GC, bias_GC = _per_ghost(x, num_ghosts), _per_ghost(x, num_ghosts)
    dx = torch.empty_like(x)
    given = (dy, x, mean_GC, var_GC, weight, bias)
    with device_of(x):
        if sums is None:
            gradients, products = _partial_sums(split, x)
            _gradient_sums[(split.num_programs,)](
                *given, gradients, products, eps, num_ghosts, **split.arguments(), RELU=relu
            )
        else:
            gradients, products = sums
        _input_gradient[(split.num_programs,)](
            *given,
            other,
            gradients,
            products,
            dx,
            weight_GC,
            bias_GC,
            eps,
            num_ghosts,
            gradients.shape[-2],
            **split.arguments(),
            BLOCK_P=parts_at_once(gradients.shape[-2]),
            RELU=relu,
        )
    return dx, weight_GC, bias_GC


def _split(x: Tensor, num_ghosts: int, launch: Launch) -> Split:
    batch_size, num_channels, height, width = x.shape[-4:]
    num_rows = batch_size // num_ghosts * height * width
    of_all_runs = x.shape[:-4].numel() * num_ghosts
    return Split.of(num_ghosts=of_all_runs, num_rows=num_rows, num_channels=num_channels, launch=launch)


def _partial_sums(split: Split, x: Tensor) -> tuple[Tensor, Tensor]:
    shape = split.num_ghosts, split.num_parts, split.num_channels
    first, second = (x.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return first, second


def _per_ghost(x: Tensor, num_ghosts: int) -> Tensor:
    return x.new_empty((*x.shape[:-4], num_ghosts, x.shape[-3]), dtype=torch.float32)


# -- kernels -----------------------------------------------------------------------------------------------------------


@triton.jit
def _place(program, num_rows, num_parts, rows_of_part, C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return a program's ghost batch, part, row count, first value (64 bits), channels, rows of a tile, and offsets."""
    channel = program % (C // BLOCK_C) * BLOCK_C + tl.arange(0, BLOCK_C)
    place = program // (C // BLOCK_C)
    ghost = place // num_parts
    part = place % num_parts
    count = tl.minimum(num_rows - part * rows_of_part, rows_of_part)
    first = (ghost.to(tl.int64) * num_rows + part * rows_of_part) * C
    row = tl.arange(0, BLOCK_R)
    return ghost, part, count, first, channel, row, row[:, None] * C + channel[None, :]


@triton.jit
def _sum_or_load(a_ptr, b_ptr, total_ptr, at, inside):
    """Return a tile in float32; if there is something to add, the sum, rounded as it is stored."""
    x = tl.load(a_ptr + at, mask=inside, other=0.0)
    if b_ptr is not None:
        wide = x.to(tl.float32) + tl.load(b_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = wide.to(x.dtype)
        tl.store(total_ptr + at, x, mask=inside)
    return x.to(tl.float32)


@triton.jit
def _moments(
    a_ptr,
    b_ptr,
    total_ptr,
    mean_ptr,
    square_ptr,
    num_rows,
    num_parts,
    rows_of_part,
    C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Store the mean and the sum of squared deviations of a part, by channel.

    Deviations are taken from the mean of the first tile: squares of values far from zero would cancel.
    """
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    ghost, part, count, first, channel, row, at = _place(
        program, num_rows, num_parts, rows_of_part, C, BLOCK_R, BLOCK_C
    )
    a_ptr += first
    if b_ptr is not None:
        b_ptr += first
        total_ptr += first
    in_first = (row < count)[:, None]
    first_tile = _sum_or_load(a_ptr, b_ptr, total_ptr, at, in_first)
    shift = tl.sum(first_tile, axis=0) / tl.minimum(count, BLOCK_R)
    sums = tl.where(in_first, first_tile - shift[None, :], 0.0)
    squares = sums * sums
    for start in range(BLOCK_R, count, BLOCK_R):
        inside = (start + row < count)[:, None]
        x = _sum_or_load(a_ptr, b_ptr, total_ptr, start * C + at, inside)
        away = tl.where(inside, x - shift[None, :], 0.0)
        sums += away
        squares += away * away
    sum_of_part = tl.sum(sums, axis=0)
    away_of_part = sum_of_part / count
    to = (ghost * num_parts + part) * C + channel
    tl.store(mean_ptr + to, shift + away_of_part)
    tl.store(square_ptr + to, tl.sum(squares, axis=0) - sum_of_part * away_of_part)


@triton.jit
def _ghost_moments(
    mean_ptr,
    square_ptr,
    ghost,
    channel,
    num_rows,
    num_parts,
    rows_of_part,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Return the mean and variance of a ghost batch from those of its parts, relative to the first part's mean."""
    at = ghost * num_parts * C + channel
    shift = tl.load(mean_ptr + at)
    sums = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    squares = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, num_parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        inside = (part < num_parts)[:, None]
        count = tl.minimum(num_rows - part * rows_of_part, rows_of_part).to(tl.float32)[:, None]
        mean = tl.load(mean_ptr + (part[:, None] * C + at[None, :]), mask=inside, other=0.0)
        square = tl.load(square_ptr + (part[:, None] * C + at[None, :]), mask=inside, other=0.0)
        away = tl.where(inside, mean - shift[None, :], 0.0)
        sums += count * away
        squares += square + count * away * away
    total = tl.sum(sums, axis=0)
    away = total / num_rows
    variance = (tl.sum(squares, axis=0) - total * away) / num_rows
    return shift + away, tl.where(variance < 0.0, 0.0, variance)  # a comparison with NaN is false, so NaN stays NaN


@triton.jit
def _of_run(ptr, ghost, ghosts_of_run, channel, C: tl.constexpr):
    """Return the weights or biases of a ghost batch's run in float32."""
    return tl.load(ptr + (ghost // ghosts_of_run * C + channel)).to(tl.float32)


@triton.jit
def _normalise(
    x_ptr,
    part_mean_ptr,
    part_square_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    mean_ptr,
    var_ptr,
    eps,
    ghosts_of_run,
    num_sums,
    rows_of_sum,
    num_rows,
    num_parts,
    rows_of_part,
    C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    RELU: tl.constexpr,
):
    """Store a part normalised, scaled, shifted and rectified; the first part also stores mean and variance."""
    ghost, part, count, first, channel, row, at = _place(
        tl.program_id(0), num_rows, num_parts, rows_of_part, C, BLOCK_R, BLOCK_C
    )
    mean, var = _ghost_moments(
        part_mean_ptr, part_square_ptr, ghost, channel, num_rows, num_sums, rows_of_sum, C, BLOCK_P, BLOCK_C
    )
    if part == 0:
        tl.store(mean_ptr + ghost * C + channel, mean)
        tl.store(var_ptr + ghost * C + channel, var)
    scale = _of_run(weight_ptr, ghost, ghosts_of_run, channel, C) * tl.rsqrt(var + eps)
    bias = _of_run(bias_ptr, ghost, ghosts_of_run, channel, C)
    x_ptr += first
    y_ptr += first
    for start in range(0, count, BLOCK_R):
        inside = (start + row < count)[:, None]
        x = tl.load(x_ptr + (start * C + at), mask=inside, other=0.0).to(tl.float32)
        y = (x - mean[None, :]) * scale[None, :] + bias[None, :]
        if RELU:
            y = tl.where(y < 0.0, 0.0, y)
        tl.store(y_ptr + (start * C + at), y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _behind_relu(dy_ptr, centred, scale, bias, at, inside, RELU: tl.constexpr):
    """Return the gradient before the ReLU, whose sign is recomputed exactly as in the forward pass."""
    dz = tl.load(dy_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        dz = tl.where(centred * scale[None, :] + bias[None, :] <= 0.0, 0.0, dz)
    return dz


@triton.jit
def _gradient_sums(
    dy_ptr,
    x_ptr,
    mean_ptr,
    var_ptr,
    weight_ptr,
    bias_ptr,
    sum_ptr,
    product_ptr,
    eps,
    ghosts_of_run,
    num_rows,
    num_parts,
    rows_of_part,
    C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    RELU: tl.constexpr,
):
    """Store a part's sums of dz and of dz times the normalised input, by channel; dz is dy before the ReLU."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    ghost, part, count, first, channel, row, at = _place(
        program, num_rows, num_parts, rows_of_part, C, BLOCK_R, BLOCK_C
    )
    mean = tl.load(mean_ptr + ghost * C + channel)
    inverse = tl.rsqrt(tl.load(var_ptr + ghost * C + channel) + eps)
    scale = _of_run(weight_ptr, ghost, ghosts_of_run, channel, C) * inverse
    bias = _of_run(bias_ptr, ghost, ghosts_of_run, channel, C)
    dy_ptr += first
    x_ptr += first
    sums = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    products = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in range(0, count, BLOCK_R):
        inside = (start + row < count)[:, None]
        centred = tl.load(x_ptr + (start * C + at), mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        dz = _behind_relu(dy_ptr, centred, scale, bias, start * C + at, inside, RELU)
        sums += dz
        products += dz * centred
    to = (ghost * num_parts + part) * C + channel
    tl.store(sum_ptr + to, tl.sum(sums, axis=0))
    tl.store(product_ptr + to, tl.sum(products, axis=0) * inverse)


@triton.jit
def _ghost_sum(ptr, ghost, channel, num_parts, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the sum over the parts of a ghost batch."""
    sums = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, num_parts, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        at = (ghost * num_parts + part)[:, None] * C + channel[None, :]
        sums += tl.load(ptr + at, mask=(part < num_parts)[:, None], other=0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def _input_gradient(
    dy_ptr,
    x_ptr,
    mean_ptr,
    var_ptr,
    weight_ptr,
    bias_ptr,
    other_ptr,
    part_sum_ptr,
    part_product_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    eps,
    ghosts_of_run,
    num_sums,
    num_rows,
    num_parts,
    rows_of_part,
    C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    RELU: tl.constexpr,
):
    """Store dx = scale (dz - mean of dz - x̂ mean of dz x̂) of a part, plus another gradient if given."""
    ghost, part, count, first, channel, row, at = _place(
        tl.program_id(0), num_rows, num_parts, rows_of_part, C, BLOCK_R, BLOCK_C
    )
    sum_dz = _ghost_sum(part_sum_ptr, ghost, channel, num_sums, C, BLOCK_P, BLOCK_C)
    sum_product = _ghost_sum(part_product_ptr, ghost, channel, num_sums, C, BLOCK_P, BLOCK_C)
    if part == 0:
        tl.store(dbias_ptr + ghost * C + channel, sum_dz)
        tl.store(dweight_ptr + ghost * C + channel, sum_product)
    mean = tl.load(mean_ptr + ghost * C + channel)
    inverse = tl.rsqrt(tl.load(var_ptr + ghost * C + channel) + eps)
    scale = _of_run(weight_ptr, ghost, ghosts_of_run, channel, C) * inverse
    bias = _of_run(bias_ptr, ghost, ghosts_of_run, channel, C)
    mean_dz = sum_dz / num_rows
    slope = inverse * sum_product / num_rows
    dy_ptr += first
    x_ptr += first
    dx_ptr += first
    if other_ptr is not None:
        other_ptr += first
    for start in range(0, count, BLOCK_R):
        inside = (start + row < count)[:, None]
        centred = tl.load(x_ptr + (start * C + at), mask=inside, other=0.0).to(tl.float32) - mean[None, :]
        dz = _behind_relu(dy_ptr, centred, scale, bias, start * C + at, inside, RELU)
        dx = scale[None, :] * (dz - mean_dz[None, :] - centred * slope[None, :])
        if other_ptr is not None:
            dx += tl.load(other_ptr + (start * C + at), mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + (start * C + at), dx.to(dx_ptr.dtype.element_ty), mask=inside)
