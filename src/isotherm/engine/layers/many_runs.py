"""A context in which layers of PyTorch that `vmap` cannot take, or computes run by run, are computed for all runs.

    torch.lstm, gru, rnn_tanh, rnn_relu     token by token (`recurrent`)
    torch.lstm_cell, gru_cell, ...          the same for one token
    torch.nn.functional.embedding_bag       an embedding and a reduction (`embedding_bag`)
    torch._weight_norm                      the quotient that it stands for

Attention needs no context: its kernels have batching rules (`attention`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from isotherm.engine.layers import attention as attention  # its rules hold from here on
from isotherm.engine.layers.embedding_bag import embedding_bag
from isotherm.engine.layers.recurrent import CELLS, CELLS_ALONE, RecurrentCall, one_token, unrolled


class ManyRuns(TorchFunctionMode):
    """Within this context, under `vmap`, such layers are computed by what `vmap` can take."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace supported calls and pass the others on."""
        found: Any = None
        if func in CELLS:
            found = unrolled(RecurrentCall.of(func, args))
        elif func in CELLS_ALONE:
            found = one_token(func, *args, **(kwargs or {}))
        elif func is functional.embedding_bag:
            found = embedding_bag(*args, **(kwargs or {}))
        elif func is torch._weight_norm:
            found = weight_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


def for_many_runs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function over many runs that runs within this context."""

    def within(*arguments: Any) -> Any:
        with ManyRuns():
            return function(*arguments)

    return within


class ExactWeightNorm(TorchFunctionMode):
    """Within this context `weight_norm` has all digits: on a GPU PyTorch takes square roots in float32 of float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace the one call and pass the others on."""
        return (weight_norm if func is torch._weight_norm else func)(*args, **(kwargs or {}))


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Return v scaled to the norm g, one norm for every index of a dimension, or one in all for dimension -1."""
    others = list(range(v.ndim)) if dim == -1 else [each for each in range(v.ndim) if each != dim]
    norm: Tensor = torch.linalg.vector_norm(v, dim=others, keepdim=dim != -1)
    return v * (g / norm)
