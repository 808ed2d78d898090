"""Custom PyTorch operations, each one node of a trace: a kernel on a GPU, plain PyTorch on a CPU.

How an operation is computed is not part of a run's identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

_names: list[str] = []


def operation(name: str, schema: str) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Return a decorator that registers a function as the CPU implementation of a new operation."""
    _names.append(name)
    return torch.library.custom_op(
        f"isotherm::{name}",
        mutates_args=(),
        device_types="cpu",
        schema=schema,
        # Compiled programs pass tensors with the strides that they had in the trace.
        tags=(torch.Tag.needs_exact_strides,),
    )


def unrounded(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums of values are accumulated."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def register_with_compiler() -> None:
    """Tell Inductor to call our operations as they are.

    For an operation that it does not know, Inductor in PyTorch 2.11 prints the arguments with their whole history into
    a message that is never shown. In a recurrent network every cell depends on the one before, and the printing never
    ends. Call this before compiling such a network.
    """
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint

    constraint = tag_to_layout_constraint(torch.Tag.needs_exact_strides)
    for name in _names:
        target = getattr(torch.ops.isotherm, name).default
        if target not in lowerings:
            make_fallback(target, layout_constraint=constraint, warn=False)  # type: ignore[no-untyped-call]
