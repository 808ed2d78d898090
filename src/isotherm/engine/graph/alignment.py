"""Matmuls with sides that tensor cores like.

Tensor cores read rows in pieces of 16 bytes, and cuBLAS falls back to slow kernels where a row is not a whole number of
them. So the sides of half-precision matmuls are padded with zeros. Parameter groups are kept padded by whoever updates
them, and their gradients are to be returned padded; what the trace cuts off and pads in between is left out here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from isotherm.engine.graph.operands import (
    ActivationCall,
    ActivationGradientCall,
    Cast,
    JoinedRowSums,
    Matmul,
    Padding,
    Slice,
    Transpose,
)
from isotherm.engine.graph.step_graph import (
    HALVES,
    VIEWS,
    MatrixShape,
    StepGraph,
    aligned,
    call,
    call_with_results,
    replace,
    replace_results,
    value_of,
)

_aten = torch.ops.aten


def align_matmuls(step: StepGraph) -> None:
    """Pad the sides of half-precision matmuls with zeros to multiples of 8, and cut the results.

    What one matmul cuts off and the next would pad again is handed over whole, through activations and casts.

    Expects: reshapes instead of views (`flexible_views`), biases added after matmuls (`separate_biases`), casts of
    weights gone (`bfloat16_weights`), and all matmuls and kernels on matrices that other passes add (`activations`,
    `bias_gradients`, `row_sum_matmuls`).
    Leaves: matmuls in half precision, and our kernels on matrices, with aligned operands.
    """
    _Aligner(step).run()


class _Aligner:
    """One sweep over the graph.

    `_whole` has, for every node that was cut from an aligned one, that one. What was cut off is zero, unless a run
    overflowed: such a run has diverged and stays so.
    """

    def __init__(self, step: StepGraph) -> None:
        self._graph = step.graph
        self._whole: dict[fx.Node, fx.Node] = {}
        self._padded: dict[tuple[fx.Node, int, int], fx.Node] = {}
        for argument, matrix in zip(step.graph.find_nodes(op="placeholder"), step.matrices, strict=False):
            if matrix is not None:
                self._whole.update(_cuts_of_group(argument, matrix))

    def run(self) -> None:
        for node in list(self._graph.nodes):
            with self._graph.inserting_before(node):
                if (matmul := Matmul.of(node)) is not None:
                    self._align_matmul(node, matmul)
                elif (activation := ActivationCall.of(node)) is not None:
                    self._align_activation(node, activation)
                elif (gradient := ActivationGradientCall.of(node)) is not None:
                    self._align_activation_gradient(node, gradient)
                elif (sums := JoinedRowSums.of(node)) is not None:
                    self._align_sums(node, sums)
                elif (padding := Padding.of(node)) is not None:
                    self._drop_padding(node, padding)

    def _align_matmul(self, node: fx.Node, matmul: Matmul) -> None:
        if value_of(node).dtype not in HALVES:
            return
        _expect_no_views(node)
        num_rows, num_inner, num_columns = *value_of(matmul.left).shape[1:], value_of(matmul.right).shape[2]
        rows, inner, columns = aligned(num_rows), aligned(num_inner), aligned(num_columns)
        if (rows, inner, columns) == (num_rows, num_inner, num_columns):
            return
        left, right = self._operand(matmul.left, (rows, inner)), self._operand(matmul.right, (inner, columns))
        whole = call(self._graph, Matmul.TARGET, left, right)
        self._replace(node, whole)

    def _align_activation(self, node: fx.Node, activation: ActivationCall) -> None:
        whole = self._whole.get(activation.matmul)
        if whole is not None:
            made = call(self._graph, ActivationCall.TARGET, whole, activation.biases, activation.kind)
            self._replace(node, made)

    def _align_activation_gradient(self, node: fx.Node, given: ActivationGradientCall) -> None:
        dy, y = self._whole.get(given.gradient), self._whole.get(given.activation)
        if dy is None or y is None:
            return
        assert value_of(dy).shape == value_of(y).shape, f"{node} reads {dy} and {y}, which are padded differently"
        target = ActivationGradientCall.TARGET
        gradient, total = call_with_results(self._graph, target, dy, y, given.width, given.kind)
        cut = self._cut(gradient, value_of(given.gradient).shape)
        replace_results(self._graph, node, [cut, total])

    def _align_sums(self, node: fx.Node, sums: JoinedRowSums) -> None:
        shapes = [value_of(matrix).shape[1:] for matrix in sums.matrices]
        matrices = [
            self._operand(matrix, (rows, aligned(columns)))
            for matrix, (rows, columns) in zip(sums.matrices, shapes, strict=True)
        ]
        node.args = (matrices, sums.widths)

    def _drop_padding(self, node: fx.Node, padding: Padding) -> None:
        """Where something cut is padded again, as the trace pads gradients, take it as it was."""
        whole = self._uncut(padding.source) if padding.adds_zeros_at_ends else None
        if whole is not None and value_of(whole).shape == value_of(node).shape:
            replace(self._graph, node, whole)

    def _replace(self, node: fx.Node, whole: fx.Node) -> None:
        replace(self._graph, node, self._cut(whole, value_of(node).shape))

    def _cut(self, whole: fx.Node, shape: torch.Size) -> fx.Node:
        """Return an aligned node cut to a shape."""
        cut = whole
        for dim in (1, 2):
            if shape[dim] != value_of(whole).shape[dim]:
                cut = call(self._graph, Slice.TARGET, cut, dim, 0, shape[dim])
        if cut is not whole:
            self._whole[cut] = whole
        return cut

    def _operand(self, matrix: fx.Node, sizes: tuple[int, int]) -> fx.Node:
        """Return matrices with aligned sides; transposed ones are padded before they are transposed."""
        transpose = Transpose.of(matrix)
        if transpose is not None and transpose.is_of_matrices(value_of(matrix).ndim):
            inner = self._operand(transpose.source, (sizes[1], sizes[0]))
            return matrix if inner is transpose.source else call(self._graph, Transpose.TARGET, inner, 1, 2)
        height, width = value_of(matrix).shape[1:]
        if (height, width) == sizes:
            return matrix
        key = matrix, *sizes
        if key not in self._padded:
            whole = self._uncut(matrix)
            if whole is None or value_of(whole).shape[1:] != sizes:
                amounts = [0, sizes[1] - width, 0, sizes[0] - height]
                whole = call(self._graph, Padding.TARGET, matrix, amounts, 0.0)
            self._padded[key] = whole
        return self._padded[key]

    def _uncut(self, node: fx.Node) -> fx.Node | None:
        """Return what a node was cut from, through transposes and casts; None if it was not cut."""
        if node in self._whole:
            return self._whole[node]
        transpose, cast = Transpose.of(node), Cast.of(node)
        if transpose is not None and transpose.is_of_matrices(value_of(node).ndim):
            inner = self._uncut(transpose.source)
        else:
            inner = None if cast is None else self._uncut(cast.source)
        if inner is None:
            return None
        _, *others = node.args
        return call(self._graph, node.target, inner, *others, **node.kwargs)


def _expect_no_views(node: fx.Node) -> None:
    views = [user for user in node.users if user.target in (_aten.view.default, _aten._unsafe_view.default)]
    assert not views, f"{views} count on the layout of {node}; reshape_instead_of_view comes first"


def _cuts_of_group(argument: fx.Node, matrix: MatrixShape) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield every cut of a padded parameter group to its matrix (M, rows, columns), with what it was cut from."""
    for view in argument.users:
        if view.target in VIEWS and value_of(view).ndim == 3:
            for cut in _cuts(view):
                if value_of(cut).shape[1:] == matrix:
                    yield cut, view


def _cuts(view: fx.Node) -> Iterator[fx.Node]:
    """Yield a view cut at its end: once, or by one side and then the other."""
    for node in view.users:
        part = Slice.of(node)
        if part is not None and part.start == 0:
            yield node
            yield from _cuts(node)
