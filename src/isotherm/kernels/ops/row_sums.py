"""Row sums of several matrices per run as one operation: a kernel on a GPU, PyTorch on a CPU.

    isotherm::row_sums    matrices (M, R, C), columns used of each -> their sums over R, concatenated (M, N)

Bias gradients are such sums, over the batch. One alone is too little work for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isotherm.kernels.ops.registry import operation, unrounded

# Larger batches were not tried; there a matmul with a vector of ones is fast.
MOST_ROWS = 64


@operation("row_sums", "(Tensor[] matrices, int[] sizes) -> Tensor")
def _row_sums(matrices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    check(matrices, sizes)
    wide = unrounded(matrices[0].dtype)
    return torch.cat([m[..., :size].sum(dim=1, dtype=wide) for m, size in zip(matrices, sizes, strict=True)], dim=1)


@_row_sums.register_kernel("cuda")
def _(matrices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    from isotherm.kernels.triton import row_sums

    check(matrices, sizes)
    return row_sums.sum_rows([matrix.contiguous() for matrix in matrices], sizes)


@_row_sums.register_fake
def _(matrices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    return matrices[0].new_empty(len(matrices[0]), sum(sizes), dtype=unrounded(matrices[0].dtype))


def check(matrices: Sequence[Tensor], sizes: Sequence[int]) -> None:
    """Raise a ValueError for matrices that the kernel would misread."""
    if not matrices or len(matrices) != len(sizes):
        raise ValueError(f"{len(matrices)} matrices but {len(sizes)} sizes; need one size per matrix")
    first = matrices[0]
    for matrix, size in zip(matrices, sizes, strict=True):
        if matrix.ndim != 3 or matrix.shape[:2] != first.shape[:2] or matrix.dtype != first.dtype:
            raise ValueError(
                f"matrices must agree in runs, rows and dtype, not {tuple(first.shape)}, {first.dtype} and "
                f"{tuple(matrix.shape)}, {matrix.dtype}"
            )
        if not 0 < size <= matrix.shape[2]:
            raise ValueError(f"a matrix of shape {tuple(matrix.shape)} does not have {size} columns")


# The operation as it appears in a trace.
ROW_SUMS = torch.ops.isotherm.row_sums.default
