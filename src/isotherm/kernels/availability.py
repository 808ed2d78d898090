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
def in_gluon(name: str) -> ModuleType | None:
    """Return a module of kernels written in Gluon, or None where Triton lacks it."""
    try:
        return importlib.import_module(f"isotherm.kernels.gluon.{name}")
    except ImportError as error:
        logger.info("kernels of %s are left out: %s", name, error)
        return None
