"""A task's module as functions of the tensors of all runs.

Shape suffixes: M runs, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from isotherm.core.records import content_hash
from isotherm.engine.dropout import WHOLE_BATCH
from isotherm.engine.evaluation import Tensors
from isotherm.engine.layers.many_runs import for_many_runs
from isotherm.engine.layers.recurrent import weights_left_apart
from isotherm.engine.memory import is_out_of_memory
from isotherm.engine.parameters import ParameterGroups
from isotherm.engine.placed_task import PlacedTask, ghost_layers
from isotherm.engine.programs.gpu import Call
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.reasons import reason_for
from isotherm.errors import UserError
from isotherm.kernels.dispatch import by_kernels, by_matmuls
from isotherm.tasks.identity import module_attributes


class NotVectorisable(Exception):
    """The module cannot be trained as a fleet; the message says why."""

    @classmethod
    def because(cls, error: Exception) -> NotVectorisable:
        """Return the refusal that an error of the module amounts to."""
        return cls(reason_for(error))


class StackedModel:
    """One module that is called with the parameters and buffers of every run.

    Args:
        plan: what is trained.
        module: a template; its own parameters and buffers are not used.
    """

    def __init__(self, plan: StackPlan, module: nn.Module) -> None:
        self._plan, self._placed, self._module = plan, plan.placed, module
        self.is_recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
        self.ghost_layers = ghost_layers(module) if plan.placed.reestimates else {}
        self._shares_batch: bool | None = None  # whether one copy of a batch serves all runs; found out by trying

    def attributes(self) -> str:
        """Return a hash of what the module holds besides parameters and buffers, which may depend on the seed."""
        return content_hash(sorted(module_attributes(self._module).items()))

    def _over_runs(self, function: Callable[..., Any], in_dims: tuple[int | None, ...]) -> Callable[..., Any]:
        """Return a function of one run as one of all runs; of a single run without `vmap`."""
        if not self._plan.is_single:
            vectorised = for_many_runs(vmap(function, in_dims=in_dims))
            if self._plan.unfolds:
                return by_matmuls(vectorised)
            return by_kernels(vectorised) if self._plan.convolves else vectorised

        def single(*arguments: Any) -> Any:
            alone = [
                torch.utils._pytree.tree_map(lambda t: t[0], argument) if dim == 0 else argument
                for argument, dim in zip(arguments, in_dims, strict=True)
            ]
            return torch.utils._pytree.tree_map(lambda t: t.unsqueeze(0), function(*alone))

        return single

    def _over_runs_of_one_batch(
        self, function: Callable[..., Any], in_dims: tuple[int | None, ...]
    ) -> Callable[..., Any]:
        """Return a function of one run as one of all runs that see the same batch, the fourth and fifth argument.

        A module that writes a run's own values into its inputs, as in `x.sub_(self.mean)`, needs a copy for every run.
        """
        shared = self._over_runs(function, in_dims)
        apart = self._over_runs(function, (*in_dims[:3], 0, 0, *in_dims[5:]))

        def by_copies(*arguments: Any) -> Any:
            num = len(next(iter(arguments[0].values())))
            copies = [values.expand(num, *values.shape).clone() for values in arguments[3:5]]
            return apart(*arguments[:3], *copies, *arguments[5:])

        def of_all_runs(*arguments: Any) -> Any:
            if self._shares_batch is not None:
                return (shared if self._shares_batch else by_copies)(*arguments)
            try:
                found = shared(*arguments[:3], *(values.clone() for values in arguments[3:5]), *arguments[5:])
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                found = by_copies(*arguments)  # an error with another reason is raised again
                self._shares_batch = False
            else:
                self._shares_batch = True
            return found

        return of_all_runs

    # -- training ---------------------------------------------------------------------------------------------------

    def step_function(self, weights: ParameterGroups, fixed: Sequence[str], buffers: Sequence[str]) -> Call:
        """Return the training step as a function of tensors: states, x, y, keys, step -> losses, gradients, buffers.

        Parameters come, and their gradients go, in the groups of `weights`; `fixed` and `buffers` are names. The step
        of a micro-batch takes one more argument: the position of its first example in the batch.
        """
        self._module.train()
        in_dims = (0, 0, 0, 0, 0, 0, None) if self._plan.micro_batches.is_whole else (0, 0, 0, 0, 0, 0, None, None)
        gradient = self._over_runs(grad_and_value(self._loss_of_run, has_aux=True), in_dims=in_dims)
        num_groups = len(weights.values)

        def step_function(*tensors: Tensor) -> tuple[Tensor, ...]:
            rest = iter(tensors)
            parameters = weights.parameters([next(rest) for _ in range(num_groups)])
            states = [{name: next(rest) for name in names} for names in (fixed, buffers)]
            gradients, (_, (losses, after)) = gradient(parameters, *states, *rest)
            return losses, *weights.gradients(gradients), *(after[name] for name in buffers)

        return step_function

    def plain_step_function(self, weights: ParameterGroups, fixed: Sequence[str], buffers: Sequence[str]) -> Call:
        """Return the same step of a single run by autograd alone.

        PyTorch runs through the tokens of a recurrent layer in one call then; traced, it is many.
        """
        num_groups = len(weights.values)

        def step_function(*tensors: Tensor) -> tuple[Tensor, ...]:
            self._module.train()  # as it is not traced, evaluations in between leave it in their mode
            rest = iter(tensors)
            parameters_M = weights.parameters([next(rest) for _ in range(num_groups)])
            parameters = {name: p[0].detach().requires_grad_() for name, p in parameters_M.items()}
            held, before = ({name: next(rest)[0] for name in names} for names in (fixed, buffers))
            x, y, keys = (next(rest)[0] for _ in range(3))
            with torch.enable_grad():
                objective, (loss, after) = self._loss_of_run(parameters, held, before, x, y, keys, *rest)
            found = torch.autograd.grad(objective, list(parameters.values()), materialize_grads=True)
            gradients = {name: g.unsqueeze(0) for name, g in zip(parameters, found, strict=True)}
            changed = (after[name].detach().unsqueeze(0) for name in buffers)
            return loss.detach().unsqueeze(0), *weights.gradients(gradients), *changed

        return step_function

    def _loss_of_run(
        self,
        parameters: Tensors,
        fixed: Tensors,
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        keys: Tensor,
        step: Tensor,
        start: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        call = self._call(parameters, fixed, after)
        indices = WHOLE_BATCH if start is None else self._plan.micro_batches.indices(start)
        loss = self._placed.training_loss(
            call, x, y, keys, step, channels_last=self._plan.channels_last, indices=indices
        )
        return loss * self._placed.scale_of_objective(), (loss, after)

    def buffers_after(self, *, shared_batch: bool) -> Callable[..., Tensors]:
        """Return parameters, fixed, buffers, x, y, keys, step -> buffers after a forward pass in training mode.

        Args:
            shared_batch: all runs see one batch; else every run has its own.
        """
        self._module.train()
        if shared_batch:
            return self._over_runs_of_one_batch(self._buffers_of_run, in_dims=(0, 0, 0, None, None, 0, None))
        return self._over_runs(self._buffers_of_run, in_dims=(0, 0, 0, 0, 0, 0, None))

    def _buffers_of_run(
        self, parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor, step: Tensor
    ) -> Tensors:
        after = {name: buffer.clone() for name, buffer in buffers.items()}
        call = self._call(parameters, fixed, after)
        self._placed.training_output(call, x, y, keys, step, channels_last=self._plan.channels_last)
        return after

    # -- evaluation -------------------------------------------------------------------------------------------------

    def scores(self) -> Callable[..., Any]:
        """Return parameters, fixed, buffers, x, y -> loss and metric of every run in evaluation mode."""
        self._module.eval()
        return self._over_runs_of_one_batch(self._scores_of_run, in_dims=(0, 0, 0, None, None))

    def _scores_of_run(self, parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Any:
        return self._placed.evaluation_scores(self._call(parameters, fixed, buffers), x, y)

    def stream_scores(self) -> Callable[..., Any]:
        """Return parameters, fixed, buffers, x, y, state -> loss, metric and state after a part of a sequence."""
        self._module.eval()
        return self._over_runs(self._stream_scores_of_run, in_dims=(0, 0, 0, None, None, 0))

    def _stream_scores_of_run(
        self, parameters: Tensors, fixed: Tensors, buffers: Tensors, x: Tensor, y: Tensor, state: Tensor
    ) -> Any:
        held = {**parameters, **fixed, **buffers}
        named = {name.removeprefix("module."): held[name] for name in held if name.startswith("module.")}

        def call(*arguments: Tensor) -> Any:
            return self._functional(self._inner, named, arguments)

        return self._placed.stream_scores(call, x, y, state)

    def initial_stream_state(self, num_runs: int) -> Tensor:
        """Return the state before the first token of a sequence, for `num_runs` runs."""
        state: Tensor = self._inner.initial_state(1).to(self._placed.device, self._placed.dtype)
        return state.expand(num_runs, *state.shape)

    @property
    def _inner(self) -> Any:
        """The module without the wrapper that carries its state from update to update."""
        return self._module.module

    def _call(self, *tensors: Tensors) -> Callable[..., Any]:
        def call(*arguments: Tensor) -> Any:
            return self._functional(self._module, tensors, arguments)

        return call

    def _functional(self, module: nn.Module, tensors: Any, arguments: tuple[Tensor, ...]) -> Any:
        with weights_left_apart() if self.is_recurrent else nullcontext():
            return functional_call(module, tensors, arguments)


def unused_parameters(
    placed: PlacedTask, module: nn.Module, *, batch: Callable[[], tuple[Tensor, Tensor]], keys: Tensor
) -> set[str]:
    """Return the trainable parameters that the loss does not depend on: plain SGD never touches them.

    Args:
        placed: the task on its device.
        module: freshly made, with its initial parameters.
        batch: returns inputs and targets of one run.
        keys: of that run.
    """
    module.train()
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    try:
        loss = placed.training_loss(module, *batch(), keys, torch.zeros((), dtype=torch.int64, device=placed.device))
        gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    except Exception as error:  # the reference will show what is wrong with the module
        if is_out_of_memory(error) or isinstance(error, UserError):
            raise
        raise NotVectorisable.because(error) from error
    return {name for name, gradient in zip(trainable, gradients, strict=True) if gradient is None}
