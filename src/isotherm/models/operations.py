"""New operations of PyTorch, which a trace records whole: kernels on a GPU, PyTorch's own operations on a CPU.

What computes them is no part of a run's identity, as little as the rest of the engine is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef


def operation(name: str, schema: str) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Return a decorator that makes a function the CPU's way to compute a new operation."""
    return torch.library.custom_op(
        f"isotherm::{name}",
        mutates_args=(),
        device_types="cpu",
        schema=schema,
        # Compiled programs hand over tensors laid out as they were when the operation was recorded.
        tags=(torch.Tag.needs_exact_strides,),
    )
