"""One run in a plain loop with PyTorch's optimisers: the definition that everything faster must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isotherm.core.l2 import is_penalised
from isotherm.core.multipliers import multipliers
from isotherm.core.records import CurvePoint, Outcome, RunResult, RunSpec
from isotherm.core.run_schedule import num_drops
from isotherm.engine.dropout import run_keys
from isotherm.engine.evaluation import (
    REESTIMATION_EXAMPLES,
    Evaluator,
    Tensors,
    diverged,
    evaluate_all,
    evaluate_split,
    final_result,
    reestimated,
)
from isotherm.engine.micro_batches import MicroBatches, accumulate
from isotherm.engine.placed_task import PlacedTask, arithmetic, evaluation_steps, ghost_layers, running_window
from isotherm.engine.run_state import RunSaver, RunState
from isotherm.engine.torch_optimizers import torch_optimizers
from isotherm.engine.untrained import beats_constant, loss_at_start
from isotherm.tasks.seeding import seeded
from isotherm.tasks.torch_warnings import without_torch_warnings


@without_torch_warnings()
def run_reference(
    placed: PlacedTask,
    spec: RunSpec,
    *,
    on_steps: Callable[[int], None] = lambda _: None,
    on_evaluation: Callable[[CurvePoint], None] = lambda _: None,
    on_trained: Callable[[nn.Module], None] = lambda _: None,
    micro_batches: MicroBatches | None = None,
    saver: RunSaver | None = None,
) -> RunResult:
    """Train one run and return its result.

    Args:
        placed: the task on a device.
        spec: the run.
        on_steps: called from time to time with the number of updates made.
        on_evaluation: told the scores on the test set along the way.
        on_trained: handed the module of a finished run after its last update.
        micro_batches: the parts of a batch that an update computes one after another; by default, it is one.
        saver: saves the run's state between updates, and may end it there.
    """
    cut = micro_batches or MicroBatches.whole(spec.batch_size)
    with arithmetic(placed):
        return _run(placed, spec, cut, on_steps, on_evaluation, on_trained, saver)


def _run(
    placed: PlacedTask,
    spec: RunSpec,
    micro_batches: MicroBatches,
    on_steps: Callable[[int], None],
    on_evaluation: Callable[[CurvePoint], None],
    on_trained: Callable[[nn.Module], None],
    saver: RunSaver | None,
) -> RunResult:
    model = placed.model(seed=spec.seed, batch_size=spec.batch_size)
    trainable = [p for p in model.parameters() if p.requires_grad]
    penalised = [p for p in trainable if is_penalised(p, scope=spec.l2_scope)]
    optimizers = torch_optimizers(model, spec, is_mixed=placed.is_mixed)
    state = RunState(model=model, optimizers=optimizers)
    order = placed.order(seed=spec.seed, batch_size=spec.batch_size)
    keys = run_keys(spec.seed).to(placed.device)
    evaluate_at = evaluation_steps(spec)
    window = running_window(spec, placed)

    # Whatever random function the module uses besides dropout draws from the seeded global generator.
    with seeded(spec.seed, "noise"):
        if saver is not None and (saved := saver.load()) is not None:
            state.restore(saved)
        for step in range(state.num_done, spec.num_steps):
            rate = spec.learning_rate * _multiplier(spec, step)
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group["lr"] = rate * group["ratio"]
            index = order.block(step, 1)[0]
            batch = placed.batch(index, seed=spec.seed, step=step)
            model.train()
            model.zero_grad()
            state.losses.append(_backward(placed, model, micro_batches, batch, keys, step))
            del state.losses[:-window]
            if not math.isfinite(state.losses[-1]):
                return diverged(step, curve=tuple(state.curve))
            if spec.clip_norm is not None:
                state.num_clipped += clip_gradients(trainable, spec.clip_norm)
            for optimizer in optimizers:
                optimizer.step()
            on_steps(1)
            if step + 1 in evaluate_at:
                with _statistics(placed, model, keys, spec, num_examples=REESTIMATION_EXAMPLES):
                    score = evaluate_split(placed, evaluator_of(placed, model), "test")[0]
                state.curve.append(CurvePoint(step=step + 1, test_loss=score.loss, test_metric=score.metric))
                on_evaluation(state.curve[-1])
            state.num_done = step + 1
            if saver is not None and state.num_done < spec.num_steps:
                saver.after_update(state)
        test_metric_running = None
        if placed.reestimates and ghost_layers(model):
            test_metric_running = evaluate_split(placed, evaluator_of(placed, model), "test")[0].metric
        with _statistics(placed, model, keys, spec, num_examples=placed.num_train):
            scores = evaluate_all(placed, evaluator_of(placed, model))
    norm = float(sum(p.detach().double().square().sum() for p in penalised))
    result = final_result(
        {name: score[0] for name, score in scores.items()},
        num_steps=spec.num_steps,
        loss_at_start=loss_at_start(placed, seed=spec.seed, micro_batches=micro_batches, num_steps=spec.num_steps),
        beats_constant=partial(beats_constant, placed),
        train_loss_running=math.fsum(state.losses) / window,
        last_batch_loss=state.losses[-1],
        l2_penalty=0.5 * spec.l2 * norm,
        weight_norm_squared=norm,
        curve=tuple(state.curve),
        clipped_fraction=None if spec.clip_norm is None else state.num_clipped / spec.num_steps,
        test_metric_running=test_metric_running,
        loss_scale=placed.scale_of_objective(),
    )
    if result.outcome is Outcome.FINISHED:
        on_trained(model)
    return result


def _backward(
    placed: PlacedTask,
    model: nn.Module,
    micro_batches: MicroBatches,
    batch: tuple[Tensor, Tensor],
    keys: Tensor,
    step: int,
) -> float:
    """Compute the gradient of a batch, whole or in micro-batches, and return its loss."""
    now = torch.tensor(step, device=placed.device)
    if not micro_batches.is_whole:
        return float(accumulate(placed, model, micro_batches, batch, keys, now))
    loss = placed.training_loss(model, *batch, keys, now)
    value = float(loss.detach())
    if math.isfinite(value):
        (loss * placed.scale_of_objective()).backward()  # type: ignore[no-untyped-call]
    return value


def _multiplier(spec: RunSpec, step: int) -> float:
    if spec.schedule is None:
        return spec.gamma ** -num_drops(step, num_steps=spec.num_steps)
    found = multipliers(spec.num_steps, gamma=spec.gamma, schedule=spec.schedule, start=step, stop=step + 1)
    return float(found[0])


def clip_gradients(parameters: list[nn.Parameter], clip_norm: float) -> bool:
    """Scale all gradients so that their common norm is at most `clip_norm`; tell whether it was larger."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).norm()
    factor = (clip_norm / norm).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return bool(norm > clip_norm)


