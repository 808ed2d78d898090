"""Memory layout of many runs' tensors, for operations that take all runs at once.

Images and filters have shape (..., C, H, W); in memory their channels come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch


def has_channels_last(x: Tensor) -> bool:
    """Tell whether images (..., C, H, W) are dense in memory with the channels last."""
    return x.movedim(-3, -1).is_contiguous()


def with_channels_last(x: Tensor) -> Tensor:
    """Return images (..., C, H, W) with the channels last in memory, copied if need be."""
    return x if has_channels_last(x) else x.movedim(-3, -1).contiguous().movedim(-1, -3)


def empty_images(like: Tensor, shape: Sequence[int], *, dtype: torch.dtype | None = None) -> Tensor:
    """Return uninitialised images (..., C, H, W) with the channels last, on the device of others."""
    *others, num_channels, height, width = shape
    return like.new_empty((*others, height, width, num_channels), dtype=dtype or like.dtype).movedim(-1, -3)


def of_all_runs(x: Tensor) -> Tensor | None:
    """Return the tensor of all runs behind a `vmap` tensor, with the runs in front; None if it has another layout.

    While a compiler traces this code, no `vmap` is visible.
    """
    if torch.compiler.is_compiling():
        return x
    batch_dims = []
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            batch_dims.append(_functorch.maybe_get_bdim(x))
        x = _functorch.get_unwrapped(x)
    num_vmaps = _num_vmaps()
    return x if num_vmaps < 2 and batch_dims == [0] * num_vmaps else None


def is_under_one_vmap() -> bool:
    """Tell whether exactly one `vmap`, that over runs, is active."""
    return not torch.compiler.is_compiling() and _num_vmaps() == 1


def _num_vmaps() -> int:
    stack = _functorch.get_interpreter_stack() or ()
    return sum(level.key() == _functorch.TransformType.Vmap for level in stack)


def runs_first(info: Any, in_dims: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """Return an argument of an operation under `vmap` with the runs in front, repeated if all runs share it.

    Images (M, B, C, H, W) get their channels last in memory; everything else becomes contiguous.
    """
    return [
        _stored(with_runs_first(argument, dim, info.batch_size)) if isinstance(argument, Tensor) else argument
        for argument, dim in zip(arguments, in_dims, strict=True)
    ]


def with_runs_first(tensor: Tensor, dim: int | None, num_runs: int) -> Tensor:
    """Return an argument of an operation under `vmap` with the runs in front, expanded without a copy if shared."""
    if dim is None:
        return tensor.expand(num_runs, *tensor.shape)
    return tensor if dim == 0 else tensor.movedim(dim, 0)


def _stored(tensor_M: Tensor) -> Tensor:
    if tensor_M.ndim > 5:
        raise RuntimeError("the kernels do not support nested vmap; set ISOTHERM_KERNELS=0 to run without them")
    return with_channels_last(tensor_M) if tensor_M.ndim == 5 else tensor_M.contiguous()
