"""Which operations get memory, and when it is used again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from helpers_graph import calls
from isotherm.engine.graph.trace import trace
from isotherm.engine.programs.buffers import Buffer, plan_buffers

_aten = torch.ops.aten
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def planned(function, *arguments: Tensor) -> tuple[fx.GraphModule, dict[fx.Node, Buffer]]:
    program = trace(function, *arguments)
    return program, plan_buffers(program.graph, known=())


def test_a_buffer_is_what_the_overload_writes_into() -> None:
    program, buffers = planned(lambda x: (torch.exp(x),), X)
    (node,) = calls(program, _aten.exp.default)
    assert (buffers[node].overload, buffers[node].argument) == (_aten.exp.out, "out")
    buffers[node].overload(X, **{buffers[node].argument: buffers[node].tensor})
    assert torch.equal(buffers[node].tensor, torch.exp(X))


def test_a_chain_needs_two_buffers() -> None:
    """One is read while the other is written."""
    _, buffers = planned(lambda x: (x.exp().sin().cos().tanh().sum(),), X)
    tensors = {buffer.tensor.data_ptr() for buffer in buffers.values() if buffer.tensor.shape == X.shape}
    assert len(tensors) == 2


def test_what_a_view_shows_is_kept() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        turned = x.exp().t()
        return (x.sin().cos(), turned + 1)

    program, buffers = planned(function, X)
    (exponential,), others = (calls(program, t) for t in (_aten.exp.default, _aten.sin.default))
    assert all(buffers[exponential].tensor.data_ptr() != buffers[other].tensor.data_ptr() for other in others)


def test_results_are_kept_to_the_end() -> None:
    _, buffers = planned(lambda x: (x.exp(), x.sin(), x.cos()), X)
    assert len({buffer.tensor.data_ptr() for buffer in buffers.values()}) == 3


@pytest.mark.parametrize("function", [lambda x: (x.t(),), lambda x: (x[:0].exp(),)], ids=["view", "empty"])
def test_what_makes_nothing_gets_none(function) -> None:
    assert not planned(function, X)[1]


def test_what_is_known_gets_none() -> None:
    program = trace(lambda x: (x.exp(),), X)
    assert not plan_buffers(program.graph, known=calls(program, _aten.exp.default))
