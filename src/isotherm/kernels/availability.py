"""Whether the GPU kernels can be used here: the one place that says so.

Kernels are written in Triton, which may not be installed; their modules are imported only when one is launched.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import os
from collections.abc import Container
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("isotherm")

HAS_TRITON = importlib.util.find_spec("triton") is not None
# ISOTHERM_KERNELS=0 leaves everything to PyTorch and Inductor.
ENABLED = os.environ.get("ISOTHERM_KERNELS", "1") != "0"
# Major compute capabilities. Hopper and data-centre Blackwell copy tiles by descriptor (TMA) and have shared memory for
# several of them; the Gluon kernels are written for Hopper alone.
TILE_COPY_GENERATIONS = (9, 10)
GLUON_GENERATIONS = (9,)


def are_available(device: torch.device, *, generations: Container[int] | None = None) -> bool:
    """Tell whether kernels may be launched on a device.

    Args:
        device: must be a GPU; Triton must be installed and kernels not switched off by `ISOTHERM_KERNELS=0`.
        generations: major compute capabilities that the kernels were written for; None takes any.
    """
    if not (HAS_TRITON and ENABLED and device.type == "cuda"):
        return False
    return generations is None or torch.cuda.get_device_capability(device)[0] in generations


def versions() -> dict[str, str]:
    """Return what kernels are built with, and whether they are switched on."""
    triton = importlib.metadata.version("triton") if HAS_TRITON else "none"
    cuda = str(torch.version.cuda)
    return {"torch": torch.__version__, "cuda": cuda, "triton": triton, "kernels": "on" if ENABLED else "off"}


def device_of(x: Tensor) -> Any:
    """Return a context in which kernels go to the GPU of x; Triton's interpreter has tensors on a CPU."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@functools.cache
def in_gluon(name: str) -> ModuleType | None:
    """Return a module of kernels written in Gluon, or None where Triton lacks it."""
    try:
        return importlib.import_module(f"isotherm.kernels.gluon.{name}")
    except ImportError as error:
        logger.info("the Gluon kernels of %s are not used: %s", name, error)
        return None
