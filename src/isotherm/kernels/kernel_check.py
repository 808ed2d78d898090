"""Kernels in Gluon, the lower level of Triton, change with its releases: each is checked before its first use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version

import torch

from isotherm.kernels import availability, building
from isotherm.kernels.saved_checks import SavedChecks

logger = logging.getLogger("isotherm")


class KernelCheck:
    """Whether some kernels run on a GPU and give the right result, found out once per GPU and remembered on disk.

    Args:
        what: the kernels compute, for the log.
        is_right: compares their results on a device with PyTorch's.
    """

    def __init__(self, what: str, is_right: Callable[[torch.device], bool]) -> None:
        self._what, self._is_right = what, is_right
        self._found: dict[int, bool] = {}

    def passes(self, device: torch.device) -> bool:
        """Tell whether the kernels can be used on a device; if they should work but do not, the log says why."""
        if not availability.are_available(device, generations=availability.GLUON_GENERATIONS):
            return False
        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in self._found:
            if torch.cuda.is_current_stream_capturing():  # a check would break the capture
                return False
            self._found[index] = self._is_known_or_right(torch.device("cuda", index))
        return self._found[index]

    def _is_known_or_right(self, device: torch.device) -> bool:
        saved = SavedChecks.on(device)
        if saved.has_passed("kernels", self._what):
            return True
        is_right = self._check(device)
        if is_right:
            saved.add("kernels", self._what)
        return is_right

    def _check(self, device: torch.device) -> bool:
        try:
            with building.launching():
                building.built_first(lambda: self._is_right(device), device)
                is_right = self._is_right(device)
        except torch.cuda.OutOfMemoryError:  # says nothing about the kernels
            raise
        except Exception as error:  # from a compiler that rejects them; its message is long
            reason = str(error).strip().partition("\n")[0]
            logger.warning(
                "%s run slower than they could: their kernels do not work with Triton %s (%s: %s)",
                self._what,
                version("triton"),
                type(error).__name__,
                reason,
            )
            return False
        if not is_right:
            logger.warning(
                "the kernels for %s give wrong results with Triton %s; slower ones are used instead",
                self._what,
                version("triton"),
            )
        return is_right
