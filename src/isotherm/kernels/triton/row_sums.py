"""Row sums of several matrices per run as one Triton kernel: all bias gradients at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotherm.kernels.availability import device_of

# Columns per program: rows of 128 bytes, one cache line.
_COLUMNS = 64


def sum_rows(matrices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return the sums (M, N) of matrices (M, R, C) over their rows, concatenated, in float32.

    Args:
        matrices: contiguous, all with the same number of rows.
        sizes: the number of columns to sum of each matrix.
    """
    num_runs, num_rows = matrices[0].shape[:2]
    target = torch.empty(num_runs, sum(sizes), dtype=torch.float32, device=matrices[0].device)
    # Numbers of programs and of target columns before each matrix.
    programs = tuple(accumulate((triton.cdiv(size, _COLUMNS) for size in sizes), initial=0))
    columns = tuple(accumulate(sizes, initial=0))
    with device_of(target):
        _sum_rows[(programs[-1], num_runs)](
            tuple(matrices),
            tuple(matrix.shape[2] for matrix in matrices),
            programs,
            columns,
            target,
            num_rows,
            NUM=len(matrices),
            ROWS=triton.next_power_of_2(num_rows),
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
    return target


@triton.jit
def _sum_rows(
    matrices,
    widths,
    programs,
    columns,
    target_ptr,
    num_rows,
    NUM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    program = tl.program_id(0)
    run = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, ROWS)
    for number in tl.static_range(NUM):
        if (program >= programs[number]) & (program < programs[number + 1]):
            column = (program - programs[number]) * COLUMNS + tl.arange(0, COLUMNS)
            inside = column < columns[number + 1] - columns[number]
            at = run * num_rows * widths[number] + row[:, None] * widths[number] + column[None, :]
            values = tl.load(matrices[number] + at, mask=(row < num_rows)[:, None] & inside[None, :], other=0.0)
            to = run * columns[NUM] + columns[number] + column
            tl.store(target_ptr + to, tl.sum(values.to(tl.float32), axis=0), mask=inside)
