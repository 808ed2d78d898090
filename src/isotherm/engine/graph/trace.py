"""Turn a vmapped function into the list of tensor operations it performs, without the layers that produced it.

`torch.func` pays for every call again what it needs to know only once. Traced, a fleet's step is a plain sequence of
batched operations; a few rewrites then remove what does nothing. Shapes are fixed: another shape, another trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.expand.default)


def trace(function: Callable[..., tuple[Tensor, ...]], *arguments: Tensor) -> fx.GraphModule:
    """Return a function of tensors, giving a tuple of tensors, as a flat program for arguments of these shapes."""
    with tracing(TracingContext(FakeTensorMode())):  # one for the shapes of all values, not one for each
        module = make_fx(lambda *values: function(*values))(*arguments)
        if writes(module):  # the buffers' copies; the rewrites need values that stay
            module = make_fx(functionalize(module, remove="mutations"))(*arguments)
    _drop_reshapes_to_same_shape(module.graph)
    _drop_double_transposes(module.graph)
    if not writes(module):  # else copies and order matter
        _drop_multiplications_by_one(module.graph)
        _fuse_bias_into_product(module.graph)
    module.graph.eliminate_dead_code()
    module.graph.set_codegen(fx.graph.CodeGen())  # plain positional arguments, no trees
    output = next(node for node in module.graph.nodes if node.op == "output")
    output.args = (tuple(output.args[0]),)
    module.recompile()
    return module


def writes(module: fx.GraphModule) -> bool:
    """Tell whether any operation of the program writes into a tensor that exists before it."""
    return any(_writes(node) for node in module.graph.nodes)


def _shape(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return (tuple(value.shape), tuple(value.stride())) if isinstance(value, torch.Tensor) else None


def _sizes(node: Any) -> tuple[int, ...] | None:
    shape = _shape(node)
    return None if shape is None else shape[0]


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _drop_reshapes_to_same_shape(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if node.target in _RESHAPES and _shape(node) is not None and _shape(node) == _shape(node.args[0]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _drop_double_transposes(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        inner = node.args[0] if node.target is _aten.transpose.int else None
        if isinstance(inner, fx.Node) and inner.target is _aten.transpose.int and {*inner.args[1:]} == {*node.args[1:]}:
            node.replace_all_uses_with(inner.args[0])
            graph.erase_node(node)


def _drop_multiplications_by_one(graph: fx.Graph) -> None:
    """Drop x * 1, which only makes a copy."""
    for node in graph.nodes:
        if (
            node.target in (_aten.mul.Scalar, _aten.mul.Tensor)
            and isinstance(node.args[1], int | float)
            and node.args[1] == 1
            and _sizes(node) is not None
            and _sizes(node) == _sizes(node.args[0])
            and _dtype(node) == _dtype(node.args[0])
        ):
            for user in node.users:
                if user.target is _aten.view.default:  # the copy was contiguous, the original may not be
                    user.target = _aten.reshape.default
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _fuse_bias_into_product(graph: fx.Graph) -> None:
    """Replace bias + x @ w by one `baddbmm`, as `nn.Linear` does outside a fleet."""
    for node in list(graph.nodes):
        if node.target is not _aten.add.Tensor or node.kwargs or len(node.args) != 2:
            continue
        for bias, product in (node.args, node.args[::-1]):
            fusable = (
                isinstance(product, fx.Node)
                and product is not bias
                and product.target is _aten.bmm.default
                and _dtype(bias) == _dtype(product) == _dtype(node)
            )
            sizes = _sizes(bias)
            if fusable and len(product.users) == 1 and sizes is not None and len(sizes) == 3:
                if _sizes(product) != _sizes(node):
                    continue
                with graph.inserting_before(node):
                    fused = graph.call_function(_aten.baddbmm.default, (bias, *product.args))
                fused.meta["val"] = node.meta.get("val")
                node.replace_all_uses_with(fused)
                graph.erase_node(node)
                graph.erase_node(product)
                break
