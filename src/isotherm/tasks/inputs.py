"""The data of a task: pairs of inputs and targets, in memory or read from disk batch by batch."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class LazyInputs(Protocol):
    """Inputs that are read when a batch needs them: too large for memory, on disk."""

    @property
    def shape(self) -> torch.Size:
        """The shape of all inputs, as a tensor would have it."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what `fetch` returns."""

    def __len__(self) -> int: ...

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
        """Return some inputs on the CPU; with a seed, augmented as that run sees them at that update."""

    def identity(self) -> str:
        """Return a hash of what there is to read."""


Inputs = Tensor | LazyInputs
Split = tuple[Inputs, Tensor]
