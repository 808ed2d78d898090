"""One run, one plain loop with `torch.optim.SGD`: the definition of right."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from isotherm.engine.evaluate import Scores, diverged, evaluate_all, evaluate_split, final_result
from isotherm.engine.noise import KeyedDropout, noise_key
from isotherm.engine.problem import Problem, evaluation_steps, is_penalised, running_window
from isotherm.records import CurvePoint, RunResult, RunSpec
from isotherm.schedule import num_drops
from isotherm.seeding import DataOrder, initial_model, seeded


def run_reference(
    problem: Problem,
    spec: RunSpec,
    *,
    on_steps: Callable[[int], None] = lambda _: None,
    on_trained: Callable[[nn.Module], None] = lambda _: None,
) -> RunResult:
    """Train one run and return what it gave.

    Args:
        problem: the task on a device.
        spec: the run.
        on_steps: told how many updates were made, now and then.
        on_trained: handed the module after its last update.
    """
    model = initial_model(problem.build, seed=spec.seed).to(problem.device, problem.dtype)
    penalised = [p for p in model.parameters() if p.requires_grad and is_penalised(p, scope=spec.l2_scope)]
    others = [p for p in model.parameters() if p.requires_grad and not is_penalised(p, scope=spec.l2_scope)]
    groups = [{"params": penalised, "weight_decay": spec.l2}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=spec.learning_rate, momentum=spec.momentum)
    order = DataOrder(seed=spec.seed, num_train=problem.num_train, batch_size=spec.batch_size)
    inputs, targets = problem.splits["train"]
    key = noise_key(spec.seed).to(problem.device)
    evaluate_at = evaluation_steps(spec)
    window = running_window(spec, num_train=problem.num_train)
    losses: list[float] = []  # of the last epoch's worth of updates
    curve: list[CurvePoint] = []

    # Whatever random function the module uses besides dropout draws from the seeded global generator.
    with seeded(spec.seed, "noise"):
        for step in range(spec.num_steps):
            for group in optimizer.param_groups:
                group["lr"] = spec.learning_rate * spec.gamma ** -num_drops(step, num_steps=spec.num_steps)
            batch = torch.from_numpy(order.block(step, 1)[0]).to(problem.device)
            model.train()
            optimizer.zero_grad()
            with KeyedDropout(key, torch.tensor(step, device=problem.device)):
                loss = problem.loss(model(inputs[batch]), targets[batch])
            losses.append(float(loss.detach()))
            del losses[:-window]
            if not math.isfinite(losses[-1]):
                return diverged(step, curve=tuple(curve))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            on_steps(1)
            if step + 1 in evaluate_at:
                score = _evaluate_test(problem, model)
                curve.append(CurvePoint(step=step + 1, test_loss=score.loss, test_metric=score.metric))
        scores = evaluate_all(problem, _batch_evaluator(problem, model))
    on_trained(model)

    norm = float(sum(p.detach().double().square().sum() for p in penalised))
    return final_result(
        {name: score[0] for name, score in scores.items()},
        num_steps=spec.num_steps,
        train_loss_running=math.fsum(losses) / window,
        last_batch_loss=losses[-1],
        l2_penalty=0.5 * spec.l2 * norm,
        weight_norm_squared=norm,
        curve=tuple(curve),
    )


def _evaluate_test(problem: Problem, model: nn.Module) -> Scores:
    return evaluate_split(_batch_evaluator(problem, model), *problem.splits["test"])[0]


def _batch_evaluator(problem: Problem, model: nn.Module) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    model.eval()

    def evaluate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        output = model(x)
        return problem.loss(output, y), problem.metric(output, y)

    return evaluate
