"""Views become reshapes, unless something counts on the layout."""

import pytest
import torch
from torch import Tensor

from helpers_graph import check_equal, passed, rewritten, targets, whole
from isotherm.engine.graph.flexible_views import reshape_instead_of_view
from isotherm.engine.graph.trace import trace

_aten = torch.ops.aten
VIEWS = (_aten.view.default, _aten._unsafe_view.default)


def viewed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    made = torch.bmm(x, w)
    return made.view(-1), made.view(2, 21), _aten._unsafe_view.default(made, [6, 7])


def test_the_pass_alone():
    """It expects no `as_strided`, and leaves no views."""
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    program = check_equal(viewed, *arguments, passes=[reshape_instead_of_view])
    assert targets(program) == {_aten.bmm.default: 1, _aten.reshape.default: 3}


def test_a_step_that_counts_on_the_layout_is_refused():
    with pytest.raises(AssertionError, match=r"still calls aten.as_strided.default: it counts on a layout"):
        passed(lambda x: (x.as_strided((2,), (1,)) + 1,), (whole(2, 3),), reshape_instead_of_view)


def test_views_of_a_matmul_become_reshapes():
    arguments = whole(2, 3, 5), whole(2, 5, 7, seed=1)
    assert sum(targets(trace(viewed, *arguments))[view] for view in VIEWS) == 3
    found = targets(rewritten(viewed, *arguments))
    assert found[_aten.reshape.default] == 3
    assert not any(found[view] for view in VIEWS)


@pytest.mark.parametrize(
    "view",
    [
        lambda made: made.unsqueeze(0).view(-1),
        lambda made: made.detach().view(-1),
        lambda made: made[:, :2].view(2, -1),
        lambda made: made[0].view(-1),
    ],
    ids=["unsqueeze", "detach", "slice", "select"],
)
def test_a_view_of_a_view_of_a_matmul(view):
    check_equal(lambda x, w: (view(torch.bmm(x, w)),), whole(2, 3, 5), whole(2, 5, 7, seed=1))
