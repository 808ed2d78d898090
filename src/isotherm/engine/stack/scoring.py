"""How the runs of a stack are scored: on the test set along the way, and on every split at the end.

Shape suffixes: M runs, B batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from isotherm.core.records import CurvePoint, Outcome, RunResult
from isotherm.engine.evaluation import (
    CHUNK,
    REESTIMATION_EXAMPLES,
    Evaluator,
    Scores,
    Tensors,
    diverged,
    evaluate_all,
    evaluate_split,
    final_result,
    images_at_once,
    reestimated,
)
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.untrained import beats_constant, loss_at_start


def curve_points(parts: StackParts) -> list[CurvePoint]:
    """Return the present scores of every run in the stack on the test set."""
    buffers_M = _evaluation_buffers(parts, REESTIMATION_EXAMPLES)
    found = evaluate_split(parts.plan.placed, evaluator(parts, buffers_M), "test")
    return [CurvePoint(step=parts.state.num_done, test_loss=score.loss, test_metric=score.metric) for score in found]


def _evaluation_buffers(parts: StackParts, num_examples: int) -> Tensors:
    """Return the buffers to evaluate with: statistics of ghost batch norm re-estimated where the task says so."""
    placed, state, feed = parts.plan.placed, parts.state, parts.feed
    if not parts.model.ghost_layers:
        return state.buffers_M
    buffers_after = parts.model.buffers_after(shared_batch=not placed.is_lazy)
    parameters_M = state.weights.parameters()

    def forward(buffers_M: Tensors, index: Tensor, step: int) -> Tensors:
        now = torch.tensor(step, device=placed.device)
        batch = feed.examples(index, step=step)
        return buffers_after(parameters_M, state.fixed_M, buffers_M, *batch, feed.key_M, now)

    return reestimated(
        placed,
        state.buffers_M,
        parts.model.ghost_layers,
        forward,
        num_examples=num_examples,
        first_step=parts.plan.num_steps,
        chunk=_chunk(parts),
    )


def evaluator(parts: StackParts, buffers_M: Tensors) -> Evaluator:
    """Return how all runs in the stack score batches at once, with the buffers given."""
    model, num_runs = parts.model, parts.state.num_runs
    states = parts.state.weights.parameters(), parts.state.fixed_M, buffers_M
    scores = model.scores()
    if parts.plan.placed.unroll is None:
        return Evaluator(batch=lambda x, y: scores(*states, x, y), num_runs=num_runs, chunk=_chunk(parts))
    stream_scores = model.stream_scores()
    return Evaluator(
        batch=lambda x, y: scores(*states, x, y),
        window=lambda x, y, state_M: stream_scores(*states, x, y, state_M),
        initial_state=model.initial_stream_state(num_runs),
        num_runs=num_runs,
    )


def _chunk(parts: StackParts) -> int:
    """Return how many examples every run evaluates in one forward pass."""
    return images_at_once(parts.state.num_runs) if parts.plan.convolves else CHUNK


def results(parts: StackParts, *, on_trained: Callable[[int, Tensors], None]) -> list[RunResult]:
    """Evaluate the finished runs and return every run's record.

    Args:
        parts: of the stack.
        on_trained: handed the index and the parameters of every finished run.
    """
    state, steps = parts.state, parts.divergence.steps
    found = {index: diverged(step, curve=tuple(state.curves[index])) for index, step in steps.items()}
    if parts.divergence.num_left:
        found |= _finished(parts, on_trained)
    return [found[index] for index in range(len(parts.plan.specs))]


def _finished(parts: StackParts, on_trained: Callable[[int, Tensors], None]) -> dict[int, RunResult]:
    """Return the records of the runs that did not diverge, by index."""
    plan, state, placed = parts.plan, parts.state, parts.plan.placed
    running: list[Scores] | None = None
    if parts.model.ghost_layers:
        running = evaluate_split(placed, evaluator(parts, state.buffers_M), "test")
    by_split = evaluate_all(placed, evaluator(parts, _evaluation_buffers(parts, placed.num_train)))
    parameters_M = state.weights.parameters()
    norms_M = _norms(parts, parameters_M)
    starts = {
        seed: loss_at_start(placed, seed=seed, micro_batches=plan.micro_batches, num_steps=plan.num_steps)
        for seed in plan.seeds
    }
    found: dict[int, RunResult] = {}
    for position, index in enumerate(parts.divergence.index_M):
        if index in parts.divergence.steps:
            continue
        clipped = float(state.num_clipped_M1[position]) / plan.num_steps
        found[index] = final_result(
            {name: scores[position] for name, scores in by_split.items()},
            num_steps=plan.num_steps,
            loss_at_start=starts[plan.specs[index].seed],
            beats_constant=partial(beats_constant, placed),
            train_loss_running=float(state.running_M[position]) / plan.running_window,
            last_batch_loss=float(state.last_M[position]),
            l2_penalty=0.5 * plan.specs[index].l2 * norms_M[position],
            weight_norm_squared=norms_M[position],
            curve=tuple(state.curves[index]),
            clipped_fraction=clipped if plan.clips else None,
            test_metric_running=None if running is None else running[position].metric,
            loss_scale=placed.scale_of_objective(),
        )
        if found[index].outcome is Outcome.FINISHED:
            on_trained(plan.first_index + index, {name: p[position] for name, p in parameters_M.items()})
    return found


def _norms(parts: StackParts, parameters_M: Tensors) -> list[float]:
    """Return the squared norm of the parameters that L2 covers, of every run."""
    squares = [parameters_M[name].flatten(1).double().square().sum(dim=1) for name in parts.state.penalised]
    return torch.stack(squares).sum(dim=0).tolist() if squares else [0.0] * parts.state.num_runs
