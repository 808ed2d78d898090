"""Many runs as one program, with the numbers of `reference`.

A fleet's runs share the module's structure, the batch size and the number of updates; learning rate, momentum, L2,
schedule, seed and data order are each run's own. A run's numbers depend on nothing but its own spec.

Shape suffixes: M runs, K updates of a block, B batch; `parameters_M` maps names to tensors with M in front.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from isotherm.engine.evaluate import Scores, diverged, evaluate_all, evaluate_split, final_result
from isotherm.engine.noise import KeyedDropout, noise_key
from isotherm.engine.problem import Problem, evaluation_steps, is_out_of_memory, is_penalised, running_window
from isotherm.engine.reference import run_reference
from isotherm.engine.trace import trace
from isotherm.errors import UserError
from isotherm.identity import module_attributes
from isotherm.records import CurvePoint, RunResult, RunSpec
from isotherm.schedule import multipliers
from isotherm.seeding import DataOrder, initial_model, seeded

logger = logging.getLogger("isotherm")

Tensors = dict[str, Tensor]
# Updates between two looks at the losses; a diverged run wastes at most this many.
BLOCK = 64
# A new size needs a new trace, so the fleet shrinks when this part of it has diverged.
SHRINK_FRACTION = 1 / 8


class NotVectorisable(Exception):
    """The module cannot be trained as a fleet; the text says why."""


def run_fleet(
    problem: Problem,
    specs: Sequence[RunSpec],
    *,
    on_steps: Callable[[int], None] = lambda _: None,
    on_trained: Callable[[int, Tensors], None] = lambda _index, _parameters: None,
    block: int = BLOCK,
) -> list[RunResult]:
    """Train all runs and return what each gave, in the order given.

    A module that `torch.func.vmap` cannot take is trained one run at a time, with a warning in the log.

    Args:
        problem: the task on a device.
        specs: runs of one batch size and one number of updates.
        on_steps: told how many run-updates were made, now and then.
        on_trained: handed every finished run's index and parameters.
        block: updates between two looks at the losses; results do not depend on it.
    """
    _check_alike(specs)
    try:
        with seeded(0, "probe"):  # what it draws disturbs nobody's stream
            fleet = _Fleet(problem, specs, block=block)
            fleet.probe()
    except NotVectorisable as reason:
        logger.warning("training one run at a time, as this model cannot be trained as a fleet: %s", reason)
        return [
            run_reference(
                problem,
                spec,
                on_steps=on_steps,
                on_trained=lambda model, i=index: on_trained(  # type: ignore[misc]
                    i, {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
                ),
            )
            for index, spec in enumerate(specs)
        ]
    return fleet.train(on_steps, on_trained)


def _check_alike(specs: Sequence[RunSpec]) -> None:
    shared = {(s.batch_size, s.num_steps, s.l2_scope, s.num_evaluations, s.precision) for s in specs}
    if len(shared) != 1:
        raise UserError(f"a fleet's runs share batch size, updates, precision and evaluations; got {sorted(shared)}")


class _Fleet:
    """State of the runs that are still alive, and where each came from."""

    def __init__(self, problem: Problem, specs: Sequence[RunSpec], *, block: int = BLOCK) -> None:
        self.problem = problem
        self.block = block
        self.specs = list(specs)
        first = specs[0]
        self.batch_size, self.num_steps = first.batch_size, first.num_steps
        self.evaluate_at = evaluation_steps(first)
        self.window = running_window(first, num_train=problem.num_train)

        seeds = sorted({s.seed for s in specs})
        models = [initial_model(problem.build, seed=seed).to(problem.device, problem.dtype) for seed in seeds]
        self.module = models[0]
        place = torch.tensor([seeds.index(s.seed) for s in specs], device=problem.device)
        self.seed_M = place
        self.orders = [DataOrder(seed=seed, num_train=problem.num_train, batch_size=self.batch_size) for seed in seeds]
        self.key_M = torch.stack([noise_key(seed) for seed in seeds]).to(problem.device)[place]
        stacked = _stack(models, place)
        named = dict(self.module.named_parameters())
        # What L2 moves comes first, so that it is one operation on the front of the flat buffer; then what it covers
        # but cannot move, as the loss does not depend on it and SGD leaves such parameters alone; then the rest.
        unused = self._unused_parameters()
        front = {n for n, p in named.items() if p.requires_grad and is_penalised(p, scope=first.l2_scope)}
        rest = [n for n, p in named.items() if p.requires_grad and n not in front]
        moved, resting = [n for n in named if n in front - unused], [n for n in named if n in front & unused]
        self.shapes = {name: named[name].shape for name in (*moved, *resting, *rest)}
        self.num_decayed = sum(self.shapes[name].numel() for name in moved)
        self.num_penalised = self.num_decayed + sum(self.shapes[name].numel() for name in resting)
        self.weights_MP = torch.cat([stacked[name].flatten(1) for name in self.shapes], dim=1)
        self.velocity_MP = torch.zeros_like(self.weights_MP)
        self.fixed_M = {name: stacked[name] for name, p in named.items() if not p.requires_grad}
        self.buffers_M = {name: stacked[name] for name, _ in self.module.named_buffers()}

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=problem.device).to(problem.dtype).unsqueeze(1)

        self.momentum_M1 = column([s.momentum for s in specs])
        self.l2_M1 = column([s.l2 for s in specs])
        self.index_M = list(range(len(specs)))
        self.dead: dict[int, int] = {}  # original index -> divergence step
        self.curves: list[list[CurvePoint]] = [[] for _ in specs]
        self._program: Callable[..., tuple[Tensor, ...]] | None = None
        self._gradient_MP = torch.empty_like(self.weights_MP)

    def _unused_parameters(self) -> set[str]:
        """Return the trainable parameters that the loss does not depend on: plain SGD never touches them."""
        inputs, targets = self.problem.splits["train"]
        module = copy.deepcopy(self.module).train()
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        try:
            loss = self.problem.loss(module(inputs[: self.batch_size]), targets[: self.batch_size])
            gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        except Exception as error:  # the reference will show what is wrong with it
            if is_out_of_memory(error):
                raise
            raise NotVectorisable(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
        return {name for name, gradient in zip(trainable, gradients, strict=True) if gradient is None}

    # -- one update ---------------------------------------------------------------------------------------------

    def parameters_M(self) -> Tensors:
        """Return the trainable parameters by name, views of the flat buffer with the runs in front."""
        pieces = torch.split(self.weights_MP, [shape.numel() for shape in self.shapes.values()], dim=1)
        return {name: piece.view(-1, *shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def _loss_of_run(
        self,
        parameters: Tensors,
        fixed: Tensors,
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        key: Tensor,
        step: Tensor,
    ) -> tuple[Tensor, Tensors]:
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        with KeyedDropout(key, step):
            output = functional_call(self.module, (parameters, fixed, after), (x,))
        return self.problem.loss(output, y), after

    def _step_function(self) -> Callable[..., tuple[Tensor, ...]]:
        """Return the fleet's step on tensors alone: states, x, y, keys, step -> losses, gradients, buffers."""
        gradient: Callable[..., Any] = vmap(
            grad_and_value(self._loss_of_run, has_aux=True), in_dims=(0, 0, 0, 0, 0, 0, None)
        )
        groups = [list(self.shapes), list(self.fixed_M), list(self.buffers_M)]

        def step_function(*tensors: Tensor) -> tuple[Tensor, ...]:
            rest = iter(tensors)
            states = [{name: next(rest) for name in names} for names in groups]
            gradients, (losses, buffers) = gradient(*states, *rest)
            return losses, *(gradients[name] for name in groups[0]), *(buffers[name] for name in groups[2])

        return step_function

    def _arguments(self, batch_MB: Tensor, step: int) -> list[Tensor]:
        inputs, targets = self.problem.splits["train"]
        return [
            *self.states_M,
            inputs[batch_MB],
            targets[batch_MB],
            self.key_M,
            torch.tensor(step, device=self.problem.device),
        ]

    def _prepare_program(self, batch_MB: Tensor) -> None:
        """Trace the step for the fleet's present size."""
        self.states_M = [*self.parameters_M().values(), *self.fixed_M.values(), *self.buffers_M.values()]
        self.module.train()
        self._program = trace(self._step_function(), *self._arguments(batch_MB, 0))

    def _forward_backward(self, batch_MB: Tensor, step: int) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """Return losses (M,), gradients in the order of `shapes`, and buffers after the forward pass."""
        if self._program is None:
            self._prepare_program(batch_MB)
        assert self._program is not None
        losses, *others = self._program(*self._arguments(batch_MB, step))
        return losses, others[: len(self.shapes)], others[len(self.shapes) :]

    def _update(self, gradients: Sequence[Tensor], buffers: Sequence[Tensor], learning_rate_M1: Tensor) -> None:
        """Heavy ball with coupled L2, u = m u + g + λ w and w = w - ε u, as `torch.optim.SGD` does it."""
        g = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1, out=self._gradient_MP)
        decayed = slice(0, self.num_decayed)
        g[:, decayed].addcmul_(self.weights_MP[:, decayed], self.l2_M1)
        self.velocity_MP.mul_(self.momentum_M1).add_(g)
        self.weights_MP.addcmul_(self.velocity_MP, learning_rate_M1, value=-1.0)
        for old, new in zip(self.buffers_M.values(), buffers, strict=True):
            old.copy_(new)

    def _block_of_batches(self, start: int, num_steps: int) -> Tensor:
        """Return the examples of every run for a block of updates, shape (K, M, B)."""
        blocks = np.stack([order.block(start, num_steps) for order in self.orders], axis=1)
        return torch.from_numpy(blocks).to(self.problem.device)[:, self.seed_M]

    def _block_of_learning_rates(self, start: int, num_steps: int) -> Tensor:
        """Return every run's learning rate for a block of updates, shape (K, M, 1)."""
        columns = [
            spec.learning_rate * multipliers(self.num_steps, gamma=spec.gamma, start=start, stop=start + num_steps)
            for spec in (self.specs[index] for index in self.index_M)
        ]
        table = torch.from_numpy(np.stack(columns, axis=1))
        return table.to(self.problem.device, self.problem.dtype).unsqueeze(2)

    # -- the whole training -------------------------------------------------------------------------------------

    def train(self, on_steps: Callable[[int], None], on_trained: Callable[[int, Tensors], None]) -> list[RunResult]:
        """Make all updates and return every run's record."""
        running = torch.zeros(len(self.specs), dtype=torch.float64, device=self.problem.device)
        last = running
        step = 0
        while step < self.num_steps and len(self.dead) < len(self.specs):
            size = self._block_size(step)
            losses_KM = torch.empty(size, len(self.index_M), dtype=torch.float64, device=self.problem.device)
            learning_rates_KM1 = self._block_of_learning_rates(step, size)
            for k, batch_MB in enumerate(self._block_of_batches(step, size)):
                losses_KM[k], gradients, buffers = self._forward_backward(batch_MB, step + k)
                self._update(gradients, buffers, learning_rates_KM1[k])
            in_window = max(0, step + size - (self.num_steps - self.window))
            running += losses_KM[size - min(size, in_window) :].sum(dim=0)
            last = losses_KM[-1]
            on_steps(size * (len(self.specs) - len(self.dead)))
            self._note_divergence(losses_KM, step)
            step += size
            if step in self.evaluate_at:
                self._note_test_scores(step)
            if step < self.num_steps:
                keep = self._shrink()
                running, last = running[keep], last[keep]
        return self._results(running, last, on_trained)

    def _block_size(self, step: int) -> int:
        next_look = next((s for s in self.evaluate_at if s > step), self.num_steps)
        return min(self.block, next_look - step, self.num_steps - step)

    def _note_divergence(self, losses_KM: Tensor, start: int) -> None:
        bad_KM = ~torch.isfinite(losses_KM)
        for place in bad_KM.any(dim=0).nonzero().flatten().tolist():
            first = int(bad_KM[:, place].to(torch.int8).argmax())
            self.dead.setdefault(self.index_M[place], start + first)

    def _note_test_scores(self, step: int) -> None:
        scores = evaluate_split(self._evaluator(), *self.problem.splits["test"])
        for index, score in zip(self.index_M, scores, strict=True):
            self.curves[index].append(CurvePoint(step=step, test_loss=score.loss, test_metric=score.metric))

    def _shrink(self) -> Tensor:
        """Let diverged runs leave when enough have; return the places that stay."""
        alive = [place for place, index in enumerate(self.index_M) if index not in self.dead]
        keep = torch.arange(len(self.index_M), device=self.problem.device)
        if len(self.index_M) - len(alive) < max(1, SHRINK_FRACTION * len(self.index_M)):
            return keep
        keep = torch.tensor(alive, dtype=torch.int64, device=self.problem.device)
        for tensors in (self.fixed_M, self.buffers_M):
            for name, tensor in tensors.items():
                tensors[name] = tensor[keep]
        for name in ("weights_MP", "velocity_MP", "seed_M", "key_M", "momentum_M1", "l2_M1"):
            setattr(self, name, getattr(self, name)[keep])
        self.index_M = [self.index_M[place] for place in alive]
        self._gradient_MP = torch.empty_like(self.weights_MP)
        self._program = None
        return keep

    def _evaluator(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        self.module.eval()

        def evaluate_run(parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Any:
            output = functional_call(self.module, (parameters, fixed, buffers), (x,))
            return self.problem.loss(output, y), self.problem.metric(output, y)

        vectorised = vmap(evaluate_run, in_dims=(0, 0, 0, None, None))

        def evaluate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            loss, metric = vectorised(self.parameters_M(), self.fixed_M, self.buffers_M, x, y)
            return loss, metric

        return evaluate

    def _results(self, running: Tensor, last: Tensor, on_trained: Callable[[int, Tensors], None]) -> list[RunResult]:
        results: dict[int, RunResult] = {
            index: diverged(step, curve=tuple(self.curves[index])) for index, step in self.dead.items()
        }
        if len(results) < len(self.specs):
            by_split = evaluate_all(self.problem, self._evaluator())
            norms_M = self.weights_MP[:, : self.num_penalised].double().square().sum(dim=1).tolist()
            parameters_M = self.parameters_M()
            for place, index in enumerate(self.index_M):
                if index in results:
                    continue
                on_trained(index, {name: p[place] for name, p in parameters_M.items()})
                results[index] = self._result_of(
                    index,
                    {name: scores[place] for name, scores in by_split.items()},
                    running=float(running[place]),
                    last=float(last[place]),
                    norm=norms_M[place],
                )
        return [results[index] for index in range(len(self.specs))]

    def _result_of(
        self, index: int, scores: dict[str, Scores], *, running: float, last: float, norm: float
    ) -> RunResult:
        return final_result(
            scores,
            num_steps=self.num_steps,
            train_loss_running=running / self.window,
            last_batch_loss=last,
            l2_penalty=0.5 * self.specs[index].l2 * norm,
            weight_norm_squared=norm,
            curve=tuple(self.curves[index]),
        )

    # -- may this module be trained as a fleet at all? ----------------------------------------------------------

    def probe(self) -> None:
        """Compare the fleet's gradients with plain autograd on two batches, for the first and the last run.

        Raises:
            NotVectorisable: `vmap` refuses the module, or the numbers differ (state kept outside parameters and
                buffers, a dependence on the call count, randomness that is not dropout).
        """
        steps = min(2, self.num_steps)
        batches = self._block_of_batches(0, steps)
        tolerance = 1e-3 if self.problem.dtype == torch.float32 else 1e-9
        try:
            with warnings.catch_warnings():  # vmap warns of slow paths; the comparison below is what counts
                warnings.simplefilter("ignore")
                self._prepare_program(batches[0])
            evaluate_split(self._evaluator(), *(t[:2] for t in self.problem.splits["test"]))
        except Exception as error:  # whatever a user's module may raise under vmap
            if is_out_of_memory(error):
                raise
            text = str(error).strip().partition("\n")[0]
            raise NotVectorisable(f"{type(error).__name__}: {text}") from error
        ours = [self._forward_backward(batch_MB, step) for step, batch_MB in enumerate(batches)]
        for place in sorted({0, len(self.index_M) - 1}):
            for step, batch_MB in enumerate(batches):
                losses, gradients, buffers = ours[step]
                plain = self._plain_forward_backward(place, batch_MB[place], step)
                fleet = [losses[place], *(t[place] for t in (*gradients, *buffers))]
                if not all(_close(a, b, tolerance) for a, b in zip(fleet, plain, strict=True)):
                    raise NotVectorisable(
                        "its gradients as a fleet differ from those of one run; it may keep state between calls, "
                        "or use randomness other than dropout"
                    )

    def _plain_forward_backward(self, place: int, batch: Tensor, step: int) -> list[Tensor]:
        """Return loss, gradients and buffers of one run by plain autograd, at its initial parameters."""
        inputs, targets = self.problem.splits["train"]
        model = initial_model(self.problem.build, seed=self.specs[self.index_M[place]].seed)
        model = model.to(self.problem.device, self.problem.dtype).train()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        attributes = module_attributes(model)
        for now in (*range(step), step):  # earlier calls too: by now a module has what it keeps between them
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
            with KeyedDropout(self.key_M[place], torch.tensor(now, device=self.problem.device)):
                loss = self.problem.loss(model(inputs[batch]), targets[batch])
        changed = [name for name, value in module_attributes(model).items() if attributes.get(name) != value]
        if changed:
            raise NotVectorisable(f"its forward pass changes {', '.join(changed)}, neither parameter nor buffer")
        named = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss, [named[name] for name in self.shapes], materialize_grads=True)
        return [loss.detach(), *gradients, *(buffer for _, buffer in model.named_buffers())]


def _stack(models: Sequence[nn.Module], place: Tensor) -> Tensors:
    """Return parameters and buffers of the runs' initial models with the runs in front."""
    names = [name for name, _ in [*models[0].named_parameters(), *models[0].named_buffers()]]
    tensors = [dict([*m.named_parameters(), *m.named_buffers()]) for m in models]
    return {name: torch.stack([t[name].detach() for t in tensors])[place] for name in names}


def _close(ours: Tensor, plain: Tensor, tolerance: float) -> bool:
    difference, scale = float((ours.double() - plain.double()).norm()), float(plain.double().norm())
    return not math.isfinite(scale) or difference <= tolerance * scale + tolerance * 1e-3
