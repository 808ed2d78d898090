"""Bias and activation of a layer, and their gradients, as Triton kernels: one pass over memory between two matmuls.

Shape suffixes: M runs, B examples, W columns, N features, P parts of the batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotherm.kernels.availability import device_of

_ROWS, _COLUMNS = 16, 256
# Rows summed by one program.
_ROWS_OF_PART = 128


def forward(products_MBW: Tensor, biases_MN: Tensor, *, kind: str) -> Tensor:
    """Return the activations, with biases rounded to the dtype of the matmul; padding columns are zero."""
    num_runs, num_rows, width = products_MBW.shape
    assert biases_MN.stride(1) == 1
    y_MBW = torch.empty_like(products_MBW)
    with device_of(y_MBW):
        _forward[(triton.cdiv(num_rows, _ROWS), triton.cdiv(width, _COLUMNS), num_runs)](
            products_MBW,
            biases_MN,
            y_MBW,
            num_rows,
            biases_MN.stride(0),
            NUM=biases_MN.shape[1],
            WIDTH=width,
            KIND=kind,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
    return y_MBW


def backward(dy_MBW: Tensor, y_MBW: Tensor, num: int, *, kind: str) -> tuple[Tensor, Tensor]:
    """Return the gradient of the matmul, zero beyond `num` columns, and its row sums in float32."""
    num_runs, num_rows, width = y_MBW.shape
    dz_MBW = torch.empty_like(y_MBW)
    num_parts = triton.cdiv(num_rows, _ROWS_OF_PART)
    parts_MPN = y_MBW.new_empty(num_runs, num_parts, num, dtype=torch.float32)
    with device_of(y_MBW):
        _backward[(num_parts, triton.cdiv(width, _COLUMNS), num_runs)](
            dy_MBW,
            y_MBW,
            dz_MBW,
            parts_MPN,
            num_rows,
            NUM=num,
            WIDTH=width,
            KIND=kind,
            ROWS_OF_PART=_ROWS_OF_PART,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
    return dz_MBW, parts_MPN.sum(dim=1)


@triton.jit
def _forward(
    products_ptr,
    biases_ptr,
    y_ptr,
    num_rows,
    stride,
    NUM: tl.constexpr,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    run = tl.program_id(2).to(tl.int64)
    at = (run * num_rows + row[:, None]) * WIDTH + column[None, :]
    inside = (row < num_rows)[:, None] & (column < WIDTH)[None, :]
    products = tl.load(products_ptr + at, mask=inside, other=0.0)
    biases = tl.load(biases_ptr + run * stride + column, mask=column < NUM, other=0.0)
    z = products.to(tl.float32) + biases.to(products.dtype).to(tl.float32)[None, :]
    if KIND == "tanh":
        # From the fast sigmoid; near zero, where the difference cancels, from the first terms of the series.
        y = tl.where(tl.abs(z) < 0.03, z - z * z * z * (1 / 3), 2.0 * tl.sigmoid(2.0 * z) - 1.0)
    elif KIND == "sigmoid":
        y = tl.sigmoid(z)
    else:
        y = tl.where(z <= 0.0, 0.0, z)
    tl.store(y_ptr + at, tl.where((column < NUM)[None, :], y, 0.0).to(products.dtype), mask=inside)


@triton.jit
def _backward(
    dy_ptr,
    y_ptr,
    dz_ptr,
    parts_ptr,
    num_rows,
    NUM: tl.constexpr,
    WIDTH: tl.constexpr,
    KIND: tl.constexpr,
    ROWS_OF_PART: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Store the gradient of the matmul for one part of the batch, and its row sums."""
    part = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    run = tl.program_id(2).to(tl.int64)
    is_unit = column < NUM
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(part * ROWS_OF_PART, (part + 1) * ROWS_OF_PART, ROWS):
        row = begin + tl.arange(0, ROWS)
        at = (run * num_rows + row[:, None]) * WIDTH + column[None, :]
        inside = (row < num_rows)[:, None] & (column < WIDTH)[None, :]
        rounded = tl.load(dy_ptr + at, mask=inside, other=0.0)
        dy = rounded.to(tl.float32)
        y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if KIND == "tanh":
            dz = dy * (1.0 - y * y)
        elif KIND == "sigmoid":
            dz = dy * (y * (1.0 - y))
        else:
            dz = tl.where(y <= 0.0, 0.0, dy)
        dz = tl.where(is_unit[None, :], dz, 0.0).to(rounded.dtype)
        tl.store(dz_ptr + at, dz, mask=inside)
        total += dz.to(tl.float32)
    to = (run * tl.num_programs(0) + part) * NUM + column
    tl.store(parts_ptr + to, tl.sum(total, axis=0), mask=is_unit)
