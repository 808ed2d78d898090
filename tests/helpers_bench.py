"""What the tests of `isotherm bench` share: a clock that moves when told, and contenders that cost no time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from isotherm.bench.workloads import Workload
from isotherm.tasks.task import Task

MLP = Workload(task="mlp_mnist1d", device="cpu", batch_size=8, num_seeds=2, num_rates=2, rate=2.0**-3)


class FakeClock:
    """Tells the time that it was moved to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def moves(self, seconds: float) -> None:
        self.now += seconds


def fake_turn(repeats: int, seconds: float, found: list[float]) -> Callable[[float | None], float | None]:
    """Return a turn that asks for so many windows and keeps their speeds."""

    def turn(speed: float | None) -> float | None:
        if speed is not None:
            found.append(speed)
        return seconds if len(found) < repeats else None

    return turn


def hand_written_updates(
    model: nn.Module,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    *,
    task: Task,
    rate: float,
    momentum: float,
    l2: float = 0.0,
) -> None:
    """Train a model by u = m u + g + λ w and w = w - ε u, written out; L2 covers weights."""
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in batches:
        gradients = torch.autograd.grad(task.loss_function(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for w, u, g in zip(model.parameters(), velocity, gradients, strict=True):
                u.mul_(momentum).add_(g)
                if w.ndim >= 2 or task.l2_scope == "all":
                    u.add_(w, alpha=l2)
                w.sub_(u, alpha=rate)
