"""Full float32 precision for measurements on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Compute in full float32 within this context: by default cuDNN rounds the inputs of convolutions to 10 bits."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        yield
