"""x * 1 is dropped where it is only a copy."""

import pytest
import torch

from helpers_graph import check_equal, normal, targets
from isotherm.engine.graph.multiplications_by_one import drop_multiplications_by_one

_aten = torch.ops.aten


def test_the_pass_alone():
    """It expects a step that writes into no tensor, and leaves no multiplication by one."""
    program = check_equal(lambda x: (torch.exp(x * 1 * 1.0),), normal(3, 4), passes=[drop_multiplications_by_one])
    assert targets(program) == {_aten.exp.default: 1}


def test_a_view_of_the_copy_may_become_a_copy():
    """The copy was contiguous, the original is not."""
    program = check_equal(
        lambda x: ((x[:, :1].expand(3, 5) * 1.0).view(-1),), normal(3, 4), passes=[drop_multiplications_by_one]
    )
    assert targets(program)[_aten.reshape.default] == 1


@pytest.mark.parametrize(
    "function", [lambda x: (x * 2,), lambda x: ((x > 0).long() * 1.0,), lambda x: (x * torch.ones(()),)]
)
def test_others_stay(function):
    program = check_equal(function, normal(3, 4), passes=[drop_multiplications_by_one])
    assert targets(program)[_aten.mul.Tensor] == 1
