"""Matrix products of a traced program as tensor cores like them: aligned, without copies, on halved weights.

Tensor cores read rows in pieces of 16 bytes, and cuBLAS falls back to slow kernels where a row is not a whole number of
them. So the sides of half-precision products are filled up with zeros. Parameters are kept filled up by `Weights`, and
products give their gradients filled up; what is cut off in between is put back here without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten
# Values of 2 bytes in a piece of 16.
ALIGNED = 8
HALVES = (torch.bfloat16, torch.float16)
# What only looks at values in another way.
LOOKS = (
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.reshape.default,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.slice.Tensor,
)

# A matrix that its argument holds filled up: number of rows and columns before. None: as it is.
Block = tuple[int, int] | None


def aligned(size: int) -> int:
    """Return the next multiple of 8.

    >>> aligned(8), aligned(250)
    (8, 256)
    """
    return -(-size // ALIGNED) * ALIGNED


def value_of(node: Any) -> Tensor:
    """Return what tracing recorded of a node's value."""
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    assert isinstance(value, Tensor)
    return value


def call(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Add an operation and what is known of its value."""
    node = graph.call_function(target, args, kwargs)
    values = fx.map_arg(args, _without_values)
    node.meta["val"] = target(*values, **{name: "meta" if name == "device" else v for name, v in kwargs.items()})
    return node


def _without_values(node: fx.Node) -> Tensor:
    value = value_of(node)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


# -- weights in half precision --------------------------------------------------------------------------------------


def take_halves(graph: fx.Graph, blocks: Sequence[Block]) -> list[int]:
    """Let matrices among the arguments that are only read rounded come rounded; tell which these are.

    Whoever updates the parameters can round them on the way, which costs a write instead of a read and a write. Where
    an argument is filled up, the cut to the sizes before is noted for `improve_products`.
    """
    halved = []
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    for place, block in enumerate(blocks):
        if block is None:
            continue
        argument = arguments[place]
        looks, casts = _reads(argument)
        types = {value_of(cast).dtype for cast in casts}
        if types == {torch.bfloat16}:
            halved.append(place)
            for node in (argument, *looks):
                node.meta["val"] = value_of(node).to(torch.bfloat16)
            for cast in casts:
                cast.replace_all_uses_with(cast.args[0])  # type: ignore[arg-type]
                graph.erase_node(cast)
        _note_cuts(argument, *block)
    return halved


def _reads(argument: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the nodes through which an argument is looked at and those that round it; none if it is read otherwise."""
    looks: list[fx.Node] = []
    casts: list[fx.Node] = []
    queue = list(argument.users)
    while queue:
        node = queue.pop()
        if _is_rounding(node):
            casts.append(node)
        elif node.target in LOOKS:
            looks.append(node)
            queue.extend(node.users)
        else:
            return [], []
    return looks, casts


def _is_rounding(node: fx.Node) -> bool:
    return node.target is _aten._to_copy.default and set(node.kwargs) == {"dtype"} and value_of(node).dtype in HALVES


def _note_cuts(argument: fx.Node, rows: int, columns: int) -> None:
    """Note of every cut to (M, rows, columns) what it was cut from: beyond it there are zeros."""
    for view in argument.users:
        if view.target in LOOKS and value_of(view).ndim == 3:
            for cut in _cuts(view):
                if value_of(cut).shape[1:] == (rows, columns):
                    cut.meta["uncut"] = view


def _cuts(view: fx.Node) -> Iterator[fx.Node]:
    """Yield what `Weights` makes of a view: cut once, or by one side and then the other."""
    for node in view.users:
        if node.target is _aten.slice.Tensor and node.args[2] == 0:
            yield node
            yield from _cuts(node)


# -- products -------------------------------------------------------------------------------------------------------


def improve_products(graph: fx.Graph) -> None:
    """Rewrite the products of a program and what surrounds them."""
    _add_after_products(graph)
    _sum_by_products(graph)
    _align_products(graph)
    _undo_cuts(graph)


def _add_after_products(graph: fx.Graph) -> None:
    """Add what is added to a product after it, where it fuses with what follows: cuBLAS would copy it first."""
    for node in list(graph.nodes):
        if node.target is not _aten.baddbmm.default or node.kwargs or len(node.args) != 3:
            continue
        bias, left, right = node.args
        with graph.inserting_before(node):
            total = call(graph, _aten.add.Tensor, call(graph, _aten.bmm.default, left, right), bias)
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _sum_by_products(graph: fx.Graph) -> None:
    """Sum rows by a product with ones where a product reads them anyway: the gradient of a bias.

    Compiled, the sum would compute the gradient before it a second time, and slowly for many rows.
    """
    ones: dict[tuple[torch.dtype, int, int], fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is not _aten.sum.dim_IntList or node.kwargs:
            continue
        values, dims, *keeps = node.args
        value = value_of(values)
        if value.ndim != 3 or value.dtype not in HALVES or [d % 3 for d in dims] != [1] or not _is_multiplied(values):
            continue
        runs, rows, columns = value.shape
        key = value.dtype, runs, rows
        with graph.inserting_before(node):
            if key not in ones:
                shape = [runs, ALIGNED, rows]
                ones[key] = call(graph, _aten.full.default, shape, 1.0, dtype=value.dtype, device=value.device)
            product = call(graph, _aten.bmm.default, ones[key], values)
            total = call(graph, _aten.slice.Tensor, product, 1, 0, 1)
            if not any(keeps):
                total = call(graph, _aten.reshape.default, total, [runs, columns])
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _is_multiplied(node: fx.Node) -> bool:
    users = [user for user in node.users if user.target is not _aten.transpose.int]
    users += [user for look in node.users if look.target is _aten.transpose.int for user in look.users]
    return any(user.target is _aten.bmm.default for user in users)


def _align_products(graph: fx.Graph) -> None:
    """Fill up the sides of half-precision products with zeros to multiples of 8, and cut the result."""
    filled: dict[tuple[fx.Node, int, int], fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is not _aten.bmm.default or value_of(node).dtype not in HALVES:
            continue
        left, right = node.args
        num_rows, num_inner, num_columns = *value_of(left).shape[1:], value_of(right).shape[2]
        rows, inner, columns = aligned(num_rows), aligned(num_inner), aligned(num_columns)
        if (rows, inner, columns) == (num_rows, num_inner, num_columns):
            continue
        with graph.inserting_before(node):
            left, right = _filled(graph, left, (rows, inner), filled), _filled(graph, right, (inner, columns), filled)
            result = whole = call(graph, _aten.bmm.default, left, right)
            if rows != num_rows:
                result = call(graph, _aten.slice.Tensor, result, 1, 0, num_rows)
            if columns != num_columns:
                result = call(graph, _aten.slice.Tensor, result, 2, 0, num_columns)
        if result is not whole:
            result.meta["uncut"] = whole
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _filled(
    graph: fx.Graph, matrix: Any, sizes: tuple[int, int], known: dict[tuple[fx.Node, int, int], fx.Node]
) -> fx.Node:
    """Return a matrix filled up with zeros; a transposed one is filled up before it is transposed."""
    if _is_transposed(matrix):
        inner = _filled(graph, matrix.args[0], (sizes[1], sizes[0]), known)
        return matrix if inner is matrix.args[0] else call(graph, _aten.transpose.int, inner, 1, 2)
    height, width = value_of(matrix).shape[1:]
    if (height, width) == sizes:
        return matrix  # type: ignore[no-any-return]
    uncut = matrix.meta.get("uncut")
    # Not of a product: where a run overflows, what was cut off one need not be zero, and would spread.
    if uncut is not None and uncut.target is not _aten.bmm.default and value_of(uncut).shape[1:] == sizes:
        return uncut  # type: ignore[no-any-return]
    key = matrix, *sizes
    if key not in known:
        padding = [0, sizes[1] - width, 0, sizes[0] - height]
        known[key] = call(graph, _aten.constant_pad_nd.default, matrix, padding, 0.0)
    return known[key]


def _undo_cuts(graph: fx.Graph) -> None:
    """Where a cut product is filled up again, perhaps transposed or rounded in between, take it as it was."""
    for node in list(graph.nodes):
        if node.target is not _aten.constant_pad_nd.default or not _fills_ends(node):
            continue
        with graph.inserting_before(node):
            whole = _uncut(graph, node.args[0])
        if whole is not None and value_of(whole).shape == value_of(node).shape:
            node.replace_all_uses_with(whole)
            graph.erase_node(node)


def _fills_ends(node: fx.Node) -> bool:
    """Tell whether a padding puts zeros at the ends alone, none at the beginnings."""
    padding: Any = node.args[1]
    return not any(padding[::2]) and not any(node.args[2:])


def _uncut(graph: fx.Graph, node: Any) -> fx.Node | None:
    if "uncut" in node.meta:
        return node.meta["uncut"]  # type: ignore[no-any-return]
    if not _is_transposed(node) and node.target is not _aten._to_copy.default:
        return None
    inner = _uncut(graph, node.args[0])
    return None if inner is None else call(graph, node.target, inner, *node.args[1:], **node.kwargs)


def _is_transposed(node: Any) -> bool:
    if node.target is not _aten.transpose.int or value_of(node).ndim != 3:
        return False
    return {d % 3 for d in node.args[1:]} == {1, 2}
