"""The updates of a fleet in blocks: how many there are between two looks at the losses, and with which examples.

Shape suffixes: S seeds, K updates of a block, B batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from isotherm.tasks.seeding import DataOrder, StreamOrder


class Blocks:
    """How a fleet's updates are cut, and which examples they read; those of a block can be drawn ahead.

    Args:
        orders: of the examples, for every seed.
        size: updates of a block at most.
        num_steps: updates in all.
        looks: updates after which the test set is looked at, where a block ends.
        device: where the examples are wanted.

    >>> order = StreamOrder(num_tokens=7, batch_size=1, unroll=2)
    >>> blocks = Blocks([order], size=4, num_steps=9, looks=[3, 9], device=torch.device("cpu"))
    >>> [blocks.size_from(start) for start in (0, 3, 7)]
    [3, 4, 2]
    >>> blocks.examples(7).tolist()
    [[[[2, 3]]], [[[4, 5]]]]
    """

    def __init__(
        self,
        orders: Sequence[DataOrder | StreamOrder],
        *,
        size: int,
        num_steps: int,
        looks: Collection[int],
        device: torch.device,
    ) -> None:
        self._orders, self._size, self._num_steps, self._device = orders, size, num_steps, device
        self._stops = sorted({*looks, num_steps})
        self._ahead: tuple[int, Tensor] | None = None

    def size_from(self, start: int) -> int:
        """Return the number of updates of the block that begins there."""
        return min(self._size, next(stop for stop in self._stops if stop > start) - start)

    def examples(self, start: int) -> Tensor:
        """Return the examples of the block that begins there, for every seed, shape (K, S, B)."""
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == start else self._drawn(start)

    def draw_ahead(self, start: int) -> None:
        """Draw the examples of the block that begins there, if there is one; of many examples that takes long."""
        self._ahead = (start, self._drawn(start)) if start < self._num_steps else None

    def _drawn(self, start: int) -> Tensor:
        size = self.size_from(start)
        return torch.from_numpy(np.stack([order.block(start, size) for order in self._orders], axis=1)).to(self._device)
