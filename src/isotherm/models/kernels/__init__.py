"""GPU kernels in Triton, which may not be installed: only who is about to launch a kernel imports its module."""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
# ISOTHERM_KERNELS=0 leaves everything to PyTorch and Inductor.
ARE_ASKED_FOR = os.environ.get("ISOTHERM_KERNELS", "1") != "0"


def device_of(x: Tensor) -> Any:
    """Return a context in which kernels go to the GPU of x; Triton's interpreter has tensors on a CPU."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
