"""The sums of an update over its micro-batches: losses, gradients, and where buffers move.

Shape suffix: M runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isotherm.engine.micro_batches import BufferMoves
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.state import StackState


class Accumulation:
    """Adds up what the micro-batches of an update give; all tensors stay where they are in memory.

    Args:
        plan: how the batch is cut.
        state: of the runs; only its buffers are changed.
    """

    def __init__(self, plan: StackPlan, state: StackState) -> None:
        self._micro_batches = plan.micro_batches
        self.losses_M = torch.zeros(state.num_runs, dtype=plan.placed.dtype, device=plan.placed.device)
        self.gradients = [torch.zeros_like(value) for value in state.weights.values]
        self._moves = BufferMoves(state.buffers_M, plan.micro_batches, num_leading=1)
        self._names = list(state.buffers_M)
        # Position of the first example of a micro-batch.
        self.start = torch.zeros((), dtype=torch.int64, device=plan.placed.device)

    @property
    def buffers(self) -> list[Tensor]:
        """The buffers that a micro-batch reads."""
        return list(self._moves.read.values())

    def begin(self) -> None:
        """Begin an update."""
        self.losses_M.zero_()
        for gradient in self.gradients:
            gradient.zero_()
        self._moves.begin()

    def load(self, part: range) -> None:
        """Let `start` and `buffers` be those of a micro-batch."""
        self.start.fill_(part.start)
        self._moves.load(part)

    def add(self, part: range, losses_M: Tensor, gradients: Sequence[Tensor], after: Sequence[Tensor]) -> None:
        """Add what a micro-batch gave."""
        weight = len(part) / self._micro_batches.batch_size
        self.losses_M.add_(losses_M, alpha=weight)
        for total, gradient in zip(self.gradients, gradients, strict=True):
            total.add_(gradient, alpha=weight)
        self._moves.add(part, dict(zip(self._names, after, strict=True)))

    def finish(self) -> None:
        """Move the buffers, after the last micro-batch."""
        self._moves.finish()
