"""New operations of PyTorch, which a trace records whole: kernels on a GPU, PyTorch's own operations on a CPU.

What computes them is no part of a run's identity, as little as the rest of the engine is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

_names: list[str] = []


def operation(name: str, schema: str) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Return a decorator that makes a function the CPU's way to compute a new operation."""
    _names.append(name)
    return torch.library.custom_op(
        f"isotherm::{name}",
        mutates_args=(),
        device_types="cpu",
        schema=schema,
        # Compiled programs hand over tensors laid out as they were when the operation was recorded.
        tags=(torch.Tag.needs_exact_strides,),
    )


def unrounded(dtype: torch.dtype) -> torch.dtype:
    """Return in what type sums of values are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def register_with_compiler() -> None:
    """Tell Inductor to call our operations as they are, instead of letting it find out.

    Where it meets an unknown operation, PyTorch 2.11 writes down its arguments and all that they were made of, for a
    message that nobody sees. The cells of a recurrent network are made of each other, and it never comes to an end. So
    whoever compiles such a network calls this first.
    """
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint

    constraint = tag_to_layout_constraint(torch.Tag.needs_exact_strides)
    for name in _names:
        target = getattr(torch.ops.isotherm, name).default
        if target not in lowerings:
            make_fallback(target, layout_constraint=constraint, warn=False)  # type: ignore[no-untyped-call]
