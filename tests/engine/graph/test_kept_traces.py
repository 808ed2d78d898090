"""Traces that are kept: copies, the least used goes first, and none with tensors of its own."""

import torch

from isotherm.engine.graph import kept_traces
from isotherm.engine.graph.kept_traces import KeptTraces, copy_without_tensors
from isotherm.engine.graph.trace import trace

X = torch.tensor([1.0, 2.0])


def graph_of(function):
    graph = copy_without_tensors(trace(function, X))
    assert graph is not None
    return graph


def test_what_is_taken_is_a_copy_with_what_tracing_recorded():
    kept = KeptTraces()
    assert kept.take("twice") is None
    kept.keep("twice", graph_of(lambda x: (2 * x,)))
    first = kept.take("twice")
    (call,) = first.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    assert call.meta["val"].shape == (2,)
    call.args = (call.args[0], 5)  # as a pass changes a graph in place
    first.recompile()
    assert torch.equal(first(X)[0], 5 * X)
    assert torch.equal(kept.take("twice")(X)[0], 2 * X)


def test_the_trace_that_was_not_taken_for_the_longest_time_goes_first(monkeypatch):
    monkeypatch.setattr(kept_traces, "MOST_KEPT", 2)
    kept = KeptTraces()
    for key in ("a", "b"):
        kept.keep(key, graph_of(lambda x: (x + 1,)))
    assert kept.take("a") is not None
    kept.keep("c", graph_of(lambda x: (x + 1,)))
    assert kept.take("b") is None
    assert kept.take("a") is not None
    assert len(kept) == 2


def test_a_trace_that_holds_a_tensor_is_not_kept():
    own = torch.tensor([3.0, 4.0])
    assert copy_without_tensors(trace(lambda x: (x + own,), X)) is None
