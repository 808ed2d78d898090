"""The parts of a stack, made to fit each other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isotherm.engine.stack.divergence import Divergence
from isotherm.engine.stack.feed import Feed
from isotherm.engine.stack.model import StackedModel, unused_parameters
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.state import StackState
from isotherm.engine.stack.updates import Updates


@dataclass(kw_only=True, eq=False, slots=True)
class StackParts:
    """What a stack is made of.

    Args:
        plan: what is trained and how; it never changes.
        model: the module as functions of the tensors of all runs.
        feed: batches, learning rates and random keys.
        state: parameters, velocities, buffers and counts.
        updates: the programs that change the state.
        divergence: which runs are in the stack, and which diverged.
        has_fallback: `vmap` computes an operation of the module run by run; known after the check.
    """

    plan: StackPlan
    model: StackedModel
    feed: Feed
    state: StackState
    updates: Updates
    divergence: Divergence
    has_fallback: bool = False

    @classmethod
    def of(cls, plan: StackPlan) -> StackParts:
        """Return the parts of a stack before its first update.

        Raises:
            NotVectorisable: the module raises an error in its first call.
        """
        placed, cut = plan.placed, plan.micro_batches
        models = [placed.model(seed=seed, batch_size=plan.batch_size) for seed in plan.seeds]
        stream = torch.cuda.Stream() if placed.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        feed = Feed(plan, stream=stream)
        tried = placed.model(seed=plan.seeds[0], batch_size=plan.batch_size, micro_batch_size=cut.size)
        template = models[0] if cut.is_whole else copy.deepcopy(tried)
        unused = unused_parameters(placed, tried, batch=feed.first_batch, keys=feed.key_M[0])
        model, state = StackedModel(plan, template), StackState(plan, models, unused=unused)
        return cls(
            plan=plan,
            model=model,
            feed=feed,
            state=state,
            updates=Updates(plan, model, state, feed, stream=stream),
            divergence=Divergence(len(plan.specs)),
        )

    def select(self, positions: Sequence[int]) -> None:
        """Keep only the runs at these positions; the next update needs a new program."""
        keep = torch.tensor(positions, dtype=torch.int64, device=self.plan.placed.device)
        self.divergence.select(positions)
        self.state.select(keep)
        self.feed.select(keep)
        self.updates.reset()
