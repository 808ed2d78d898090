"""Sums of rows that are put together: made at once where they are the gradients of biases, else left as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from helpers_graph import calls, passed, rewritten, targets
from isotherm.engine.graph.bias_gradients import join_bias_gradients
from isotherm.kernels.ops import row_sums as row_sums_ops

Function = Callable[..., tuple[Tensor, ...]]
NUM_ROWS = 16


def inputs(*widths: int, num_rows: int = NUM_ROWS) -> list[Tensor]:
    """Return whole numbers, whose sums and matmuls are not rounded."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(-2, 3, (3, num_rows, width), generator=generator).bfloat16() for width in widths]


def summed(gradient: Tensor) -> Tensor:
    return gradient.sum(dim=1, keepdim=True).view(len(gradient), -1).float()


def matmuls(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return what multiplies both: only of matrices that are multiplied, sums are matmuls with ones."""
    return torch.bmm(a.transpose(1, 2), a), torch.bmm(b.transpose(1, 2), b)


def of_biases(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return *matmuls(a, b), torch.cat([summed(a), summed(b)], dim=1)


def of_biases_and_more(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return *matmuls(a, b), torch.cat([summed(a), b[:, 0].float()], dim=1)


def used_elsewhere(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    first = summed(a)
    return *matmuls(a, b), torch.cat([first, summed(b)], dim=1), first


def rounded(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return *matmuls(a, b), torch.cat([summed(a).bfloat16(), summed(b).bfloat16()], dim=1)


def along_runs(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return *matmuls(a, b), torch.cat([summed(a), summed(b)], dim=0)


def joined(function: Function, *given: Tensor) -> tuple[fx.GraphModule, int]:
    program = rewritten(function, *given, has_kernels=True)
    return program, targets(program)[row_sums_ops.ROW_SUMS]


def test_the_pass_alone():
    """It expects sums as the trace has them, and leaves one call that reads the matrices as they are."""
    program = passed(of_biases, inputs(30, 7), join_bias_gradients)
    (joined_sums,) = calls(program, row_sums_ops.ROW_SUMS)
    matrices, widths = joined_sums.args
    assert list(matrices) == program.graph.find_nodes(op="placeholder")
    assert list(widths) == [30, 7]
    assert not targets(program).keys() & {torch.ops.aten.cat.default, torch.ops.aten.sum.dim_IntList}


def test_a_batch_that_is_no_multiple_of_eight_is_left_alone():
    given = inputs(8, 16, num_rows=12)
    program, number = joined(of_biases, *given)
    assert number == 0
    assert torch.equal(program(*given)[2], of_biases(*given)[2])


@pytest.mark.parametrize("widths", [(8, 16), (30, 8), (12, 7)], ids=str)
def test_sums_that_are_put_together_are_made_at_once(widths):
    given = inputs(*widths)
    program, number = joined(of_biases, *given)
    assert number == 1
    assert not [n for n in program.graph.nodes if n.target in (torch.ops.aten.cat.default, torch.ops.aten.full.default)]
    for ours, theirs in zip(program(*given), of_biases(*given), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("function", "widths"),
    [
        (of_biases_and_more, (8, 16)),
        (used_elsewhere, (8, 16)),
        (rounded, (8, 16)),
        (along_runs, (8, 8)),
    ],
)
def test_other_sums_stay(function, widths):
    given = inputs(*widths)
    program, number = joined(function, *given)
    assert number == 0
    for ours, theirs in zip(program(*given), function(*given), strict=True):
        assert torch.equal(ours, theirs)


def test_sums_of_many_rows_stay_matmuls():
    given = inputs(8, 16, num_rows=2 * row_sums_ops.MOST_ROWS)
    program, number = joined(of_biases, *given)
    assert number == 0
    assert torch.equal(program(*given)[2], of_biases(*given)[2])


def test_matrices_of_different_numbers_of_rows_are_not_summed_together():
    given = [*inputs(8), *inputs(16, num_rows=8)]
    program, number = joined(of_biases, *given)
    assert number == 0
    assert torch.equal(program(*given)[2], of_biases(*given)[2])
