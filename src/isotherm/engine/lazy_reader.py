"""Batches from disk for a fleet, read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from isotherm.engine.placed_task import PlacedTask


class Reader:
    """Batches from disk for all seeds of a fleet, the next one read while this one is trained on."""

    def __init__(self, placed: PlacedTask, orders: Sequence[Any], seeds: Sequence[int]) -> None:
        self._placed, self._orders, self._seeds = placed, orders, seeds
        self._ahead = ThreadPoolExecutor(max_workers=1)
        self._next: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def batch(self, step: int, *, last: int) -> tuple[Tensor, Tensor]:
        """Return inputs (S, B, ...) and targets (S, B) of an update."""
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
