"""A fleet's traced step as its update calls it, and the update made of it.

Shape suffixes: M runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.pipeline import rewrite_for_gpu
from isotherm.engine.parameters import ParameterGroups, gradient_of_factors
from isotherm.engine.update_rules import Settings
from isotherm.kernels.ops.registry import register_with_compiler

Call = Callable[..., tuple[Tensor, ...]]
# An update in place of tensors alone; it returns the losses (M,).
Update = Callable[..., Tensor]
# Losses (M,), gradients of the groups, buffers after the forward pass, right factors.
Gradients = Callable[..., tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A step on tensors alone, and in what form it reads parameter groups and returns their gradients.

    Args:
        call: parameter groups, fixed parameters, buffers, batch -> losses, gradients of the groups, buffers, right
            factors.
        bfloat16_groups: indices of the groups that it reads in bfloat16.
        factored_groups: indices of the groups whose gradients it returns as factors, the left one in place of the
            gradient.
    """

    call: Call
    bfloat16_groups: tuple[int, ...] = ()
    factored_groups: tuple[int, ...] = ()

    def bfloat16_copies(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return new copies of the groups that are read in bfloat16."""
        return [values[index].to(torch.bfloat16) for index in self.bfloat16_groups]

    def gradients(
        self, values: Sequence[Tensor], fixed_M: Sequence[Tensor], buffers_M: Sequence[Tensor], *batch: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return losses (M,), gradients of the groups, and buffers after the forward pass.

        Args:
            values: of the groups.
            fixed_M: parameters that are not trained.
            buffers_M: before the forward pass.
            batch: inputs, targets, the runs' keys and the number of the update.
        """
        given = _with_copies(values, self.bfloat16_groups, self.bfloat16_copies(values))
        found = self.call(*given, *fixed_M, *buffers_M, *batch)
        losses_M, *results = (result.clone() for result in found)
        gradients, after, rights = _split(results, len(values), len(buffers_M))
        for index, right in zip(self.factored_groups, rights, strict=True):
            gradients[index] = gradient_of_factors(gradients[index], right).to(values[index].dtype)
        return losses_M, gradients, after


def gpu_program(
    traced: fx.GraphModule, groups: ParameterGroups, *, reads_bfloat16: bool, returns_factors: bool
) -> Program:
    """Return a traced step rewritten for a GPU.

    Args:
        traced: the step, changed in place.
        groups: its parameters.
        reads_bfloat16: whether matrices may be given in bfloat16.
        returns_factors: whether gradients of matrices may be returned as factors. This takes kernels, and an update
            that does not clip; all passes that need kernels depend on it.
    """
    step = rewrite_for_gpu(traced, groups.matrices if reads_bfloat16 else (), has_kernels=returns_factors)
    return Program(
        call=traced.forward,
        bfloat16_groups=tuple(step.bfloat16_groups),
        factored_groups=tuple(step.factored_groups),
    )


def update_of(program: Program, groups: ParameterGroups, *, is_compiled: bool) -> Update:
    """Return the update of all runs."""
    compute, copied, factored = _gradients_of(program), program.bfloat16_groups, program.factored_groups

    def make(
        values: Sequence[Tensor],
        moments: Sequence[Tensor],
        copies: Sequence[Tensor],
        fixed_M: Sequence[Tensor],
        buffers_M: Sequence[Tensor],
        batch: tuple[Tensor, Tensor],
        index_MB: Tensor | None,
        key_M: Tensor,
        step: Tensor,
        learning_rate_M1: Tensor,
        num_clipped_M1: Tensor,
        settings: Settings,
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Make the update, but for the groups whose gradients are factored; return the losses and the factors."""
        found = compute(values, copies, fixed_M, buffers_M, batch, index_MB, key_M, step)
        losses_M, gradients, after, rights = found
        groups.apply(
            values, moments, gradients, learning_rate_M1, num_clipped_M1, settings, step=step, factored=factored
        )
        for index, copy in zip(copied, copies, strict=True):
            if index not in factored:
                copy.copy_(values[index])
        for old, new in zip(buffers_M, after, strict=True):
            old.copy_(new)
        return losses_M, [(gradients[index], right) for index, right in zip(factored, rights, strict=True)]

    advance: Callable[..., tuple[Tensor, list[tuple[Tensor, Tensor]]]] = _compiled(make) if is_compiled else make

    def update(
        values: Sequence[Tensor],
        moments: Sequence[Tensor],
        copies: Sequence[Tensor],
        *others: Any,
        learning_rate_M1: Tensor,
        num_clipped_M1: Tensor,
        settings: Settings,
    ) -> Tensor:
        losses_M, pairs = advance(values, moments, copies, *others, learning_rate_M1, num_clipped_M1, settings)
        for index, pair in zip(factored, pairs, strict=True):
            (velocity,) = groups.moments_of(index, moments)
            state = values[index], velocity, copies[copied.index(index)]
            groups.apply_factors(index, *state, pair, learning_rate_M1, settings)
        return losses_M

    return update


def gradients_of(program: Program, *, is_compiled: bool) -> Gradients:
    """Return how the gradients of a micro-batch are computed, before anything is updated."""
    found = _gradients_of(program)
    return _compiled(found) if is_compiled else found


def _gradients_of(program: Program) -> Gradients:
    call, copied = program.call, program.bfloat16_groups

    def found(
        values: Sequence[Tensor],
        copies: Sequence[Tensor],
        fixed_M: Sequence[Tensor],
        buffers_M: Sequence[Tensor],
        batch: tuple[Tensor, Tensor],
        index_MB: Tensor | None,
        *others: Tensor,
    ) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
        """Return losses (M,), gradients of the groups, buffers after the forward pass, and right factors."""
        inputs, targets = batch if index_MB is None else (batch[0][index_MB], batch[1][index_MB])
        given = _with_copies(values, copied, copies)
        losses_M, *results = call(*given, *fixed_M, *buffers_M, inputs, targets, *others)
        return losses_M, *_split(results, len(values), len(buffers_M))

    return found


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    register_with_compiler()
    return _silent_at_first(torch.compile(_with_own_code(function), dynamic=False, fullgraph=True))


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that shares its code with no other: a compiler makes only eight programs of the same code."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def _silent_at_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose first call shows no warnings: it compiles, and they concern PyTorch's compiler alone."""
    is_compiled = False

    def call(*arguments: Any) -> Any:
        nonlocal is_compiled
        if is_compiled:
            return function(*arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*arguments)
        is_compiled = True
        return result

    return call


def _split(results: list[Tensor], first: int, second: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return so many results, so many more, and the rest."""
    return results[:first], results[first : first + second], results[first + second :]


def _with_copies(values: Sequence[Tensor], indices: Sequence[int], copies: Sequence[Tensor]) -> list[Tensor]:
    """Return values with copies in place of some."""
    given = list(values)
    for index, copy in zip(indices, copies, strict=True):
        given[index] = copy
    return given