@contextmanager
def _statistics(
    placed: PlacedTask, model: nn.Module, keys: Tensor, spec: RunSpec, *, num_examples: int
) -> Iterator[None]:
    """Within this context ghost batch norm has statistics re-estimated at the model's present weights."""
    layers = ghost_layers(model) if placed.reestimates else {}
    buffers = dict(model.named_buffers())

    def forward(probing: Tensors, index: Tensor, step: int) -> Tensors:
        model.train()
        after = {name: buffer.clone() for name, buffer in probing.items()}
        x, y = placed.batch(index.cpu().numpy(), seed=spec.seed, step=step)
        call = partial(_functional, model, after)
        placed.training_output(call, x, y, keys, torch.tensor(step, device=placed.device))
        return after

    found = reestimated(placed, buffers, layers, forward, num_examples=num_examples, first_step=spec.num_steps)
    before = {name: buffers[name].clone() for name, value in found.items() if value is not buffers[name]}
    for name in before:
        buffers[name].copy_(found[name])
    try:
        yield
    finally:
        for name, value in before.items():
            buffers[name].copy_(value)


def _functional(model: nn.Module, buffers: Tensors, *arguments: Tensor) -> Tensor:
    output: Tensor = functional_call(model, (dict(model.named_parameters()), buffers), arguments)
    return output


def evaluator_of(placed: PlacedTask, model: nn.Module) -> Evaluator:
    """Return how this model is evaluated, with its present buffers."""
    model.eval()
    if placed.unroll is None:
        return Evaluator(batch=lambda x, y: placed.evaluation_scores(model, x, y))
    inner: nn.Module = model.module  # type: ignore[assignment]
    state: Tensor = inner.initial_state(1).to(placed.device, placed.dtype)  # type: ignore[operator]
    return Evaluator(
        batch=lambda x, y: placed.evaluation_scores(model, x, y),
        window=lambda x, y, s: placed.stream_scores(inner, x, y, s),
        initial_state=state,
    )
