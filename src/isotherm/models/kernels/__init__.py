"""GPU kernels in Triton, which may not be installed: only who is about to launch a kernel imports its module."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("isotherm")

HAS_TRITON = importlib.util.find_spec("triton") is not None
# ISOTHERM_KERNELS=0 leaves everything to PyTorch and Inductor.
ARE_ASKED_FOR = os.environ.get("ISOTHERM_KERNELS", "1") != "0"


def device_of(x: Tensor) -> Any:
    """Return a context in which kernels go to the GPU of x; Triton's interpreter has tensors on a CPU."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@functools.cache
def kernels_by_rows() -> ModuleType | None:
    """Return the module of convolutions that read rows once, or None where Triton lacks what it is written in."""
    try:
        return importlib.import_module("isotherm.models.kernels.rows")
    except ImportError as error:
        logger.info("convolutions do not read rows once: %s", error)
        return None
