"""What a lane's runs score: looks along the way, and the records at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from isotherm.engine.evaluate import (
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
from isotherm.engine.lane import Lane
from isotherm.records import CurvePoint, RunResult


def look(lane: Lane) -> list[CurvePoint]:
    """Return what the runs that are left score on the test set now."""
    buffers_M = _evaluation_buffers(lane, EXAMPLES_FOR_A_LOOK)
    found = evaluate_split(lane.problem, evaluator(lane, buffers_M), "test")
    return [CurvePoint(step=lane.num_done, test_loss=score.loss, test_metric=score.metric) for score in found]


def _evaluation_buffers(lane: Lane, num_examples: int) -> Tensors:
    """Return the buffers to evaluate with: statistics of ghost batch norm re-estimated where the task says so."""
    if not lane.layers:
        return lane.buffers_M
    lane.module.train()

    def buffers_after(
        parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor, step: Tensor
    ) -> Tensors:
        after = {name: buffer.clone() for name, buffer in buffers.items()}

        def call(*arguments: Tensor) -> Any:
            return functional_call(lane.module, (parameters, fixed, after), arguments)

        lane.problem.training_output(call, x, y, keys, step, channels_last=lane.channels_last)
        return after

    in_memory = lane.over_runs(buffers_after, in_dims=(0, 0, 0, None, None, 0, None))
    from_disk = lane.over_runs(buffers_after, in_dims=(0, 0, 0, 0, 0, 0, None))
    parameters_M = lane.weights.parameters()

    def forward(probing_M: Tensors, index: Tensor, step: int) -> Tensors:
        now = torch.tensor(step, device=lane.problem.device)
        if lane.problem.is_lazy:
            read = [lane.problem.lazy_batch(index.cpu().numpy(), seed=s, step=step) for s in lane.seeds]
            x_MB, y_MB = (torch.stack(values)[lane.seed_M] for values in zip(*read, strict=True))
            found = from_disk(parameters_M, lane.fixed_M, probing_M, x_MB, y_MB, lane.key_M, now)
        else:
            batch = lane.problem.training_batch(index)
            found = in_memory(parameters_M, lane.fixed_M, probing_M, *batch, lane.key_M, now)
        return found  # type: ignore[no-any-return]

    return reestimated(
        lane.problem,
        lane.buffers_M,
        lane.layers,
        forward,
        num_examples=num_examples,
        first_step=lane.num_steps,
        chunk=_chunk(lane),
    )


def evaluator(lane: Lane, buffers_M: Tensors) -> Evaluator:
    """Return how batches are scored by all runs at once, with the buffers given."""
    lane.module.eval()
    problem, states = lane.problem, (lane.weights.parameters(), lane.fixed_M, buffers_M)
    module: Any = lane.module

    def batch_of_run(parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Any:
        def call(*arguments: Tensor) -> Any:
            return functional_call(module, (parameters, fixed, buffers), arguments)

        return problem.evaluation_scores(call, x, y)

    over_runs = lane.over_runs(batch_of_run, in_dims=(0, 0, 0, None, None))
    num_runs = len(lane.index_M)
    if problem.unroll is None:
        return Evaluator(batch=lambda x, y: over_runs(*states, x, y), num_runs=num_runs, chunk=_chunk(lane))

    def window_of_run(
        parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor, state: Tensor
    ) -> Any:
        held = {**parameters, **fixed, **buffers}
        named = {name.removeprefix("module."): held[name] for name in held if name.startswith("module.")}

        def call(*arguments: Tensor) -> Any:
            return functional_call(module.module, named, arguments)

        return problem.stream_scores(call, x, y, state)

    window = lane.over_runs(window_of_run, in_dims=(0, 0, 0, None, None, 0))
    state = module.module.initial_state(1).to(problem.device, problem.dtype)
    return Evaluator(
        batch=lambda x, y: over_runs(*states, x, y),
        window=lambda x, y, state_M: window(*states, x, y, state_M),
        initial_state=state.expand(num_runs, *state.shape),
        num_runs=num_runs,
    )


def _chunk(lane: Lane) -> int:
    """Return how many examples every run looks at in one forward pass."""
    return images_at_once(len(lane.index_M)) if lane.convolves else CHUNK


def results(lane: Lane) -> list[RunResult]:
    """Evaluate the finished runs and return every run's record."""
    results: dict[int, RunResult] = {
        index: diverged(step, curve=tuple(lane.curves[index])) for index, step in lane.dead.items()
    }
    if len(results) < len(lane.specs):
        running: list[Scores] | None = None
        if lane.layers:
            running = evaluate_split(lane.problem, evaluator(lane, lane.buffers_M), "test")
        buffers_M = _evaluation_buffers(lane, lane.problem.num_train)
        by_split = evaluate_all(lane.problem, evaluator(lane, buffers_M))
        parameters_M = lane.weights.parameters()
        squares = [parameters_M[name].flatten(1).double().square().sum(dim=1) for name in lane.penalised]
        norms_M = torch.stack(squares).sum(dim=0).tolist() if squares else [0.0] * len(lane.index_M)
        for place, index in enumerate(lane.index_M):
            if index in results:
                continue
            found = {name: p[place] for name, p in parameters_M.items()}
            lane.listeners.on_trained(lane.first_index + index, found)
            clipped = float(lane.num_clipped_M1[place]) / lane.num_steps
            results[index] = final_result(
                {name: scores[place] for name, scores in by_split.items()},
                num_steps=lane.num_steps,
                train_loss_running=float(lane.running_M[place]) / lane.window,
                last_batch_loss=float(lane.last_M[place]),
                l2_penalty=0.5 * lane.specs[index].l2 * norms_M[place],
                weight_norm_squared=norms_M[place],
                curve=tuple(lane.curves[index]),
                clipped_fraction=clipped if lane.clips else None,
                test_metric_running=None if running is None else running[place].metric,
                loss_scale=lane.problem.scale_of_objective(),
            )
    return [results[index] for index in range(len(lane.specs))]
