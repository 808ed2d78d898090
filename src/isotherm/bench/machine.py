"""The machine of a measurement: processor, cores, PyTorch, GPU, and the commit."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import isotherm
from isotherm.core.machine import num_cores


def machine(device: str) -> dict[str, Any]:
    """Return this machine in plain values, with the GPU if it is used."""
    return {
        "cpu": cpu_name(),
        "cores": num_cores(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
    }


def cpu_name() -> str:
    """Return the processor's name as well as it is known."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def commit() -> str | None:
    """Return the commit of this package's source; None if it is not a checkout."""
    git, folder = shutil.which("git"), Path(isotherm.__file__).parent
    if git is None:
        return None
    for arguments in (("ls-files", "--error-unmatch", "__init__.py"), ("describe", "--always", "--dirty", "--tags")):
        found = subprocess.run([git, *arguments], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
        if found.returncode:
            return None
    return found.stdout.strip() or None
