"""The data of a task: pairs of inputs and targets, in memory or read from disk batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

# Elements of a piece.
_PIECE = 2**20


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


def pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a tensor in flat, contiguous pieces, in the order of its elements.

    Pieces of a contiguous tensor share its memory; of any other, one piece at a time is copied.

    >>> [piece.tolist() for piece in pieces(torch.tensor([[1, 2], [3, 4]]).t())]
    [[1, 3, 2, 4]]
    """
    if tensor.is_contiguous():
        yield from map(_unit_stride, torch.split(tensor.view(-1), _PIECE))
        return
    num_rows = max(1, _PIECE * len(tensor) // tensor.numel())
    for rows in torch.split(tensor, num_rows):
        if rows.numel() <= _PIECE:
            yield _unit_stride(rows.contiguous().view(-1))
        else:  # one row that is itself too large
            yield from pieces(rows[0])


def _unit_stride(piece: Tensor) -> Tensor:
    """Return the piece with stride 1; a single element may have any, and can then not be viewed as bytes."""
    return piece if piece.stride(-1) == 1 else piece.clone(memory_format=torch.contiguous_format)
