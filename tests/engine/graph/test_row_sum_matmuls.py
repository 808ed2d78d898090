"""Sums over rows that a matmul reads anyway become matmuls with ones."""

import pytest
import torch
from torch import Tensor

from helpers_graph import HALF, calls, check_equal, operand_sizes, targets, whole
from isotherm.engine.graph.row_sum_matmuls import sum_rows_by_matmul

_aten = torch.ops.aten


def test_the_pass_alone():
    """It expects sums as the trace has them, and leaves a matmul with ones, of which one row is taken."""
    program = check_equal(summed(keepdim=False), whole(2, 3, 5), whole(2, 5, 7, seed=1), passes=[sum_rows_by_matmul])
    _, by_ones = calls(program, _aten.bmm.default)
    ones, rows = by_ones.args
    assert (ones.target, ones.args) == (_aten.full.default, ([2, 8, 3], 1.0))
    assert rows.op == "placeholder"
    assert _aten.sum.dim_IntList not in targets(program)


def summed(keepdim: bool, dim: int = 1):
    def function(g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(g, w), g.sum(dim=dim, keepdim=keepdim)

    return function


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("dim", [1, -2])
def test_rows_that_a_matmul_reads_are_summed_by_a_matmul(dim, keepdim):
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    program = check_equal(summed(keepdim, dim), *arguments)
    assert _aten.sum.dim_IntList not in targets(program)
    assert operand_sizes(program, *arguments) == [[(2, 8, 8), (2, 8, 8)], [(2, 8, 8), (2, 8, 8)]]


def test_rows_that_a_matmul_reads_transposed_are_summed_by_it():
    def function(g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(g.transpose(1, 2), w), g.sum(1)

    assert _aten.sum.dim_IntList not in targets(check_equal(function, whole(2, 8, 5), whole(2, 8, 7, seed=1)))


def test_one_row_of_ones_serves_all_sums():
    def function(g: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.bmm(g, w), torch.bmm(h, w), g.sum(1), h.sum(1)

    found = targets(check_equal(function, whole(2, 8, 8), whole(2, 8, 8, seed=1), whole(2, 8, 8, seed=2)))
    assert (found[_aten.full.default], found[_aten.bmm.default]) == (1, 4)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (summed(True), torch.float32),
        (summed(False, 2), HALF),
        (lambda g, w: (torch.bmm(g, w), g.sum(dim=(1, 2))), HALF),
        (lambda g, w: (torch.bmm(g, w), g.sum(dim=1, dtype=torch.float32)), HALF),
        (lambda g, w: (w.relu(), g.sum(dim=1)), HALF),
    ],
    ids=["single", "columns", "all", "wider", "alone"],
)
def test_other_sums_stay(function, dtype):
    program = check_equal(function, whole(2, 8, 8, dtype=dtype), whole(2, 8, 8, seed=1, dtype=dtype))
    assert targets(program)[_aten.sum.dim_IntList] == 1
