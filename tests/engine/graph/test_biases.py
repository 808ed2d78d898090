"""Which sums are a matmul and its bias."""

import pytest
import torch
from torch import Tensor

from helpers_graph import calls, whole
from isotherm.engine.graph.biases import biased_sum, expect_no_biased_matmuls
from isotherm.engine.graph.trace import trace

_aten = torch.ops.aten
ARGUMENTS = whole(2, 3, 5), whole(2, 5, 7, seed=1), whole(2, 1, 7, seed=2)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_matmul_and_its_bias(is_first):
    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor]:
        made = torch.bmm(x, w)
        return (made + b if is_first else b + made,)

    program = trace(function, *ARGUMENTS)
    (total,), (matmul,) = (calls(program, target) for target in (_aten.add.Tensor, _aten.bmm.default))
    found = biased_sum(total)
    assert (found.matmul, found.bias) == (matmul, program.graph.find_nodes(op="placeholder")[2])
    assert biased_sum(matmul) is None


def test_of_two_matmuls_the_first_is_the_bias():
    program = trace(lambda x, w, _: (torch.bmm(x, w) + torch.bmm(x, w + 1),), *ARGUMENTS)
    found = biased_sum(calls(program, _aten.add.Tensor)[-1])
    assert [found.bias, found.matmul] == calls(program, _aten.bmm.default)


def test_matmuls_that_add_their_biases_are_found():
    expect_no_biased_matmuls(trace(lambda x, w, b: (torch.baddbmm(b, x, w, alpha=2),), *ARGUMENTS).graph)
    with pytest.raises(AssertionError, match="separate_biases comes first"):
        expect_no_biased_matmuls(trace(lambda x, w, b: (torch.baddbmm(b, x, w),), *ARGUMENTS).graph)
