"""Sums over the rows of several matrices of each run as one operation: a kernel on a GPU, PyTorch on a CPU.

    isotherm::sums_of_rows    matrices (M, R, C), how many columns of each count -> their sums one after another (M, N)

The gradients of all biases are such sums, over the batch. Each alone is too little for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isotherm.kernels.ops.registry import operation, unrounded

# More rows were not tried; a product with ones is quick for many.
MOST_ROWS = 64


@operation("sums_of_rows", "(Tensor[] matrices, int[] sizes) -> Tensor")
def _sums_of_rows(matrices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    check(matrices, sizes)
    wide = unrounded(matrices[0].dtype)
    return torch.cat([m[..., :size].sum(dim=1, dtype=wide) for m, size in zip(matrices, sizes, strict=True)], dim=1)


@_sums_of_rows.register_kernel("cuda")
def _(matrices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    from isotherm.kernels.triton import row_sums

    check(matrices, sizes)
    return row_sums.sum_rows([matrix.contiguous() for matrix in matrices], sizes)


@_sums_of_rows.register_fake
def _(matrices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    return matrices[0].new_empty(len(matrices[0]), sum(sizes), dtype=unrounded(matrices[0].dtype))


def check(matrices: Sequence[Tensor], sizes: Sequence[int]) -> None:
    """Refuse what the kernel would read wrongly."""
    if not matrices or len(matrices) != len(sizes):
        raise ValueError(f"{len(matrices)} matrices do not go with {len(sizes)} sizes")
    first = matrices[0]
    for matrix, size in zip(matrices, sizes, strict=True):
        if matrix.ndim != 3 or matrix.shape[:2] != first.shape[:2] or matrix.dtype != first.dtype:
            raise ValueError(
                f"matrices of as many runs and rows are summed together, not {tuple(first.shape)}, {first.dtype} and "
                f"{tuple(matrix.shape)}, {matrix.dtype}"
            )
        if not 0 < size <= matrix.shape[2]:
            raise ValueError(f"a matrix of shape {tuple(matrix.shape)} has no {size} columns")


# As a traced program names it.
SUMS = torch.ops.isotherm.sums_of_rows.default
