"""Runs trained as one tensor program.

On a CPU a stack is a whole fleet. On a GPU it is one for networks of matmuls, and where there are kernels for the
convolutions of many runs; otherwise every run of a convolutional network is a stack of its own on its own stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from isotherm.core.records import CurvePoint, RunResult
from isotherm.engine.checkpoint_file import State
from isotherm.engine.evaluation import Tensors
from isotherm.engine.stack import scoring, slow_paths, vmap_check
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.plan import StackPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Listeners:
    """Callbacks during training.

    Args:
        on_steps: called with the number of run-updates made.
        on_evaluation: called with a run's index and its scores on the test set along the way.
        on_trained: called with a finished run's index and its parameters.
    """

    on_steps: Callable[[int], None] = lambda _num: None
    on_evaluation: Callable[[int, CurvePoint], None] = lambda _index, _point: None
    on_trained: Callable[[int, Tensors], None] = lambda _index, _parameters: None


class RunStack:
    """Trains the runs of a plan, window by window.

    Args:
        parts: of the stack; they are the stack's own from now on.
        listeners: who is told how it goes.
    """

    def __init__(self, parts: StackParts, listeners: Listeners) -> None:
        self._parts, self._listeners = parts, listeners

    @classmethod
    def of(cls, plan: StackPlan, listeners: Listeners) -> RunStack:
        """Return a stack before its first update.

        Raises:
            NotVectorisable: the module raises an error in its first call.
        """
        return cls(StackParts.of(plan), listeners)

    @property
    def device(self) -> torch.device:
        """Where it is trained."""
        return self._parts.plan.placed.device

    # -- before the first update ------------------------------------------------------------------------------------

    def check_gradients(self) -> None:
        """Raise `NotVectorisable` unless the stack's gradients are those of plain autograd."""
        vmap_check.check_gradients(self._parts)

    def slow_path(self) -> str | None:
        """Return what is slow about this stack, in a sentence; None if nothing is. Only after a check."""
        return slow_paths.fallback(self._parts)

    def check_program(self) -> None:
        """Raise `NotVectorisable` unless the module can be traced and evaluated for all runs at once."""
        vmap_check.check_program(self._parts)

    def share_program(self, other: RunStack) -> None:
        """Use the program of another stack with the same shapes."""
        self._parts.updates.share_program(other._parts.updates)

    # -- updates ----------------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Tell whether all updates were made, or no run is left."""
        return self._parts.state.num_done >= self._parts.plan.num_steps or not self._parts.divergence.num_left

    @property
    def is_asynchronous(self) -> bool:
        """Tell whether updates are under way while the caller does something else: on a GPU."""
        return self._parts.updates.is_asynchronous

    def start_window(self) -> None:
        """Begin the next window of updates; on a GPU they are under way when this returns."""
        self._parts.updates.start(self._parts.state.num_done)

    def draw_ahead(self) -> None:
        """Draw the examples of the window after the one under way."""
        self._parts.updates.draw_ahead(self._parts.state.num_done)

    def finish_window(self) -> None:
        """Wait for the updates under way and note their losses and which runs diverged."""
        first, losses_KM = self._parts.state.num_done, self._parts.updates.finish()
        self._parts.state.note_losses(losses_KM)
        self._listeners.on_steps(len(losses_KM) * self._parts.divergence.num_left)
        self._parts.divergence.note(losses_KM, first=first)

    def shrink(self) -> None:
        """Drop the runs that diverged once there are enough of them."""
        positions = self._parts.divergence.positions_to_keep()
        if positions is not None:
            self._parts.select(positions)

    # -- scores -----------------------------------------------------------------------------------------------------

    @property
    def wants_evaluation(self) -> bool:
        """Tell whether the test set should be evaluated now."""
        plan, state = self._parts.plan, self._parts.state
        return state.num_done in plan.evaluation_steps and self._parts.divergence.num_left > 0

    def evaluate(self) -> None:
        """Evaluate the test set and keep the scores as points of the runs' curves."""
        divergence = self._parts.divergence
        for index, point in zip(divergence.index_M, scoring.curve_points(self._parts), strict=True):
            self._parts.state.curves[index].append(point)
            if index not in divergence.steps:
                self._listeners.on_evaluation(self._parts.plan.first_index + index, point)

    def results(self) -> list[RunResult]:
        """Evaluate the finished runs and return every run's record, in the order of the plan."""
        return scoring.results(self._parts, on_trained=self._listeners.on_trained)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def saved(self) -> State:
        """Return what a checkpoint has to hold."""
        return {**self._parts.divergence.saved(), **self._parts.state.saved()}

    def can_restore(self, saved: State) -> bool:
        """Tell whether a saved state is laid out as this program's is."""
        return self._parts.state.has_layout_of(saved)

    def restore(self, saved: State) -> None:
        """Continue from a saved state of the same plan; nothing may have been trained before."""
        if saved["runs"] != list(self._parts.divergence.index_M):
            self._parts.select(saved["runs"])
        self._parts.divergence.restore(saved)
        self._parts.state.restore(saved)
        self._parts.updates.renew_bfloat16_copies()
