"""Calls that nothing reads are dropped."""

import torch

from helpers_graph import targets
from isotherm.engine.graph.dead_code import drop_dead_code
from isotherm.engine.graph.step_graph import StepGraph
from isotherm.engine.graph.trace import trace


def test_the_pass_alone():
    """It expects nothing, and leaves calls that have readers."""
    program = trace(lambda x: (x + 1,), torch.ones(2))
    (x,), (output,) = (program.graph.find_nodes(op=op) for op in ("placeholder", "output"))
    with program.graph.inserting_before(output):
        unread = program.graph.call_function(torch.ops.aten.exp.default, (x,))
        program.graph.call_function(torch.ops.aten.sin.default, (unread,))
    drop_dead_code(StepGraph(graph=program.graph))
    assert targets(program) == {torch.ops.aten.add.Tensor: 1}
