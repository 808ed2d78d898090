"""What the next update of a single run depends on, so that a run can be saved and go on later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from isotherm.core.records import CurvePoint
from isotherm.engine.checkpoint_file import State
from isotherm.tasks.seeding import generator_states, set_generator_states


@dataclass(kw_only=True, eq=False, slots=True)
class RunState:
    """A run between two updates.

    Args:
        model: with its parameters and buffers.
        optimizers: of the parameters.
        num_done: updates.
        losses: of the last batches, as many as the running mean needs.
        curve: scores on the test set so far.
        num_clipped: updates whose gradient was clipped.
    """

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    num_done: int = 0
    losses: list[float] = field(default_factory=list)
    curve: list[CurvePoint] = field(default_factory=list)
    num_clipped: int = 0

    def saved(self) -> State:
        """Return it as a checkpoint holds it, with the states of the global generators."""
        return {
            "done": self.num_done,
            "losses": list(self.losses),
            "curve": [[point.step, point.test_loss, point.test_metric] for point in self.curve],
            "clipped": self.num_clipped,
            "parameters": {name: p.detach() for name, p in self.model.named_parameters()},
            "buffers": dict(self.model.named_buffers()),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generators": generator_states(),
        }

    @torch.no_grad()
    def restore(self, saved: State) -> None:
        """Continue from a saved state of the same run; sets the global generators too."""
        self.num_done, self.num_clipped = saved["done"], saved["clipped"]
        self.losses = list(saved["losses"])
        self.curve = [
            CurvePoint(step=step, test_loss=loss, test_metric=metric) for step, loss, metric in saved["curve"]
        ]
        for ours, theirs in (
            (dict(self.model.named_parameters()), saved["parameters"]),
            (dict(self.model.named_buffers()), saved["buffers"]),
        ):
            for name, tensor in ours.items():
                tensor.copy_(theirs[name])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        set_generator_states(saved["generators"])


class RunSaver(Protocol):
    """Saves the state of a run between updates."""

    def load(self) -> State | None:
        """Return the state to continue from, None at the beginning of a run."""

    def after_update(self, state: RunState) -> None:
        """Save the state if it is time to.

        Raises:
            OutOfTime: the run has to end here.
        """
