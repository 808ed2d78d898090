"""Give a traced program memory of its own, so that nothing is allocated while it runs.

A large tensor that is allocated anew comes from the operating system page by page, which takes longer than the product
that fills it. A traced program always makes the same tensors, so they are made once: every operation that can write
into a given tensor does, tensors that are no longer needed lend their memory to later ones, and what does not depend on
the arguments is computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
# Their result depends on the shape of the argument alone.
_FILLS = (
    _aten.ones_like.default,
    _aten.zeros_like.default,
    _aten.full_like.default,
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
    _aten.empty_like.default,
)


def with_own_memory(module: fx.GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """Return the program with its memory; the results of a call are overwritten by the next.

    Nodes must carry what `make_fx` records of their values; the program must not write into its arguments.
    """
    _use_clamps(module.graph)
    constants = _folded(module.graph)
    buffers = _placed(module.graph)
    extra = [*constants, *buffers]
    module.graph.eliminate_dead_code()
    module.recompile()
    forward = module.forward

    def program(*arguments: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = forward(*arguments, *extra)
        return found

    return program


def _use_clamps(graph: fx.Graph) -> None:
    """Replace the rectifier, which cannot write into a given tensor, by what it does: a clamp at zero."""
    for node in graph.nodes:
        if node.target is _aten.relu.default:
            node.target, node.args = _aten.clamp_min.default, (node.args[0], 0)


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _add_argument(graph: fx.Graph, name: str, value: Tensor) -> fx.Node:
    last = next(node for node in reversed(list(graph.nodes)) if node.op == "placeholder")
    with graph.inserting_after(last):
        node = graph.placeholder(name)
    node.meta["val"] = value
    return node


def _folded(graph: fx.Graph) -> list[Tensor]:
    """Compute once what does not depend on the arguments, and hand it in as further arguments."""
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target in _FILLS and (example := _value(node.args[0])) is not None:
            like = torch.empty(example.shape, dtype=example.dtype, device=example.device)
            known[node] = node.target(like, *node.args[1:], **node.kwargs)
        elif all(source in known for source in node.all_input_nodes):
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            known[node] = node.target(*args, **kwargs)
    constants: list[Tensor] = []
    for node, value in known.items():
        if isinstance(value, Tensor) and any(user not in known for user in node.users):
            node.replace_all_uses_with(_add_argument(graph, f"constant_{len(constants)}", value))
            constants.append(value)
    return constants


def _out_variant(target: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, str] | None:
    """Return the overload that writes into a given tensor by itself, and what that argument is called."""
    own = [(a.name, str(a.type)) for a in target._schema.arguments]
    packet = target.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [a for a in other._schema.arguments if a.is_out]
        if len(outs) != 1 or len(other._schema.arguments) != len(own) + 1:
            continue
        if [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out] != own:
            continue
        # Else it computes as before and copies.
        if torch._C._dispatch_has_kernel_for_dispatch_key(other.name(), "CPU"):
            return other, outs[0].name
    return None


def _is_view(target: torch._ops.OpOverload) -> bool:
    return any(r.alias_info is not None for r in target._schema.returns)


def _placed(graph: fx.Graph) -> list[Tensor]:
    """Let every operation that can write into memory made once; return that memory, in the order of its arguments."""
    nodes = list(graph.nodes)
    output = nodes[-1]
    root: dict[fx.Node, fx.Node] = {}  # of a view, the node that made the values
    for node in nodes:
        is_alias = (
            node.op == "call_function"
            and (
                node.target is operator.getitem
                or node.target is _aten.reshape.default
                or (isinstance(node.target, torch._ops.OpOverload) and _is_view(node.target))
            )
            and node.all_input_nodes
        )
        root[node] = root[node.all_input_nodes[0]] if is_alias else node
    last_use: dict[fx.Node, int] = {}
    for place, node in enumerate(nodes):
        for source in node.all_input_nodes:
            last_use[root[source]] = place
    for source in output.all_input_nodes:
        last_use[root[source]] = len(nodes)
    expiring: dict[int, list[fx.Node]] = {}
    free: dict[tuple[Any, ...], list[Tensor]] = {}
    holding: dict[fx.Node, Tensor] = {}
    buffers: list[Tensor] = []
    names: dict[int, fx.Node] = {}
    for place, node in enumerate(nodes):
        variant = _out_variant(node.target) if _can_be_placed(node) else None
        if variant is not None:
            value = _value(node)
            assert value is not None
            kind = (value.shape, value.stride(), value.dtype)
            spare = free.get(kind)
            if spare:
                buffer = spare.pop()
            else:
                buffer = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                names[id(buffer)] = _add_argument(graph, f"buffer_{len(buffers)}", buffer)
                buffers.append(buffer)
            holding[node] = buffer
            target, name = variant
            node.target = target
            node.kwargs = {**node.kwargs, name: names[id(buffer)]}
            expiring.setdefault(last_use.get(node, place), []).append(node)
        for done in expiring.pop(place, []):
            value = _value(done)
            assert value is not None
            free.setdefault((value.shape, value.stride(), value.dtype), []).append(holding[done])
    return buffers


def _can_be_placed(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    value = _value(node)
    return (
        value is not None
        and value.numel() > 0
        and not node.target._schema.is_mutable
        and not _is_view(node.target)
        and _is_dense(value)
    )


def _is_dense(value: Tensor) -> bool:
    """Tell whether the values fill their memory without gaps, in whatever order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
