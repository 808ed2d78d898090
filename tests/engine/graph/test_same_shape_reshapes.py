"""Views and expansions to the same shape are dropped; others stay."""

import torch

from helpers_graph import check_equal, normal, targets
from isotherm.engine.graph.same_shape_reshapes import drop_same_shape_reshapes

_aten = torch.ops.aten


def test_the_pass_alone():
    """It expects a traced step, and leaves what changes a shape."""

    def function(x):
        return x.view(x.shape).expand(x.shape).exp(), x.view(-1).exp(), x[:, :1].expand(3, 4).exp()

    program = check_equal(function, normal(3, 4), passes=[drop_same_shape_reshapes])
    found = targets(program)
    assert (found[_aten.view.default], found[_aten.expand.default]) == (1, 1)


def test_a_view_that_changes_strides_alone_stays():
    """One row may be seen with any stride; who counts on it finds it."""

    def function(x):
        row = x[:, :1].transpose(0, 1)  # (1, 3), strides (1, 4)
        return (row.reshape(-1).view(1, 3).exp(),)

    check_equal(function, normal(3, 4), passes=[drop_same_shape_reshapes])


def test_an_argument_may_be_returned_as_it_is():
    program = check_equal(lambda x: (x.view(x.shape), x + 1), normal(3, 4), passes=[drop_same_shape_reshapes])
    assert targets(program) == {_aten.add.Tensor: 1}
