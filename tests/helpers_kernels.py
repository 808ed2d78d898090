"""Where Triton's kernels are tested: on a GPU, or interpreted on a CPU with TRITON_INTERPRET=1."""

from __future__ import annotations

import os

import pytest
import torch

from isotherm.kernels import availability

IS_INTERPRETED = availability.HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
# The interpreter rounds to bfloat16 towards zero, and multiplies its bits as if they were whole numbers.
HALF = torch.float16 if IS_INTERPRETED else torch.bfloat16
with_kernels = pytest.mark.skipif(
    not IS_INTERPRETED and not (availability.HAS_TRITON and torch.cuda.is_available()),
    reason="needs a CUDA device, or Triton and TRITON_INTERPRET=1",
)
