"""Settings of the whole process that a model may change: undone, so that no other run depends on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

logger = logging.getLogger("isotherm")


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # "cpu" would be set by a mode that costs time


# How each is read and set. What numbers do not depend on is left out, as are threads, which rows name.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch.set_default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.set_default_device": (torch.get_default_device, _set_device),
    "torch.set_grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.use_deterministic_algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch.set_float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}


@contextmanager
def settings_kept(whose: str) -> Iterator[None]:
    """Undo afterwards what a user's code has set for the whole process, and say so.

    Args:
        whose: "task 'mine'", for the sentence.
    """
    before = {name: read() for name, (read, _) in _SETTINGS.items()}
    try:
        yield
    finally:
        changed = [name for name, (read, _) in _SETTINGS.items() if read() != before[name]]
        for name in changed:
            _SETTINGS[name][1](before[name])
        if changed:
            logger.warning(
                "%s calls %s in its model, which would change every other run of the process; it was undone: "
                "call it where your module is imported, or convert tensors in the model",
                whose,
                " and ".join(changed),
                extra={"kind": f"{whose} {changed}"},
            )
