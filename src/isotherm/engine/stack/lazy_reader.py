"""Batches that are read from disk, one ahead of the update that needs it.

Shape suffixes: S seeds, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from isotherm.engine.placed_task import PlacedTask
from isotherm.tasks.seeding import DataOrder, StreamOrder


class LazyReader:
    """Reads the batches of all seeds of a stack, the next one while this one is trained on.

    Args:
        placed: a task whose training inputs are on disk.
        orders: of the examples, for every seed.
        seeds: they decide what a run sees of an example.
    """

    def __init__(self, placed: PlacedTask, orders: Sequence[DataOrder | StreamOrder], seeds: Sequence[int]) -> None:
        self._placed, self._orders, self._seeds = placed, orders, seeds
        self._ahead = ThreadPoolExecutor(max_workers=1)
        self._next: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def batch(self, step: int, *, last: int) -> tuple[Tensor, Tensor]:
        """Return inputs (S, B, ...) and targets (S, B) of an update, and begin to read the next up to `last`."""
        is_ready = self._next is not None and self._next[0] == step
        found = self._next[1].result() if self._next is not None and is_ready else self._read(step)
        self._next = (step + 1, self._ahead.submit(self._read, step + 1)) if step < last else None
        return found

    def _read(self, step: int) -> tuple[Tensor, Tensor]:
        read = [
            self._placed.lazy_batch(order.block(step, 1)[0], seed=seed, step=step)
            for order, seed in zip(self._orders, self._seeds, strict=True)
        ]
        x_SB, y_SB = (torch.stack(values) for values in zip(*read, strict=True))
        return x_SB, y_SB
