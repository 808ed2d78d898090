"""A context in which kernels compute what many runs do with images, in a user's modules as much as in ours.

    torch.conv2d                       convolutions, each run with its own filters (`convolution_ops`)
    torch.nn.functional.batch_norm     in training mode, a ghost as large as the batch (`ghost_norm_ops`)

Only under `vmap`, and where the kernels are made for it; everything else is left to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.ops import ghost_norm as ghost_norm_ops

# What takes the place of a function, or None where it does not.
_BY_KERNELS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    torch.conv2d: convolution_ops.convolution,
    functional.batch_norm: ghost_norm_ops.batch_norm,
}


class ByKernels(TorchFunctionMode):
    """Within this context kernels compute what they are made for."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace some functions, pass everything else on."""
        replacement = _BY_KERNELS.get(func)
        found = None if replacement is None else replacement(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


def by_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of many runs that is computed within the context."""

    def within(*arguments: Any) -> Any:
        with ByKernels():
            return function(*arguments)

    return within
