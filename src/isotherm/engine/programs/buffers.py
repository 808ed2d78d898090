"""Memory for the results of a traced program, planned once.

Every operation that can write into a given tensor gets one. A tensor that is no longer needed is given to a later
operation whose result has the same shape, strides and type.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    """Where an operation writes its result.

    Args:
        overload: the overload of the operation that writes into a given tensor.
        argument: what it calls that tensor.
        tensor: the memory.
    """

    overload: torch._ops.OpOverload
    argument: str
    tensor: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Variant:
    """The overload that writes into a given tensor, and what it calls it."""

    overload: torch._ops.OpOverload
    argument: str


def plan_buffers(graph: fx.Graph, *, known: Collection[fx.Node]) -> dict[fx.Node, Buffer]:
    """Return a buffer for every operation that can write into one.

    Args:
        graph: of a program that writes into none of its arguments.
        known: nodes whose values are computed already; they need no buffers.
    """
    nodes = list(graph.nodes)
    found = {node: _variant(node.target) for node in nodes if node not in known and _needs_memory(node)}
    variants = {node: variant for node, variant in found.items() if variant is not None}
    last_use = _last_uses(nodes, variants)
    buffers: dict[fx.Node, Buffer] = {}
    expiring: dict[int, list[fx.Node]] = {}
    free: dict[tuple[Any, ...], list[Tensor]] = {}
    for position, node in enumerate(nodes):
        if (variant := variants.get(node)) is not None:
            tensor = _memory_for(node, free)
            buffers[node] = Buffer(overload=variant.overload, argument=variant.argument, tensor=tensor)
            expiring.setdefault(last_use.get(node, position), []).append(node)
        for done in expiring.pop(position, []):  # only now, so that no operation writes what it reads
            tensor = buffers[done].tensor
            free.setdefault(_layout(tensor), []).append(tensor)
    return buffers


def is_view(target: torch._ops.OpOverload) -> bool:
    """Tell whether the result of an operation lies in the memory of an argument."""
    return any(result.alias_info is not None for result in target._schema.returns)


def recorded_value(node: Any) -> Tensor | None:
    """Return the tensor that tracing recorded of a node, None where it recorded none."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _last_uses(nodes: list[fx.Node], variants: Collection[fx.Node]) -> dict[fx.Node, int]:
    """Return, for every node with memory of its own, the position of the last node that reads it."""
    # Whose memory a value may lie in: its own, or that of all it was made from, as some views do not call themselves
    # views.
    owners: dict[fx.Node, set[fx.Node]] = {}
    last_use: dict[fx.Node, int] = {}
    for position, node in enumerate(nodes):
        sources: set[fx.Node] = set().union(*(owners[source] for source in node.all_input_nodes))
        owners[node] = {node} if node in variants else sources
        for owner in sources:
            last_use[owner] = len(nodes) if node.op == "output" else position
    return last_use


def _memory_for(node: fx.Node, free: dict[tuple[Any, ...], list[Tensor]]) -> Tensor:
    """Return a tensor that is free, or a new one."""
    value = recorded_value(node)
    assert value is not None
    spare = free.get(_layout(value))
    if spare:
        return spare.pop()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _layout(value: Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.dtype


def _variant(target: torch._ops.OpOverload) -> _Variant | None:
    """Return the overload with the same arguments and a tensor to write into, None where there is none."""
    own = [(a.name, str(a.type)) for a in target._schema.arguments]
    packet = target.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [a for a in other._schema.arguments if a.is_out]
        if len(outs) != 1 or len(other._schema.arguments) != len(own) + 1:
            continue
        if [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out] != own:
            continue
        # Without a kernel of its own it computes as before and copies.
        if torch._C._dispatch_has_kernel_for_dispatch_key(other.name(), "CPU"):
            return _Variant(overload=other, argument=outs[0].name)
    return None


def _needs_memory(node: fx.Node) -> bool:
    """Tell whether a node makes a new tensor, without gaps between its values."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    value = recorded_value(node)
    is_new = not node.target._schema.is_mutable and not is_view(node.target)
    return is_new and value is not None and value.numel() > 0 and _is_dense(value)


def _is_dense(value: Tensor) -> bool:
    """Tell whether the values fill their memory without gaps, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
