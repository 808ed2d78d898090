"""Row sums of several matrices at once: the operation, and its kernel, interpreted or on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers_kernels import DEVICE, HALF, with_kernels
from isotherm.kernels.ops import row_sums as row_sums_ops

WIDTHS, SIZES = (1000, 504, 32, 8, 64, 72), (1000, 500, 30, 1, 64, 72)


def matrices(num_rows: int = 64, *, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, num_rows, width, generator=generator).to(dtype) for width in WIDTHS]


def exactly(given: list[Tensor]) -> Tensor:
    return torch.cat([m.double().sum(dim=1)[:, :size] for m, size in zip(given, SIZES, strict=True)], dim=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_sums_stand_one_after_another_and_are_not_rounded(dtype):
    given = matrices(dtype=dtype)
    found = row_sums_ops.ROW_SUMS(given, SIZES)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), exactly(given), rtol=1e-5, atol=1e-5)
    torch.library.opcheck(row_sums_ops.ROW_SUMS, (given, SIZES), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("given", "sizes", "message"),
    [
        ([], [], "0 matrices"),
        ([torch.zeros(2, 3, 4)], [4, 4], "1 matrices but 2 sizes"),
        ([torch.zeros(2, 3, 4), torch.zeros(2, 5, 4)], [4, 4], r"not \(2, 3, 4\), .* and \(2, 5, 4\)"),
        ([torch.zeros(2, 3, 4), torch.zeros(2, 3, 4).double()], [4, 4], "float64"),
        ([torch.zeros(2, 3)], [3], "matrices must agree in runs"),
        ([torch.zeros(2, 3, 4)], [5], "does not have 5 columns"),
        ([torch.zeros(2, 3, 4)], [0], "does not have 0 columns"),
    ],
)
def test_what_does_not_go_together_is_refused(given, sizes, message):
    with pytest.raises(ValueError, match=message):
        row_sums_ops.check(given, sizes)


@with_kernels
@pytest.mark.parametrize("num_rows", [64, 1, 24, 40])
def test_the_kernel_sums_as_pytorch_does(num_rows):
    from isotherm.kernels.triton.row_sums import sum_rows

    given = matrices(num_rows, dtype=HALF)
    found = sum_rows([m.to(DEVICE) for m in given], SIZES)
    torch.testing.assert_close(found.cpu().double(), exactly(given), rtol=1e-5, atol=1e-5)


@with_kernels
def test_one_matrix_and_a_run_that_overflows():
    from isotherm.kernels.triton.row_sums import sum_rows

    matrix = torch.ones(2, 8, 16, dtype=HALF, device=DEVICE)
    matrix[0, 3, 5] = torch.inf
    found = sum_rows([matrix], [16])
    assert found[1].tolist() == [8.0] * 16
    assert found[0].isinf().nonzero().tolist() == [[5]]
