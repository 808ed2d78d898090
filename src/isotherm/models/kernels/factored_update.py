"""The gradient of a matrix and its update as one Triton kernel: the gradient never goes to memory.

With small batches a gradient is the product of two thin matrices, quickly made, and writing and reading it is a good
part of what an update moves. Here a program makes a tile of it and moves on weights, velocities and rounded weights of
that tile at once: 18 bytes a weight instead of 22.

Shape suffixes: M runs, R rows, C columns, I inner side.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from isotherm.models.kernels import device_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """What a program makes: rows and columns of the gradient, and how many products it adds up at once."""

    rows: int = 64
    columns: int = 64
    inner: int = 64
    num_warps: int = 4


TILE = Tile()


def update(
    value_MRC: Tensor,
    velocity_MRC: Tensor,
    half_MRC: Tensor,
    left_MRI: Tensor,
    right_MIC: Tensor,
    rate_M1: Tensor,
    momentum_M1: Tensor,
    l2_M1: Tensor | None,
    *,
    tile: Tile = TILE,
) -> None:
    """Heavy ball in place with the gradient left @ right, rounded as a product in half precision is."""
    num_runs, num_rows, num_columns = value_MRC.shape
    grid = (triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_columns, tile.columns), num_runs)
    with device_of(value_MRC):
        _update[grid](
            value_MRC,
            velocity_MRC,
            half_MRC,
            left_MRI,
            right_MIC,
            rate_M1,
            momentum_M1,
            l2_M1,
            num_rows,
            num_columns,
            left_MRI.shape[2],
            *left_MRI.stride(),
            *right_MIC.stride(),
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            INNER=tile.inner,
            num_warps=tile.num_warps,
        )


@triton.jit
def _update(
    value_ptr,
    velocity_ptr,
    half_ptr,
    left_ptr,
    right_ptr,
    rate_ptr,
    momentum_ptr,
    l2_ptr,
    num_rows,
    num_columns,
    num_inner,
    left_by_run,
    left_by_row,
    left_by_inner,
    right_by_run,
    right_by_inner,
    right_by_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    run = tl.program_id(1).to(tl.int64)
    num_across = tl.cdiv(num_columns, COLUMNS)
    row = tl.program_id(0) // num_across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % num_across * COLUMNS + tl.arange(0, COLUMNS)
    row_inside, column_inside = (row < num_rows)[:, None], (column < num_columns)[None, :]
    inside = row_inside & column_inside
    at = run * num_rows * num_columns + (row[:, None] * num_columns + column[None, :])
    value = tl.load(value_ptr + at, mask=inside, other=0.0)
    velocity = tl.load(velocity_ptr + at, mask=inside, other=0.0)
    left_at = left_ptr + run * left_by_run + row[:, None] * left_by_row
    right_at = right_ptr + run * right_by_run + column[None, :] * right_by_column
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, num_inner, INNER):
        inner = first + tl.arange(0, INNER)
        inner_inside = inner < num_inner
        left = tl.load(left_at + inner[None, :] * left_by_inner, mask=row_inside & inner_inside[None, :], other=0.0)
        right = tl.load(
            right_at + inner[:, None] * right_by_inner, mask=inner_inside[:, None] & column_inside, other=0.0
        )
        total = tl.dot(left, right, total)
    gradient = total.to(left_ptr.dtype.element_ty).to(tl.float32)
    velocity = gradient + velocity * tl.load(momentum_ptr + run)
    if l2_ptr is not None:
        velocity += value * tl.load(l2_ptr + run)
    value -= velocity * tl.load(rate_ptr + run)
    tl.store(velocity_ptr + at, velocity, mask=inside)
    tl.store(value_ptr + at, value, mask=inside)
    tl.store(half_ptr + at, value.to(half_ptr.dtype.element_ty), mask=inside)
