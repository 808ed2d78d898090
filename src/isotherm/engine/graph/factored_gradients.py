"""Gradients that are handed over as the two factors of their product, for who updates the weights to multiply.

The gradient of a layer's matrix is the product of its outputs' gradients and its inputs, with the batch as the inner
side. Where that side is short, the product costs little, and writing and reading it costs more.

Shape suffixes: M runs, N values of a block, R rows, C columns, I inner side.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.matmuls import HALVES, LOOKS, call, value_of
from isotherm.kernels import availability

_aten = torch.ops.aten
# A longer inner side is left to cuBLAS: only at 64 the kernel was measured to be the faster way.
MOST_INNER = 64


def take_factors(graph: fx.Graph, places: Collection[int]) -> list[int]:
    """Let a program give factors instead of gradients; tell of which of its results.

    A result that is a matrix product in half precision, seen as rows of values, becomes the left factor (M, R, I); the
    right ones (M, I, C) follow all other results in the order of the places. The product is the gradient as it was, but
    for the shape.

    Args:
        graph: the program.
        places: of the results to look at.
    """
    (output,) = graph.find_nodes(op="output")
    results = list(output.args[0])
    rights, found = [], []
    for place in sorted(places):
        if results.count(results[place]) > 1:
            continue
        with graph.inserting_before(output):
            factors = _factors(graph, results[place])
        if factors is not None:
            results[place] = factors[0]
            rights.append(factors[1])
            found.append(place)
    output.args = ((*results, *rights),)
    graph.eliminate_dead_code()
    return found


def _factors(graph: fx.Graph, result: Any) -> tuple[fx.Node, fx.Node] | None:
    """Return what a result is a product of, or None where it is none or is used otherwise too."""
    node, is_turned = result, False
    while node.target is not _aten.bmm.default:
        if node.op != "call_function" or len(node.users) != 1 or not _keeps_values(node):
            return None
        is_turned ^= node.target is _aten.transpose.int
        node = node.args[0]
    left, right = node.args
    if len(node.users) != 1 or value_of(node).dtype not in HALVES or value_of(left).shape[2] > MOST_INNER:
        return None
    if _is_argument(left) or _is_argument(right):  # of another matrix, perhaps, which is updated before it is read
        return None
    if is_turned:
        left, right = (call(graph, _aten.transpose.int, factor, 1, 2) for factor in (right, left))
    return left, right


def _is_argument(node: Any) -> bool:
    """Tell whether a node only looks at one of the program's arguments."""
    while node.target in LOOKS or (isinstance(node.target, torch._ops.OpOverload) and node.target.is_view):
        node = node.args[0]
    return bool(node.op == "placeholder")


def _keeps_values(node: fx.Node) -> bool:
    """Tell whether a node widens or copies a matrix of each run, turns it, or writes its rows one after another."""
    source = value_of(node.args[0])
    if source.ndim != 3:
        return False
    if node.target is _aten.transpose.int:
        return {d % 3 for d in node.args[1:]} == {1, 2}  # type: ignore[operator]
    if node.target is _aten.reshape.default:
        return value_of(node).shape == (source.shape[0], source.shape[1] * source.shape[2])
    return node.target in (_aten._to_copy.default, _aten.clone.default)


def product(left_MRI: Tensor, right_MIC: Tensor) -> Tensor:
    """Return the gradient (M, N) of two factors."""
    return torch.bmm(left_MRI, right_MIC).flatten(1)


def update(
    value_MN: Tensor,
    velocity_MN: Tensor,
    half_MN: Tensor,
    left_MRI: Tensor,
    right_MIC: Tensor,
    rate_M1: Tensor,
    momentum_M1: Tensor,
    l2_M1: Tensor | None,
) -> None:
    """Heavy ball in place with the product as gradient, on a GPU; renews the rounded weights too."""
    from isotherm.kernels.triton import factored_update

    shape = len(value_MN), left_MRI.shape[1], right_MIC.shape[2]
    value_MRC, velocity_MRC, half_MRC = (t.view(shape) for t in (value_MN, velocity_MN, half_MN))
    factored_update.update(value_MRC, velocity_MRC, half_MRC, left_MRI, right_MIC, rate_M1, momentum_M1, l2_M1)


def are_usable(device: torch.device) -> bool:
    """Tell whether there is a kernel for updates by factors."""
    return availability.are_available(device)
