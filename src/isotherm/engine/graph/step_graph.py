"""A traced training step on its way through the passes, and small helpers for reading and editing its graph."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
# Operations that show the same values in another shape or order, or some of them.
VIEWS = (
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.reshape.default,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.slice.Tensor,
)
# Tensor cores read rows in pieces of 16 bytes: 8 values of 2 bytes.
ALIGNED = 8

# Rows and columns of a matrix before padding.
MatrixShape = tuple[int, int]


@dataclass(kw_only=True, slots=True)
class StepGraph:
    """What a pass reads and changes.

    Args:
        graph: the step, changed in place. Its first arguments are the parameter groups, and its results are the
            losses, the gradients of the groups, and whatever else it computes. Nodes carry what `make_fx` records of
            their values.
        matrices: the shape of the matrix that each parameter group holds, None where it holds something else. In
            memory both sides are padded with zeros to multiples of 8.
        bfloat16_groups: indices of the groups that the step now reads in bfloat16.
        factored_groups: indices of the groups whose gradients the step now returns as two factors.
    """

    graph: fx.Graph
    matrices: Sequence[MatrixShape | None] = ()
    bfloat16_groups: list[int] = field(default_factory=list)
    factored_groups: list[int] = field(default_factory=list)


def aligned(size: int) -> int:
    """Return the next multiple of 8.

    >>> aligned(8), aligned(250)
    (8, 256)
    """
    return -(-size // ALIGNED) * ALIGNED


def value_of(node: Any) -> Tensor:
    """Return what tracing recorded of a node's value."""
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    assert isinstance(value, Tensor), f"{node} carries no value; graphs come from make_fx"
    return value


def source_of(node: Any) -> Any:
    """Return what a view, a cast or another operation on one tensor reads: its first argument."""
    source, *_ = node.args
    return source


def results_of_step(graph: fx.Graph) -> tuple[fx.Node, list[Any]]:
    """Return the output node of a step, and the results that it lists."""
    (output,) = graph.find_nodes(op="output")
    (results,) = output.args
    return output, list(results)


def call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Add a call and what is known of its value."""
    node = graph.call_function(target, args, kwargs)
    values = fx.map_arg(args, _without_data)
    node.meta["val"] = target(*values, **{name: "meta" if name == "device" else v for name, v in kwargs.items()})
    return node


def _without_data(node: fx.Node) -> Tensor:
    value = value_of(node)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def call_with_results(graph: fx.Graph, target: Any, *args: Any) -> list[fx.Node]:
    """Add a call that returns several tensors, and return the nodes of these."""
    node = call(graph, target, *args)
    return results_of(graph, node)


def results_of(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """Add a node for every tensor that a call returns."""
    results = []
    for index, value in enumerate(node.meta["val"]):
        result = graph.call_function(operator.getitem, (node, index))
        result.meta["val"] = value
        results.append(result)
    return results


def results_with_index(node: fx.Node, index: int) -> list[fx.Node]:
    """Return the nodes that stand for one of the tensors a call returns: none if nothing reads it."""
    return [user for user in node.users if result_index(user) == index]


def result_index(node: fx.Node) -> int:
    """Return which of a call's tensors a node stands for."""
    _, index = node.args
    assert node.target is operator.getitem, f"{node} reads a tuple as a whole"
    assert isinstance(index, int)
    return index


def replace(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    """Let every user of a node read another one, and remove the node."""
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def replace_results(graph: fx.Graph, node: fx.Node, results: Sequence[fx.Node]) -> None:
    """Let every user of a call's tensors read others, and remove the call."""
    for user in list(node.users):
        replace(graph, user, results[result_index(user)])
    graph.erase_node(node)


def is_call(node: Any, target: Any) -> bool:
    """Tell whether an argument is the result of a call of `target`."""
    return isinstance(node, fx.Node) and node.target is target


def has_one_user(node: Any, target: Any) -> bool:
    """Tell whether an argument is the result of a call of `target` and nothing else reads it."""
    return is_call(node, target) and len(node.users) == 1


def expect_no(graph: fx.Graph, *targets: Any, reason: str) -> None:
    """Fail if a graph calls one of some operations: a pass before this one was left out, or comes too late."""
    found = sorted({str(node.target) for node in graph.nodes if node.target in targets})
    assert not found, f"the graph still calls {', '.join(found)}: {reason}"
