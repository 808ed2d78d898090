"""One update computed by several processes: each has its own parts of the batch, and all make the same step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isotherm.engine.deadline import Deadline, OutOfTime


class Processes:
    """The processes that compute an update together, as one of them sees them; their group is PyTorch's own.

    Args:
        rank: of this one.
        num: of all.
        deadline: of this one; where it comes to one, all stop after the same update.
    """

    def __init__(self, *, rank: int, num: int, deadline: Deadline | None = None) -> None:
        self.rank, self.num = rank, num
        self._deadline = deadline or Deadline()

    def own(self, parts: Sequence[range]) -> tuple[range, ...]:
        """Return the parts of a batch that this process computes.

        >>> Processes(rank=1, num=2).own([range(0, 4), range(4, 8), range(8, 12)])
        (range(4, 8),)
        """
        return tuple(parts[self.rank :: self.num])

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one type, of equal shapes in all processes, by their sums over the processes."""
        if not tensors:
            return
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, total in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.reshape(tensor.shape))

    @torch.no_grad()
    def sum_update(self, model: nn.Module, loss: Tensor) -> Tensor:
        """Sum the gradients of a model's parameters over the processes; return the sum of the losses.

        A parameter that no process has a gradient of is left without one.

        Raises:
            OutOfTime: in all processes, where one of them has no time left.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        present = torch.stack([loss.new_tensor(float(p.grad is not None)) for p in parameters])
        is_over = loss.new_tensor(float(self._deadline.seconds_left <= 0))
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = loss.clone()
        self.sum([is_over, total, present, *gradients])
        if is_over > 0:
            raise OutOfTime
        for parameter, gradient, num in zip(parameters, gradients, present.tolist(), strict=True):
            parameter.grad = gradient if num > 0 else None
        return total
