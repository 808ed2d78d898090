"""Biases are added right after their matmul, which comes first in the sum."""

import pytest
import torch
from torch import Tensor

from helpers_graph import calls, check_equal, is_aligned, operand_sizes, targets, whole
from isotherm.engine.graph.separate_biases import separate_biases
from isotherm.engine.graph.trace import trace

_aten = torch.ops.aten


def biased(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
    return (torch.baddbmm(b, x, w),)


def bias_first(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    made = torch.bmm(x, w)
    other = b.exp()
    return b + made, other


@pytest.mark.parametrize("function", [biased, bias_first, lambda x, w, b: (torch.bmm(x, w) + b,)])
def test_the_pass_alone(function):
    """It expects a traced step, and leaves a matmul, right before the sum in which it comes first."""
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(2, 1, 7, seed=2)
    program = check_equal(function, *arguments, passes=[separate_biases])
    (total,) = calls(program, _aten.add.Tensor)
    matmul, bias = total.args
    assert matmul.target is _aten.bmm.default
    assert matmul.next is total
    assert bias.op == "placeholder"


def read_twice(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    made = torch.bmm(x, w)
    return b + made, made.exp()


def scaled(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (torch.add(b, torch.bmm(x, w), alpha=2),)


@pytest.mark.parametrize("function", [read_twice, scaled])
def test_other_sums_stay(function):
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(2, 3, 7, seed=2)
    program = check_equal(function, *arguments, passes=[separate_biases])
    assert [str(node) for node in program.graph.nodes] == [str(n) for n in trace(function, *arguments).graph.nodes]


@pytest.mark.parametrize("bias", [(2, 1, 7), (2, 3, 7), (1, 1, 7), (1, 3, 7)], ids=str)
@pytest.mark.parametrize("function", [biased, lambda x, w, b: (torch.bmm(x, w) + b,)], ids=["baddbmm", "add"])
def test_a_bias_is_added_after_the_matmul(function, bias):
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(*bias, seed=2)
    program = check_equal(function, *arguments)
    assert operand_sizes(program, *arguments) == [[(2, 8, 8), (2, 8, 8)]]
    assert _aten.baddbmm.default not in targets(program)


@pytest.mark.parametrize(("rows", "height"), [(1, 1), (8, 8), (8, 1), (9, 9), (9, 1)])
def test_biases_of_any_height(rows, height):
    arguments = whole(2, rows, 5), whole(2, 5, 9, seed=1), whole(2, height, 9, seed=2)
    program = check_equal(biased, *arguments)
    assert all(is_aligned(sizes) for sizes in operand_sizes(program, *arguments)[0])


def test_a_bias_of_one_column_of_sizes_that_fit():
    check_equal(biased, whole(2, 8, 8), whole(2, 8, 16, seed=1), whole(2, 8, 1, seed=2))


@pytest.mark.parametrize("options", [{"alpha": 2}, {"beta": 2}, {"alpha": 2, "beta": 0}], ids=str)
def test_scaled_matmuls_are_left_alone(options):
    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
        return (torch.baddbmm(b, x, w, **options),)

    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(2, 1, 7, seed=2)
    program = check_equal(function, *arguments)
    assert operand_sizes(program, *arguments) == [[(2, 1, 7), (2, 3, 5), (2, 5, 7)]]
    assert set(targets(program)) == {_aten.baddbmm.default}


@pytest.mark.parametrize("bias", [(2, 1, 1), (2, 3, 1), (1, 1, 1)], ids=str)
def test_a_bias_of_one_column(bias):
    check_equal(lambda x, w, b: (torch.bmm(x, w) + b,), whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(*bias, seed=2))
