"""What is slow about a stack although its numbers are right, with how slow it is: measured on the stack itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.reasons import slow_operation
from isotherm.engine.stack.scoring import evaluator

# The first call may do what later ones need not, so there is a second one; a third is begun after less time than this.
FEWEST_TIMES, MOST_TIMES, ENOUGH_SECONDS = 2, 4, 0.25


def fallback(parts: StackParts) -> str | None:
    """Return what the log says of a stack with an operation that `vmap` computes run by run; None if there is none.

    Args:
        parts: of a stack that was checked.
    """
    operation = _slow_operation(parts) if parts.has_fallback else None
    if operation is None:
        return None
    return (
        f"torch.func.vmap computes {operation} run by run, not for all runs at once: a fleet "
        f"of {parts.state.num_runs} computes gradients {_speed(parts):.2g} times as fast as one run after another does "
        f"(measured, B = {parts.plan.batch_size})"
    )


def _slow_operation(parts: StackParts) -> str | None:
    """Return on what the step or the evaluation fails where `vmap` may not compute run by run."""
    x_MB, y_MB = parts.feed.batch_of(0)
    state, placed, updates = parts.state, parts.plan.placed, parts.updates
    step_function = parts.model.step_function(state.weights, list(state.fixed_M), list(state.buffers_M))
    now = torch.zeros((), dtype=torch.int64, device=placed.device)
    torch._C._functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
    try:
        step_function(*updates.states, x_MB, y_MB, parts.feed.key_M, now, *updates.position)
        if placed.unroll is None:
            with torch.no_grad():
                evaluator(parts, state.buffers_M).batch(*placed.evaluation_batch("test", 0, 2))
    except RuntimeError as error:
        return slow_operation(error)
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)  # type: ignore[attr-defined]
    return None


def _speed(parts: StackParts) -> float:
    """Return how many times as fast the gradients of all runs are as those of one run after another."""
    plan, placed = parts.plan, parts.plan.placed
    x_MB, y_MB = parts.feed.batch_of(0)
    called = {"batch_size": plan.batch_size, "micro_batch_size": plan.micro_batches.size}
    model = placed.model(seed=plan.seeds[0], **called).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    step = torch.zeros((), dtype=torch.int64, device=placed.device)

    def alone() -> None:
        loss = placed.training_loss(model, x_MB[0].clone(), y_MB[0].clone(), parts.feed.key_M[0], step)
        torch.autograd.grad(loss, trained, allow_unused=True)

    def together() -> None:
        parts.updates.gradients(x_MB, y_MB, step=0)

    finish = _finisher(placed.device)
    return parts.state.num_runs * shortest_time(alone, finish=finish) / shortest_time(together, finish=finish)


def shortest_time(
    call: Callable[[], None], *, finish: Callable[[], None], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the shortest of two or more times; of up to four while they add up to less than a quarter of a second.

    Args:
        call: what is timed.
        finish: waits until what was asked of the device is done.
        clock: returns the time in seconds.
    """
    times: list[float] = []
    finish()
    while len(times) < FEWEST_TIMES or (len(times) < MOST_TIMES and sum(times) < ENOUGH_SECONDS):
        start = clock()
        call()
        finish()
        times.append(clock() - start)
    return min(times)


def _finisher(device: torch.device) -> Callable[[], None]:
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
