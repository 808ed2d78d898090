"""What a stack's runs score: looks along the way, and the records at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from isotherm.core.records import CurvePoint, RunResult
from isotherm.engine.evaluation import (
    CHUNK,
    EXAMPLES_FOR_A_LOOK,
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
from isotherm.engine.stack import RunStack


def look(stack: RunStack) -> list[CurvePoint]:
    """Return what the runs that are left score on the test set now."""
    buffers_M = _evaluation_buffers(stack, EXAMPLES_FOR_A_LOOK)
    found = evaluate_split(stack.placed, evaluator(stack, buffers_M), "test")
    return [CurvePoint(step=stack.num_done, test_loss=score.loss, test_metric=score.metric) for score in found]


def _evaluation_buffers(stack: RunStack, num_examples: int) -> Tensors:
    """Return the buffers to evaluate with: statistics of ghost batch norm re-estimated where the task says so."""
    if not stack.layers:
        return stack.buffers_M
    stack.module.train()

    def buffers_after(
        parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor, step: Tensor
    ) -> Tensors:
        after = {name: buffer.clone() for name, buffer in buffers.items()}

        def call(*arguments: Tensor) -> Any:
            return functional_call(stack.module, (parameters, fixed, after), arguments)

        stack.placed.training_output(call, x, y, keys, step, channels_last=stack.channels_last)
        return after

    in_memory = stack.over_runs(buffers_after, in_dims=(0, 0, 0, None, None, 0, None))
    from_disk = stack.over_runs(buffers_after, in_dims=(0, 0, 0, 0, 0, 0, None))
    parameters_M = stack.weights.parameters()

    def forward(probing_M: Tensors, index: Tensor, step: int) -> Tensors:
        now = torch.tensor(step, device=stack.placed.device)
        if stack.placed.is_lazy:
            read = [stack.placed.lazy_batch(index.cpu().numpy(), seed=s, step=step) for s in stack.seeds]
            x_MB, y_MB = (torch.stack(values)[stack.seed_M] for values in zip(*read, strict=True))
            found = from_disk(parameters_M, stack.fixed_M, probing_M, x_MB, y_MB, stack.key_M, now)
        else:
            batch = stack.placed.training_batch(index)
            found = in_memory(parameters_M, stack.fixed_M, probing_M, *batch, stack.key_M, now)
        return found  # type: ignore[no-any-return]

    return reestimated(
        stack.placed,
        stack.buffers_M,
        stack.layers,
        forward,
        num_examples=num_examples,
        first_step=stack.num_steps,
        chunk=_chunk(stack),
    )


def evaluator(stack: RunStack, buffers_M: Tensors) -> Evaluator:
    """Return how batches are scored by all runs at once, with the buffers given."""
    stack.module.eval()
    placed, states = stack.placed, (stack.weights.parameters(), stack.fixed_M, buffers_M)
    module: Any = stack.module

    def batch_of_run(parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Any:
        def call(*arguments: Tensor) -> Any:
            return functional_call(module, (parameters, fixed, buffers), arguments)

        return placed.evaluation_scores(call, x, y)

    over_runs = stack.over_runs(batch_of_run, in_dims=(0, 0, 0, None, None))
    num_runs = len(stack.index_M)
    if placed.unroll is None:
        return Evaluator(batch=lambda x, y: over_runs(*states, x, y), num_runs=num_runs, chunk=_chunk(stack))

    def window_of_run(
        parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor, state: Tensor
    ) -> Any:
        held = {**parameters, **fixed, **buffers}
        named = {name.removeprefix("module."): held[name] for name in held if name.startswith("module.")}

        def call(*arguments: Tensor) -> Any:
            return functional_call(module.module, named, arguments)

        return placed.stream_scores(call, x, y, state)

    window = stack.over_runs(window_of_run, in_dims=(0, 0, 0, None, None, 0))
    state = module.module.initial_state(1).to(placed.device, placed.dtype)
    return Evaluator(
        batch=lambda x, y: over_runs(*states, x, y),
        window=lambda x, y, state_M: window(*states, x, y, state_M),
        initial_state=state.expand(num_runs, *state.shape),
        num_runs=num_runs,
    )


def _chunk(stack: RunStack) -> int:
    """Return how many examples every run looks at in one forward pass."""
    return images_at_once(len(stack.index_M)) if stack.convolves else CHUNK


def results(stack: RunStack) -> list[RunResult]:
    """Evaluate the finished runs and return every run's record."""
    results: dict[int, RunResult] = {
        index: diverged(step, curve=tuple(stack.curves[index])) for index, step in stack.dead.items()
    }
    if len(results) < len(stack.specs):
        running: list[Scores] | None = None
        if stack.layers:
            running = evaluate_split(stack.placed, evaluator(stack, stack.buffers_M), "test")
        buffers_M = _evaluation_buffers(stack, stack.placed.num_train)
        by_split = evaluate_all(stack.placed, evaluator(stack, buffers_M))
        parameters_M = stack.weights.parameters()
        squares = [parameters_M[name].flatten(1).double().square().sum(dim=1) for name in stack.penalised]
        norms_M = torch.stack(squares).sum(dim=0).tolist() if squares else [0.0] * len(stack.index_M)
        for place, index in enumerate(stack.index_M):
            if index in results:
                continue
            found = {name: p[place] for name, p in parameters_M.items()}
            stack.listeners.on_trained(stack.first_index + index, found)
            clipped = float(stack.num_clipped_M1[place]) / stack.num_steps
            results[index] = final_result(
                {name: scores[place] for name, scores in by_split.items()},
                num_steps=stack.num_steps,
                train_loss_running=float(stack.running_M[place]) / stack.window,
                last_batch_loss=float(stack.last_M[place]),
                l2_penalty=0.5 * stack.specs[index].l2 * norms_M[place],
                weight_norm_squared=norms_M[place],
                curve=tuple(stack.curves[index]),
                clipped_fraction=clipped if stack.clips else None,
                test_metric_running=None if running is None else running[place].metric,
                loss_scale=stack.placed.scale_of_objective(),
            )
    return [results[index] for index in range(len(stack.specs))]
