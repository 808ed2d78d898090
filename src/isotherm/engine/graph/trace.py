"""Turn a vmapped function into the list of tensor operations it performs, without the layers that produced it.

`torch.func` pays for every call again what it needs to know only once. Traced, a fleet's step is a plain sequence of
batched operations, which the passes of `pipeline` then improve. Shapes are fixed: another shape, another trace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from isotherm.engine.graph.step_graph import results_of_step, source_of


def trace(
    function: Callable[..., tuple[Tensor, ...]], *arguments: Tensor, scratch: Collection[int] = ()
) -> fx.GraphModule:
    """Return a function of tensors, giving a tuple of tensors, as a flat program for arguments of these shapes.

    Args:
        function: what to trace.
        arguments: it is called with them, and may write into them.
        scratch: indices of arguments that nobody reads after a call: the program leaves them as they are.
    """
    with tracing(TracingContext(FakeTensorMode())):  # one for the shapes of all values, not one for each
        module = make_fx(lambda *values: function(*values))(*arguments)
        if writes(module):  # the buffers' copies; the passes need values that stay
            module = make_fx(functionalize(module, remove="mutations"))(*arguments)
            _drop_writes(module.graph, scratch)
    module.graph.eliminate_dead_code()
    module.graph.set_codegen(fx.graph.CodeGen())  # plain positional arguments, no trees
    output, results = results_of_step(module.graph)
    output.args = (tuple(results),)
    module.recompile()
    return module


def writes(module: fx.GraphModule) -> bool:
    """Tell whether any operation of the program writes into a tensor that exists before it."""
    return any(
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable for node in module.graph.nodes
    )


def _drop_writes(graph: fx.Graph, scratch: Collection[int]) -> None:
    """Remove the copies at the end of a functional program that bring some arguments to their new values."""
    written = {node for index, node in enumerate(graph.find_nodes(op="placeholder")) if index in scratch}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if source_of(node) in written and not node.users:
            graph.erase_node(node)


def has_plain_convolutions(graph: fx.Graph) -> bool:
    """Tell whether PyTorch is left to compute a convolution, which it does for many runs as groups of one."""
    return any(node.target is torch.ops.aten.convolution.default for node in graph.nodes)
