"""A context that sends the image operations of many runs to kernels, in users' modules as in ours.

    torch.conv2d                       each run has its own filters (`ops.convolution`)
    torch.nn.functional.batch_norm     in training mode, as one ghost batch (`ops.ghost_norm`)
    torch.nn.functional.max_pool2d     windows that do not overlap (`ops.max_pool`)

It acts only under `vmap` and where a kernel supports the call; PyTorch does everything else. Another context does the
same by batched matmuls (`ops.unfolded_convolution`), for small networks that the kernels do not take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops
from isotherm.kernels.ops import max_pool as max_pool_ops
from isotherm.kernels.ops import unfolded_convolution as unfolded_ops

# The replacement of a function; it returns None for calls that it does not support.
Replacements = Mapping[Callable[..., Any], Callable[..., Tensor | None]]
_BY_KERNELS: Replacements = {
    torch.conv2d: convolution_ops.convolution,
    functional.batch_norm: ghost_norm_ops.batch_norm,
    functional.max_pool2d: max_pool_ops.max_pool,
    torch.max_pool2d: max_pool_ops.max_pool,
}
_BY_MATMULS: Replacements = {
    **_BY_KERNELS,
    torch.conv2d: unfolded_ops.convolution,
    functional.batch_norm: unfolded_ops.batch_norm,
}


class Replaced(TorchFunctionMode):
    """Within this context every call that a replacement supports is computed by it."""

    def __init__(self, replacements: Replacements) -> None:
        super().__init__()
        self._replacements = replacements

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace supported calls and pass the others on."""
        replacement = self._replacements.get(func)
        found = None if replacement is None else replacement(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


def by_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function over many runs whose convolutions, norms and pools kernels compute."""
    return _within(_BY_KERNELS, function)


def by_matmuls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function over many runs whose convolutions are batched matmuls."""
    return _within(_BY_MATMULS, function)


def _within(replacements: Replacements, function: Callable[..., Any]) -> Callable[..., Any]:
    def within(*arguments: Any) -> Any:
        with Replaced(replacements):
            return function(*arguments)

    return within
