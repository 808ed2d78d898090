"""ReLUs become clamps at zero."""

import torch

from helpers_graph import check_equal, normal, passed, targets
from isotherm.engine.graph.clamped_relus import clamp_instead_of_relu

_aten = torch.ops.aten


def test_the_pass_alone():
    """It expects any step, and leaves no ReLU."""
    program = check_equal(lambda x: (torch.relu(x), torch.relu(x + 1)), normal(3, 4), passes=[clamp_instead_of_relu])
    assert targets(program) == {_aten.clamp_min.default: 2, _aten.add.Tensor: 1}


def test_what_is_not_a_number_stays_so():
    x = torch.tensor([float("nan"), -1.0, float("inf")])
    (found,) = passed(lambda x: (torch.relu(x),), [x], clamp_instead_of_relu)(x)
    torch.testing.assert_close(found, torch.relu(x), rtol=0, atol=0, equal_nan=True)
