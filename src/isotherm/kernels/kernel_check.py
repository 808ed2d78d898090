"""Kernels in Gluon, the lower level of Triton, which changes from version to version: tried before they are used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version

import torch

logger = logging.getLogger("isotherm")

# Hopper: what they are written for.
GENERATION = 9


class Trial:
    """Whether some kernels are made for a GPU and right there, found out once for each.

    Args:
        what: they make.
        is_right: compares what they give on a device with what PyTorch gives.
    """

    def __init__(self, what: str, is_right: Callable[[torch.device], bool]) -> None:
        self._what, self._is_right = what, is_right
        self._found: dict[int, bool] = {}

    def is_passed(self, device: torch.device) -> bool:
        """Tell whether the kernels can be used on a device; if they should be but cannot, the log says why."""
        if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != GENERATION:
            return False
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in self._found:
            if torch.cuda.is_current_stream_capturing():  # trying would end the recording
                return False
            self._found[index] = self._try(torch.device("cuda", index))
        return self._found[index]

    def _try(self, device: torch.device) -> bool:
        try:
            is_right = self._is_right(device)
        except torch.cuda.OutOfMemoryError:  # says nothing about them
            raise
        except Exception as error:  # of a compiler that does not take them; what it says is long
            reason = str(error).strip().partition("\n")[0]
            logger.warning(
                "%s are slower than they could be: kernels for them cannot be used with Triton %s (%s: %s)",
                self._what,
                version("triton"),
                type(error).__name__,
                reason,
            )
            return False
        if not is_right:
            logger.warning(
                "kernels for %s are wrong with Triton %s; slower ones are used", self._what, version("triton")
            )
        return is_right
