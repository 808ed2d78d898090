"""A bias and a matmul become one call; other sums stay."""

import pytest
import torch
from torch import Tensor

from helpers_graph import calls, check_equal, targets, whole
from isotherm.engine.graph.fused_biases import fuse_biases

_aten = torch.ops.aten
ARGUMENTS = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(2, 1, 7, seed=2)


@pytest.mark.parametrize("function", [lambda x, w, b: (torch.bmm(x, w) + b,), lambda x, w, b: (b + torch.bmm(x, w),)])
def test_the_pass_alone(function):
    """It expects a step that writes into no tensor, and leaves one call."""
    program = check_equal(function, *ARGUMENTS, passes=[fuse_biases])
    (fused,) = calls(program, _aten.baddbmm.default)
    x, w, b = program.graph.find_nodes(op="placeholder")
    assert fused.args == (b, x, w)
    assert targets(program) == {_aten.baddbmm.default: 1}


def test_of_two_matmuls_the_second_adds_the_first():
    program = check_equal(lambda x, w, b: (torch.bmm(x, w) + torch.bmm(x, w + 1),), *ARGUMENTS, passes=[fuse_biases])
    assert (targets(program)[_aten.bmm.default], targets(program)[_aten.baddbmm.default]) == (1, 1)


def read_twice(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    made = torch.bmm(x, w)
    return made + b, made.exp()


OTHERS = {
    "matmul read twice": read_twice,
    "matmul twice": lambda x, w, b: ((made := torch.bmm(x, w)) + made,),
    "scaled": lambda x, w, b: (torch.add(torch.bmm(x, w), b, alpha=2),),
    "larger bias": lambda x, w, b: (torch.bmm(x[:, :1], w) + torch.ones(2, 3, 7, dtype=x.dtype),),
    "other type": lambda x, w, b: (torch.bmm(x, w) + b.float(),),
    "vector": lambda x, w, b: (torch.bmm(x, w) + b[0, 0],),
}


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_other_sums_stay(function):
    program = check_equal(function, *ARGUMENTS, passes=[fuse_biases])
    assert _aten.baddbmm.default not in targets(program)
