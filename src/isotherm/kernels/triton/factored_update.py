"""The gradient of a matrix and its SGD update fused into one Triton kernel: the gradient never goes to memory.

With small batches the gradient is a matmul of two thin matrices and is cheap to compute; writing and reading it is a
good part of an update's memory traffic. Here a program computes a tile of the gradient and updates weights, velocities
and bfloat16 weights of that tile at once: 18 bytes per weight instead of 22.

Shape suffixes: M runs, R rows, C columns, I inner dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from isotherm.kernels.availability import device_of, in_gluon


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Rows and columns of the gradient that a program computes, and the inner dimension of one matmul."""

    rows: int = 32
    columns: int = 128
    inner: int = 64
    num_warps: int = 8


TILE = Tile()
_ALIGNED = 8


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
    tile: Tile | None = None,
) -> None:
    """Take a heavy-ball step in place with the gradient left @ right, rounded as a half-precision matmul rounds it.

    Rows and columns must be multiples of 8, so that 16 bytes are read and written at once. Passing a tile selects this
    kernel even where the streamed one is available.
    """
    num_runs, num_rows, num_columns = value_MRC.shape
    if num_rows % _ALIGNED or num_columns % _ALIGNED:
        raise ValueError(f"a matrix of {num_rows} x {num_columns} does not have sides in multiples of {_ALIGNED}")
    streamed = in_gluon("streamed_update") if tile is None else None
    if streamed is not None and streamed.fits(value_MRC, left_MRI, right_MIC):
        streamed.update(value_MRC, velocity_MRC, half_MRC, left_MRI, right_MIC, rate_M1, momentum_M1, l2_M1)
        return
    tile = tile or TILE
    left_MRI, right_MIC = _with_long_rows(left_MRI), _with_long_rows(right_MIC)
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
            num_rows // _ALIGNED,
            num_columns // _ALIGNED,
            left_MRI.shape[2],
            left_MRI.stride(0) // _ALIGNED,
            max(left_MRI.stride()[1:]) // _ALIGNED,
            right_MIC.stride(0) // _ALIGNED,
            max(right_MIC.stride()[1:]) // _ALIGNED,
            LEFT_TURNED=left_MRI.stride(1) == 1,
            RIGHT_TURNED=right_MIC.stride(1) == 1,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            INNER=tile.inner,
            num_warps=tile.num_warps,
            num_stages=2,
        )


def _with_long_rows(factor: Tensor) -> Tensor:
    """Return a factor with contiguous rows or columns, each starting at a multiple of 8 values."""
    is_plain = 1 in factor.stride()[1:] and not any(step % _ALIGNED for step in factor.stride() if step != 1)
    return factor if is_plain and factor.data_ptr() % 16 == 0 else _copied(factor)


def _copied(factor: Tensor) -> Tensor:
    """Return a copy, transposed in memory if columns but not rows have a multiple of 8 values."""
    if factor.shape[2] % _ALIGNED:
        return factor.transpose(1, 2).contiguous().transpose(1, 2)
    return factor.contiguous()


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
    row_eighths,
    column_eighths,
    num_inner,
    left_run_eighths,
    left_eighths,
    right_run_eighths,
    right_eighths,
    LEFT_TURNED: tl.constexpr,
    RIGHT_TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    # Sizes and strides are passed in eighths, so that the compiler knows they are multiples of 8.
    num_rows, num_columns = row_eighths * 8, column_eighths * 8
    run = tl.program_id(1).to(tl.int64)
    num_across = tl.cdiv(num_columns, COLUMNS)
    row = tl.program_id(0) // num_across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % num_across * COLUMNS + tl.arange(0, COLUMNS)
    row_inside, column_inside = (row < num_rows)[:, None], (column < num_columns)[None, :]
    inside = row_inside & column_inside
    # Offsets within a run's matrix fit into 32 bits, which saves registers.
    first_of_run = run * num_rows * num_columns
    value_ptr += first_of_run
    velocity_ptr += first_of_run
    half_ptr += first_of_run
    left_ptr += run * (left_run_eighths * 8)
    right_ptr += run * (right_run_eighths * 8)
    at = row[:, None] * num_columns + column[None, :]
    value = tl.load(value_ptr + at, mask=inside, other=0.0, eviction_policy="evict_first")
    velocity = tl.load(velocity_ptr + at, mask=inside, other=0.0, eviction_policy="evict_first")
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, num_inner, INNER):
        inner = first + tl.arange(0, INNER)
        inner_inside = inner < num_inner
        if LEFT_TURNED:
            left_at = inner[None, :] * (left_eighths * 8) + row[:, None]
        else:
            left_at = row[:, None] * (left_eighths * 8) + inner[None, :]
        if RIGHT_TURNED:
            right_at = column[None, :] * (right_eighths * 8) + inner[:, None]
        else:
            right_at = inner[:, None] * (right_eighths * 8) + column[None, :]
        left = tl.load(left_ptr + left_at, mask=row_inside & inner_inside[None, :], other=0.0)
        right = tl.load(right_ptr + right_at, mask=inner_inside[:, None] & column_inside, other=0.0)
        total = tl.dot(left, right, total)
    gradient = total.to(left_ptr.dtype.element_ty).to(tl.float32)
    velocity = gradient + velocity * tl.load(momentum_ptr + run)
    if l2_ptr is not None:
        velocity += value * tl.load(l2_ptr + run)
    value -= velocity * tl.load(rate_ptr + run)
    tl.store(velocity_ptr + at, velocity, mask=inside, eviction_policy="evict_first")
    tl.store(value_ptr + at, value, mask=inside, eviction_policy="evict_first")
    tl.store(half_ptr + at, value.to(half_ptr.dtype.element_ty), mask=inside)
