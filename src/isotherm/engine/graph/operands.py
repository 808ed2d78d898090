"""The arguments of calls by name.

    matmul = Matmul.of(node)   # None if the node is something else
    if matmul is not None and matmul.left is ...

A record's fields are the arguments of the operation's schema, in the same order; `tests/engine/graph/test_operands.py`
holds them to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import fx

from isotherm.kernels.ops import activation as activation_ops
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops
from isotherm.kernels.ops import row_sums as row_sums_ops

_aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The arguments of one call."""

    TARGET: ClassVar[Any]

    @classmethod
    def of(cls, node: Any) -> Self | None:
        """Return the arguments of a call of `TARGET`, None of anything else."""
        operation: Any = cls.TARGET
        if not isinstance(node, fx.Node) or node.target is not operation:
            return None
        schema = cls.TARGET._schema.arguments
        given = dict(zip((argument.name for argument in schema), node.args, strict=False)) | node.kwargs
        values = [given.get(argument.name, argument.default_value) for argument in schema]
        return cls(**{field.name: value for field, value in zip(fields(cls), values, strict=True)})

    @property
    def positional(self) -> tuple[Any, ...]:
        """The arguments as a call takes them, for operations whose arguments are all positional."""
        assert not any(argument.kwarg_only for argument in self.TARGET._schema.arguments)
        return tuple(getattr(self, field.name) for field in fields(self))


# -- PyTorch's operations ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Matmul(Operands):
    """left (M, R, I) times right (M, I, C)."""

    TARGET = _aten.bmm.default
    left: fx.Node
    right: fx.Node


@dataclass(frozen=True, kw_only=True)
class BiasedMatmul(Operands):
    """A matmul and an addition as one call."""

    TARGET = _aten.baddbmm.default
    bias: fx.Node
    left: fx.Node
    right: fx.Node
    beta: float
    alpha: float


@dataclass(frozen=True, kw_only=True)
class Addition(Operands):
    """left + alpha * right."""

    TARGET = _aten.add.Tensor
    left: Any
    right: Any
    alpha: float


@dataclass(frozen=True, kw_only=True)
class Sum(Operands):
    """A sum over some dimensions."""

    TARGET = _aten.sum.dim_IntList
    values: fx.Node
    dims: Sequence[int] | None
    keeps_dims: bool
    dtype: torch.dtype | None


@dataclass(frozen=True, kw_only=True)
class Transpose(Operands):
    """Two dimensions exchanged."""

    TARGET = _aten.transpose.int
    source: fx.Node
    first: int
    second: int

    def is_of_matrices(self, ndim: int) -> bool:
        """Tell whether the last two of three dimensions are exchanged."""
        return ndim == 3 and {self.first % 3, self.second % 3} == {1, 2}


@dataclass(frozen=True, kw_only=True)
class Slice(Operands):
    """Part of one dimension."""

    TARGET = _aten.slice.Tensor
    source: fx.Node
    dim: int
    start: int | None
    stop: int | None
    step: int


@dataclass(frozen=True, kw_only=True)
class Cast(Operands):
    """A copy, usually in another type."""

    TARGET = _aten._to_copy.default
    source: fx.Node
    dtype: torch.dtype | None
    layout: Any
    device: Any
    pin_memory: bool | None
    non_blocking: bool
    memory_format: Any


@dataclass(frozen=True, kw_only=True)
class Padding(Operands):
    """Values around a tensor: `amounts` before and after the last dimension, then the one before it, and so on."""

    TARGET = _aten.constant_pad_nd.default
    source: fx.Node
    amounts: Sequence[int]
    value: float

    @property
    def adds_zeros_at_ends(self) -> bool:
        """Tell whether there are zeros after the values and nothing before them."""
        return not any(self.amounts[::2]) and not self.value


@dataclass(frozen=True, kw_only=True)
class Concatenation(Operands):
    """Tensors joined along one dimension."""

    TARGET = _aten.cat.default
    pieces: Sequence[fx.Node]
    dim: int


@dataclass(frozen=True, kw_only=True)
class ScatterAdd(Operands):
    """`source` added to `target` where `index` says."""

    TARGET = _aten.scatter_add.default
    target: fx.Node
    dim: int
    index: fx.Node
    source: fx.Node


@dataclass(frozen=True, kw_only=True)
class ReluGradient(Operands):
    """A gradient where what was rectified is above the threshold, zero elsewhere."""

    TARGET = _aten.threshold_backward.default
    gradient: fx.Node
    rectified: fx.Node
    threshold: float


# -- ours -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ActivationCall(Operands):
    """Biases added to matmuls, and an activation."""

    TARGET = activation_ops.FORWARD
    matmul: fx.Node
    biases: fx.Node
    kind: activation_ops.Kind


@dataclass(frozen=True, kw_only=True)
class ActivationGradientCall(Operands):
    """Gradient before an activation, and its sum over the batch; the first `width` columns count."""

    TARGET = activation_ops.BACKWARD
    gradient: fx.Node
    activation: fx.Node
    width: int
    kind: activation_ops.Kind


@dataclass(frozen=True, kw_only=True)
class JoinedRowSums(Operands):
    """Sums over the rows of several matrices, of each the first so many columns."""

    TARGET = row_sums_ops.ROW_SUMS
    matrices: Sequence[fx.Node]
    widths: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class GhostNorm(Operands):
    """Ghost batch norm, perhaps with a ReLU after it."""

    TARGET = ghost_norm_ops.FORWARD
    x: fx.Node
    weight: fx.Node
    bias: fx.Node
    ghost_size: int
    eps: float
    relu: bool


@dataclass(frozen=True, kw_only=True)
class GhostNormOfSum(Operands):
    """Ghost batch norm of a + b."""

    TARGET = ghost_norm_ops.FORWARD_OF_SUM
    a: fx.Node
    b: fx.Node
    weight: fx.Node
    bias: fx.Node
    ghost_size: int
    eps: float
    relu: bool


@dataclass(frozen=True, kw_only=True)
class GhostNormBackward(Operands):
    """Gradients of ghost batch norm; `other` is added to that of the images."""

    TARGET = ghost_norm_ops.BACKWARD
    dy: fx.Node
    x: fx.Node
    mean: fx.Node
    var: fx.Node
    weight: fx.Node
    bias: fx.Node
    eps: float
    relu: bool
    other: fx.Node | None


@dataclass(frozen=True, kw_only=True)
class Convolution(Operands):
    """Convolutions of many runs."""

    TARGET = convolution_ops.FORWARD
    x: fx.Node
    filters: fx.Node
    stride: int
    padding: int


@dataclass(frozen=True, kw_only=True)
class ConvolutionInputGradient(Operands):
    """Gradient of a convolution's images; `other` is added to it."""

    TARGET = convolution_ops.INPUT_GRADIENT
    dy: fx.Node
    filters: fx.Node
    other: fx.Node | None
    height: int
    width: int
    stride: int
    padding: int
