"""Helpers for reading and editing graphs."""

import operator

import pytest
import torch

from helpers_graph import calls, targets, whole
from isotherm.engine.graph.step_graph import (
    call,
    call_with_results,
    expect_no,
    has_one_user,
    replace,
    replace_results,
    result_index,
    results_with_index,
    value_of,
)
from isotherm.engine.graph.trace import trace

_aten = torch.ops.aten


@pytest.fixture
def program():
    return trace(lambda x: (x.exp() + 1, *torch.max(x, dim=1)), whole(2, 3, dtype=torch.float32))


def test_a_call_records_its_value(program):
    (x,), (output,) = (program.graph.find_nodes(op=op) for op in ("placeholder", "output"))
    with program.graph.inserting_before(output):
        node = call(program.graph, _aten.transpose.int, x, 0, 1)
    assert (value_of(node).shape, value_of(node).stride()) == ((3, 2), (1, 3))


def test_a_node_without_a_value_is_refused(program):
    (output,) = program.graph.find_nodes(op="output")
    with program.graph.inserting_before(output):
        node = program.graph.call_function(_aten.exp.default, tuple(program.graph.find_nodes(op="placeholder")))
    node.meta["val"] = None
    with pytest.raises(AssertionError, match="carries no value"):
        value_of(node)


def test_results_of_a_call(program):
    (found,) = calls(program, _aten.max.dim)
    (values,) = results_with_index(found, 0)
    assert result_index(values) == 0
    with pytest.raises(AssertionError, match="reads a tuple as a whole"):
        result_index(calls(program, _aten.add.Tensor)[0])


def test_results_are_replaced(program):
    (x,), (old,) = program.graph.find_nodes(op="placeholder"), calls(program, _aten.max.dim)
    with program.graph.inserting_before(old):
        results = call_with_results(program.graph, _aten.min.dim, x, 1)
    replace_results(program.graph, old, results)
    program.recompile()
    assert targets(program)[operator.getitem] == 2
    given = whole(2, 3, dtype=torch.float32)
    assert torch.equal(program(given)[1], given.min(dim=1).values)


def test_a_node_is_replaced(program):
    (x,), (exponential,) = program.graph.find_nodes(op="placeholder"), calls(program, _aten.exp.default)
    assert has_one_user(exponential, _aten.exp.default)
    assert not has_one_user(x, _aten.exp.default)
    replace(program.graph, exponential, x)
    assert _aten.exp.default not in targets(program)


def test_expectations(program):
    expect_no(program.graph, _aten.relu.default, reason="")
    with pytest.raises(AssertionError, match=r"still calls aten.add.Tensor, aten.exp.default: this is a test"):
        expect_no(program.graph, _aten.exp.default, _aten.add.Tensor, reason="this is a test")
