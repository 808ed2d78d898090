"""A traced program for the CPU with preallocated buffers: a list of calls that allocate nothing.

A large tensor that is allocated anew comes from the operating system page by page, which takes longer than the matmul
that fills it. A traced program always makes the same tensors, so they are made once (`buffers`), and what does not
depend on the arguments' values, views among it, is computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.pipeline import rewrite_for_cpu
from isotherm.engine.graph.step_graph import results_of_step, source_of
from isotherm.engine.programs.buffers import Buffer, is_view, plan_buffers, recorded_value

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


class PreallocatedProgram:
    """A traced program bound to its arguments; a call works on whatever values they have then.

    The results of a call are overwritten by the next, and are to be read only.

    Args:
        module: from `trace`; it must not write into its arguments. It is changed.
        arguments: tensors that must stay where they are in memory.
    """

    def __init__(self, module: fx.GraphModule, arguments: Sequence[Tensor]) -> None:
        rewrite_for_cpu(module)
        graph = module.graph
        constants = _constants(graph)
        for node in constants:  # what they were made from is no longer needed
            node.args, node.kwargs = (), {}
        graph.eliminate_dead_code()
        buffers = plan_buffers(graph, known=constants)
        # The value of every node that is the same tensor in every call.
        self._values: dict[fx.Node, Any] = dict(zip(graph.find_nodes(op="placeholder"), arguments, strict=True))
        self._calls: list[Callable[[], Any]] = []
        for node in graph.nodes:
            if node.op == "get_attr":  # a tensor that the function holds
                self._values[node] = operator.attrgetter(node.target)(module).detach()
            elif node in constants:
                self._values[node] = constants[node]
            elif node.op == "call_function":
                self._add(node, buffers.get(node))
        _, self._results = results_of_step(graph)
        self._is_fixed = all(node in self._values for node in self._results)
        self._varying: dict[fx.Node, Any] = {}

    def __call__(self) -> tuple[Tensor, ...]:
        """Return the results for the arguments' present values."""
        for call in self._calls:
            call()
        values = self._values if self._is_fixed else {**self._values, **self._varying}
        return tuple(values[node] for node in self._results)

    def _add(self, node: fx.Node, buffer: Buffer | None) -> None:
        """Do now what can be done once, and add what every call has to do."""
        is_known = all(source in self._values for source in node.all_input_nodes)
        if is_known and _may_be_view(node):
            value = node.target(*self._filled(node.args), **self._filled(node.kwargs))  # type: ignore[operator]
            if node.target is not _aten.reshape.default or _shares_memory(value, self._values[node.all_input_nodes[0]]):
                self._values[node] = value
                return
        target, kwargs = node.target, node.kwargs
        if buffer is not None:
            self._values[node] = buffer.tensor
            target, kwargs = _QUICK.get(buffer.overload, buffer.overload), {**kwargs, buffer.argument: buffer.tensor}
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
        """Return arguments with tensors in place of nodes."""
        return fx.map_arg(arguments, lambda n: self._values[n] if n in self._values else self._varying[n])


def _constants(graph: fx.Graph) -> dict[fx.Node, Any]:
    """Return the values of the nodes that do not depend on the arguments' values."""
    known: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target in _FILLS and (example := recorded_value(source_of(node))) is not None:
            like = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
            known[node] = node.target(like, *node.args[1:], **node.kwargs)
        elif all(source in known for source in node.all_input_nodes):
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: known[n])
            known[node] = node.target(*args, **kwargs)
    return known


def _may_be_view(node: fx.Node) -> bool:
    """Tell whether a node's value may lie in the memory of its first argument."""
    return bool(node.all_input_nodes) and (
        node.target in (operator.getitem, _aten.reshape.default, _aten._unsafe_view.default)
        or (isinstance(node.target, torch._ops.OpOverload) and is_view(node.target))
    )


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
