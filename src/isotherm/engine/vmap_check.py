"""May a module be trained as a fleet at all? Tried before anything else, against plain autograd."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from isotherm.engine.placed_task import is_out_of_memory
from isotherm.engine.scoring import evaluator
from isotherm.engine.stack import NotVectorisable, RunStack
from isotherm.errors import UserError
from isotherm.tasks.identity import module_attributes


def probe(stack: RunStack) -> None:
    """Compare the fleet's gradients with plain autograd on two batches, for the first and the last run.

    Raises:
        NotVectorisable: `vmap` refuses the module, or the numbers differ (state kept outside parameters and
            buffers, a dependence on the call count, randomness that is not dropout).
    """
    try_program(stack)
    batches = [_batch_for_probe(stack, step) for step in range(min(2, stack.num_steps))]
    steps = [torch.full_like(stack.step, step) for step in range(len(batches))]
    # Deep normalised networks lose up to three digits of float32 in their gradients.
    tolerance = 1e-2 if stack.placed.dtype == torch.float32 else 1e-9
    ours = [stack.forward_backward(*batch, step) for batch, step in zip(batches, steps, strict=True)]
    for place in sorted({0, len(stack.index_M) - 1}):
        for step, (x_MB, y_MB) in enumerate(batches):
            losses, gradients, buffers = ours[step]
            plain = _plain_forward_backward(stack, place, x_MB[place], y_MB[place], steps[step])
            fleet = [losses[place], *(t[place] for t in (*gradients, *buffers))]
            if not all(_close(a, b, tolerance) for a, b in zip(fleet, plain, strict=True)):
                raise NotVectorisable(
                    "its gradients as a fleet differ from those of one run; it may keep state between calls, "
                    "or use randomness other than dropout"
                )


def try_program(stack: RunStack) -> None:
    """Make the fleet's program, and evaluate two examples.

    Raises:
        NotVectorisable: the module raises something.
    """
    try:
        with warnings.catch_warnings():  # vmap warns of slow paths, which matters to nobody here
            warnings.simplefilter("ignore")
            stack.prepare_program(*_batch_for_probe(stack, 0))
            _try_evaluation(stack)
    except Exception as error:  # whatever a user's module may raise under vmap
        if is_out_of_memory(error) or isinstance(error, UserError | NotVectorisable):
            raise
        text = str(error).strip().partition("\n")[0]
        raise NotVectorisable(f"{type(error).__name__}: {text}") from error


def _batch_for_probe(stack: RunStack, step: int) -> tuple[Tensor, Tensor]:
    if stack.reader is not None:
        x_SB, y_SB = stack.reader.batch(step, last=step)
        return x_SB[stack.seed_M], y_SB[stack.seed_M]
    blocks = np.stack([order.block(step, 1)[0] for order in stack.orders])
    return stack.placed.training_batch(torch.from_numpy(blocks).to(stack.placed.device)[stack.seed_M])


def _try_evaluation(stack: RunStack) -> None:
    scorer = evaluator(stack, stack.buffers_M)
    before = _generator_state(stack)
    x, y = stack.placed.evaluation_batch("test", 0, 2)
    with torch.no_grad():
        if stack.placed.unroll is None:
            scorer.batch(x, y)
        else:
            assert scorer.window is not None
            assert scorer.initial_state is not None
            scorer.window(x.unsqueeze(0), y.unsqueeze(0), scorer.initial_state)
    if not torch.equal(before, _generator_state(stack)):  # `vmap` refuses; one run alone goes without it
        raise NotVectorisable("it uses randomness in evaluation mode")


def _generator_state(stack: RunStack) -> Tensor:
    device = stack.placed.device
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _plain_forward_backward(stack: RunStack, place: int, x: Tensor, y: Tensor, step: Tensor) -> list[Tensor]:
    """Return loss, gradients and buffers of one run by plain autograd, at its initial parameters."""
    seed = stack.specs[stack.index_M[place]].seed
    model = stack.placed.model(seed=seed, batch_size=stack.batch_size).train()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    attributes = module_attributes(model)
    for earlier in (*range(int(step)), int(step)):  # earlier calls too: by now it has what it keeps between them
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        now = torch.full_like(step, earlier)
        loss = stack.placed.training_loss(model, x, y, stack.key_M[place], now)
    changed = [name for name, value in module_attributes(model).items() if attributes.get(name) != value]
    if changed:
        raise NotVectorisable(f"its forward pass changes {', '.join(changed)}, neither parameter nor buffer")
    named = dict(model.named_parameters())
    objective = loss * stack.placed.scale_of_objective()
    names = list(stack.weights.shapes)
    gradients = torch.autograd.grad(objective, [named[name] for name in names], materialize_grads=True)
    by_name = {name: g.unsqueeze(0) for name, g in zip(names, gradients, strict=True)}
    blocks = [g[0] for g in stack.weights.gradients(by_name)]
    return [loss.detach(), *blocks, *(buffer for _, buffer in model.named_buffers())]


def _difference(ours: Tensor, plain: Tensor) -> float:
    return float((ours.double() - plain.double()).norm())


def _close(ours: Tensor, plain: Tensor, tolerance: float) -> bool:
    scale = float(plain.double().norm())
    return not math.isfinite(scale) or _difference(ours, plain) <= tolerance * scale + tolerance * 1e-3
