"""Two transposes of the same dimensions cancel; others stay."""

import pytest
import torch

from helpers_graph import check_equal, normal, targets
from isotherm.engine.graph.double_transposes import drop_double_transposes

_aten = torch.ops.aten


@pytest.mark.parametrize("dims", [(1, 2), (2, 1)])
def test_the_pass_alone(dims):
    """It expects a traced step, and leaves no transpose of a transpose of the same dimensions."""
    function = lambda x: (x.transpose(1, 2).transpose(*dims) + 1,)  # noqa: E731
    program = check_equal(function, normal(2, 3, 4), passes=[drop_double_transposes])
    assert targets(program) == {_aten.add.Tensor: 1}


def test_the_first_transpose_stays_if_it_is_read():
    def function(x):
        turned = x.transpose(1, 2)
        return turned.exp(), turned.transpose(1, 2) + 1

    program = check_equal(function, normal(2, 3, 4), passes=[drop_double_transposes])
    assert targets(program)[_aten.transpose.int] == 1


def test_other_transposes_stay():
    program = check_equal(
        lambda x: (x.transpose(0, 1).transpose(1, 2) + 1,), normal(2, 3, 4), passes=[drop_double_transposes]
    )
    assert targets(program)[_aten.transpose.int] == 2
