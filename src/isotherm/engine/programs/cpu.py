"""A traced program on tensors that stay where they are: a list of calls that allocate nothing.

A large tensor that is allocated anew comes from the operating system page by page, which takes longer than the product
that fills it. A traced program always makes the same tensors, so they are made once: every operation that can write
into a given tensor does, tensors that are no longer needed lend their memory to later ones, and what does not depend on
the arguments' values, views among it, is computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.pipeline import rewrite_for_cpu

_aten = torch.ops.aten
# Their result depends on the shape of the argument alone.
_FILLS = (
    _aten.ones_like.default,
    _aten.zeros_like.default,
    _aten.full_like.default,
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
)
# Called by these names they take the same arguments and less time.
_QUICK: dict[Any, Callable[..., Tensor]] = {
    _aten.add.out: torch.add,
    _aten.baddbmm.out: torch.baddbmm,
    _aten.bmm.out: torch.bmm,
    _aten.cat.out: torch.cat,
    _aten.clamp_min.out: torch.clamp_min,
    _aten.div.out: torch.div,
    _aten.gather.out: torch.gather,
    _aten.mean.out: torch.mean,
    _aten.mul.out: torch.mul,
    _aten.neg.out: torch.neg,
    _aten.scatter_add.out: torch.scatter_add,
    _aten.sub.out: torch.sub,
    _aten.sum.IntList_out: torch.sum,
    _aten.tanh.out: torch.tanh,
}


class FixedProgram:
    """A traced program bound to its arguments; a call works on whatever values they have then.

    The results of a call are overwritten by the next, and are to be read only.

    Args:
        module: from `trace`; it must not write into its arguments. It is changed.
        arguments: tensors that must stay where they are in memory.
    """

    def __init__(self, module: fx.GraphModule, arguments: Sequence[Tensor]) -> None:
        rewrite_for_cpu(module)
        graph = module.graph
        known = _folded(graph)
        for node in known:  # what they were made from is needed no more
            node.args, node.kwargs = (), {}
        graph.eliminate_dead_code()
        buffers = _placed(graph, known)
        # What a node's value is, as far as it is the same tensor in every call.
        self._values: dict[fx.Node, Any] = {}
        self._calls: list[Callable[[], Any]] = []
        given = iter(arguments)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(given)
            elif node.op == "get_attr":  # a tensor that the function holds
                self._values[node] = operator.attrgetter(node.target)(module)
            elif node.op == "output":
                self._results = node.args[0]
            elif node in known:
                self._values[node] = known[node]
            else:
                self._add(node, buffers.get(node))
        self._is_fixed = all(node in self._values for node in self._results)
        self._varying: dict[fx.Node, Any] = {}

    def __call__(self) -> tuple[Tensor, ...]:
        """Return the results for the arguments' present values."""
        for call in self._calls:
            call()
        values = self._values if self._is_fixed else {**self._values, **self._varying}
        return tuple(values[node] for node in self._results)

    def _add(self, node: fx.Node, buffer: tuple[Any, str, Tensor] | None) -> None:
        """Do now what can be done once, and note what every call has to do."""
        is_known = all(source in self._values for source in node.all_input_nodes)
        if is_known and _may_be_view(node):
            value = node.target(*self._filled(node.args), **self._filled(node.kwargs))  # type: ignore[operator]
            if node.target is not _aten.reshape.default or _shares_memory(value, self._values[node.all_input_nodes[0]]):
                self._values[node] = value
                return
        target, kwargs = node.target, node.kwargs
        if buffer is not None:
            target, name, self._values[node] = buffer
            target, kwargs = _QUICK.get(target, target), {**kwargs, name: self._values[node]}
        assert callable(target)
        if is_known and buffer is not None:
            self._calls.append(partial(target, *self._filled(node.args), **self._filled(kwargs)))
        else:
            self._calls.append(partial(self._perform, node, target, kwargs, keep=buffer is None))

    def _perform(self, node: fx.Node, target: Callable[..., Any], kwargs: dict[str, Any], *, keep: bool) -> None:
        """Make a call whose arguments or result are new tensors every time."""
        value = target(*self._filled(node.args), **self._filled(kwargs))
        if keep:
            self._varying[node] = value

    def _filled(self, arguments: Any) -> Any:
        """Return arguments with tensors in the place of nodes."""
        return fx.map_arg(arguments, lambda n: self._values[n] if n in self._values else self._varying[n])


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _folded(graph: fx.Graph) -> dict[fx.Node, Any]:
    """Return the values of the nodes that do not depend on the arguments' values."""
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target in _FILLS and (example := _value(node.args[0])) is not None:
            like = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
            known[node] = node.target(like, *node.args[1:], **node.kwargs)
        elif all(source in known for source in node.all_input_nodes):
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            known[node] = node.target(*args, **kwargs)
    return known


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


def _may_be_view(node: fx.Node) -> bool:
    """Tell whether a node's value may lie in the memory of its first argument."""
    return bool(node.all_input_nodes) and (
        node.target in (operator.getitem, _aten.reshape.default, _aten._unsafe_view.default)
        or (isinstance(node.target, torch._ops.OpOverload) and _is_view(node.target))
    )


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _placed(graph: fx.Graph, known: dict[fx.Node, Any]) -> dict[fx.Node, tuple[Any, str, Tensor]]:
    """Return for every operation that can: the overload that writes, what its argument is called, and the memory."""
    nodes = list(graph.nodes)
    variants = {node: _out_variant(node.target) for node in nodes if node not in known and _can_be_placed(node)}
    # Whose memory a value may lie in: that of an operation that makes its own, or of all that it was made from, as some
    # views do not call themselves views.
    roots: dict[fx.Node, set[fx.Node]] = {}
    for node in nodes:
        sources = [roots[source] for source in node.all_input_nodes]
        roots[node] = {node} if variants.get(node) is not None else set().union(*sources)
    last_use: dict[fx.Node, int] = {}
    for place, node in enumerate(nodes):
        for source in node.all_input_nodes:
            for root in roots[source]:
                last_use[root] = len(nodes) if node.op == "output" else place
    placed: dict[fx.Node, tuple[Any, str, Tensor]] = {}
    expiring: dict[int, list[fx.Node]] = {}
    free: dict[tuple[Any, ...], list[Tensor]] = {}
    for place, node in enumerate(nodes):
        variant = variants.get(node)
        if variant is not None:
            value = _value(node)
            assert value is not None
            spare = free.get(_kind(value))
            memory = (
                spare.pop()
                if spare
                else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            )
            placed[node] = (*variant, memory)
            expiring.setdefault(last_use.get(node, place), []).append(node)
        for done in expiring.pop(place, []):  # only now, so that no operation writes what it reads
            memory = placed[done][2]
            free.setdefault(_kind(memory), []).append(memory)
    return placed


def _kind(value: Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), value.stride(), value.dtype


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
