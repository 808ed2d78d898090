"""The windows that a stack's updates are cut into, and the examples of each.

Shape suffixes: S seeds, K updates of a window, B batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from isotherm.tasks.seeding import DataOrder, StreamOrder


class Windows:
    """How updates are cut into windows, and which examples they read; those of a window can be drawn ahead.

    Args:
        orders: of the examples, for every seed.
        size: updates of a window at most.
        num_steps: updates in all.
        stops: updates after which a window ends, since the test set is evaluated then.
        device: where the examples are wanted.

    >>> order = StreamOrder(num_tokens=7, batch_size=1, unroll=2)
    >>> windows = Windows([order], size=4, num_steps=9, stops=[3, 9], device=torch.device("cpu"))
    >>> [windows.size_from(first) for first in (0, 3, 7)]
    [3, 4, 2]
    >>> windows.examples(7).tolist()
    [[[[2, 3]]], [[[4, 5]]]]
    """

    def __init__(
        self,
        orders: Sequence[DataOrder | StreamOrder],
        *,
        size: int,
        num_steps: int,
        stops: Collection[int],
        device: torch.device,
    ) -> None:
        self._orders, self._size, self._num_steps, self._device = orders, size, num_steps, device
        self._stops = sorted({*stops, num_steps})
        self._ahead: tuple[int, Tensor] | None = None

    def size_from(self, first: int) -> int:
        """Return the number of updates in the window that begins with this update."""
        return min(self._size, next(stop for stop in self._stops if stop > first) - first)

    def examples(self, first: int) -> Tensor:
        """Return the examples of the window that begins there, for every seed, shape (K, S, B)."""
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == first else self._drawn(first)

    def draw_ahead(self, first: int) -> None:
        """Draw the examples of the window that begins there, if there is one; many examples take a while."""
        self._ahead = (first, self._drawn(first)) if first < self._num_steps else None

    def _drawn(self, first: int) -> Tensor:
        size = self.size_from(first)
        return torch.from_numpy(np.stack([order.block(first, size) for order in self._orders], axis=1)).to(self._device)
