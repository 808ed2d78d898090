"""Can a module be trained as a fleet? Checked before the first update, against plain autograd.

Shape suffixes: M runs, B batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isotherm.engine.memory import is_out_of_memory
from isotherm.engine.stack.model import NotVectorisable
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.scoring import evaluator
from isotherm.errors import UserError
from isotherm.kernels import building
from isotherm.tasks.identity import module_attributes
from isotherm.tasks.torch_warnings import counted_torch_warnings


def check_gradients(parts: StackParts) -> None:
    """Compare the stack's gradients with plain autograd on two batches, for the first and the last run.

    Raises:
        NotVectorisable: `vmap` refuses the module, or the numbers differ (state kept outside parameters and
            buffers, a dependence on the call count, randomness that is not dropout).
    """
    check_program(parts)
    batches = [parts.feed.batch_of(step) for step in range(min(2, parts.plan.num_steps))]
    # Deep normalised networks lose up to three digits of float32 in their gradients.
    tolerance = 1e-2 if parts.plan.placed.dtype == torch.float32 else 1e-9
    ours = [parts.updates.gradients(*batch, step=step) for step, batch in enumerate(batches)]
    for position in sorted({0, parts.state.num_runs - 1}):
        for step, (x_MB, y_MB) in enumerate(batches):
            losses, gradients, buffers = ours[step]
            plain = _by_autograd(parts, position, x_MB[position], y_MB[position], step)
            stacked = [losses[position], *(t[position] for t in (*gradients, *buffers))]
            if not all(_close(a, b, tolerance) for a, b in zip(stacked, plain, strict=True)):
                raise NotVectorisable(
                    "its gradients as a fleet differ from those of one run; it may keep state between calls, "
                    "or use randomness other than dropout"
                )
    if not parts.has_fallback:  # which only a new trace shows
        parts.updates.keep_trace()


def check_program(parts: StackParts) -> None:
    """Make the stack's program and evaluate two examples.

    Raises:
        NotVectorisable: the module raises an error.
    """
    try:
        with counted_torch_warnings() as found:
            parts.updates.prepare(*parts.feed.batch_of(0))
            _check_evaluation(parts)
    except Exception as error:  # whatever a user's module may raise under vmap
        if is_out_of_memory(error) or isinstance(error, UserError | NotVectorisable):
            raise
        raise NotVectorisable.because(error) from error
    parts.has_fallback = bool(found) and not parts.plan.is_single


def _check_evaluation(parts: StackParts) -> None:
    placed, scorer = parts.plan.placed, evaluator(parts, parts.state.buffers_M)
    before = _generator_state(placed.device)
    x, y = placed.evaluation_batch("test", 0, 2)
    with torch.no_grad(), building.skipping(placed.device):
        if placed.unroll is None:
            scorer.batch(x, y)
        else:
            assert scorer.window is not None
            assert scorer.initial_state is not None
            scorer.window(x.unsqueeze(0), y.unsqueeze(0), scorer.initial_state)
    if not torch.equal(before, _generator_state(placed.device)):  # `vmap` refuses; a single run goes without it
        raise NotVectorisable("it uses randomness in evaluation mode")


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _by_autograd(parts: StackParts, position: int, x: Tensor, y: Tensor, step: int) -> list[Tensor]:
    """Return loss, gradients and buffers of one run by plain autograd, at its initial parameters."""
    plan, placed, weights = parts.plan, parts.plan.placed, parts.state.weights
    seed = plan.specs[parts.divergence.index_M[position]].seed
    cut = plan.micro_batches
    model = placed.model(seed=seed, batch_size=plan.batch_size, micro_batch_size=cut.size).train()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    attributes = module_attributes(model)
    for earlier in range(step + 1):  # earlier calls too: by now it has what it keeps between them
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        now = torch.tensor(earlier, device=placed.device)
        key = parts.feed.key_M[position]
        loss = placed.training_loss(model, x.clone(), y.clone(), key, now, indices=cut.indices(0))
    changed = [name for name, value in module_attributes(model).items() if attributes.get(name) != value]
    if changed:
        raise NotVectorisable(f"its forward pass changes {', '.join(changed)}, neither parameter nor buffer")
    named = dict(model.named_parameters())
    objective = loss * placed.scale_of_objective()
    names = list(weights.shapes)
    gradients = torch.autograd.grad(objective, [named[name] for name in names], materialize_grads=True)
    by_name = {name: g.unsqueeze(0) for name, g in zip(names, gradients, strict=True)}
    groups = [g[0] for g in weights.gradients(by_name)]
    return [loss.detach(), *groups, *(buffer for _, buffer in model.named_buffers())]


def _difference(ours: Tensor, plain: Tensor) -> float:
    return float((ours.double() - plain.double()).norm())


def _close(ours: Tensor, plain: Tensor, tolerance: float) -> bool:
    scale = float(plain.double().norm())
    return not math.isfinite(scale) or _difference(ours, plain) <= tolerance * scale + tolerance * 1e-3
