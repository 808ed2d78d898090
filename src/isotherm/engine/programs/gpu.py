"""A fleet's traced step as its update calls it, and the update made of it.

Shape suffixes: M runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx

from isotherm.engine.graph.pipeline import rewrite_for_gpu
from isotherm.engine.parameters import Settings, Weights, gradient_of_factors
from isotherm.kernels.ops.registry import register_with_compiler

Call = Callable[..., tuple[Tensor, ...]]
# An update in place of tensors alone; it gives the losses (M,).
Update = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A step on tensors alone, and how it wants and gives the matrices among its parameters.

    Args:
        call: blocks of parameters, fixed ones, buffers, batch -> losses, gradients of blocks, buffers, right factors.
        halved: places of the blocks that it reads rounded.
        factored: places of the blocks whose gradients it gives as factors, the left one in place of the gradient.
    """

    call: Call
    halved: tuple[int, ...] = ()
    factored: tuple[int, ...] = ()

    def rounded(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return new copies of the blocks that are read rounded."""
        return [values[place].to(torch.bfloat16) for place in self.halved]

    def gradients(
        self, values: Sequence[Tensor], fixed_M: Sequence[Tensor], buffers_M: Sequence[Tensor], *batch: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return losses (M,), gradients of the blocks, and buffers after the forward pass.

        Args:
            values: the blocks.
            fixed_M: parameters that are not trained.
            buffers_M: before the forward pass.
            batch: inputs, targets, the runs' keys and the number of the update.
        """
        found = self.call(*_with_copies(values, self.halved, self.rounded(values)), *fixed_M, *buffers_M, *batch)
        losses_M, *results = (result.clone() for result in found)
        gradients, after, rights = _cut(results, len(values), len(buffers_M))
        for place, right in zip(self.factored, rights, strict=True):
            gradients[place] = gradient_of_factors(gradients[place], right).to(values[place].dtype)
        return losses_M, gradients, after


def gpu_program(traced: fx.GraphModule, weights: Weights, *, takes_halves: bool, takes_factors: bool) -> Program:
    """Return a traced step rewritten for a GPU.

    Args:
        traced: the step, changed in place.
        weights: where its parameters lie.
        takes_halves: whether matrices may come rounded.
        takes_factors: whether gradients of matrices may go as factors, for which there must be kernels, and nothing is
            clipped; then those of biases are summed at once too, and units of many rows are operations of their own.
    """
    step = rewrite_for_gpu(traced, weights.matrices if takes_halves else (), has_kernels=takes_factors)
    return Program(call=traced.forward, halved=tuple(step.bfloat16_groups), factored=tuple(step.factored_groups))


def update_of(program: Program, weights: Weights, *, is_compiled: bool) -> Update:
    """Return the update of all runs."""
    call, halved, factored = program.call, program.halved, program.factored

    def make(
        values: Sequence[Tensor],
        velocities: Sequence[Tensor],
        halves: Sequence[Tensor],
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
        """Make the update, but for the blocks whose gradients come as factors; return the losses and these."""
        inputs, targets = batch if index_MB is None else (batch[0][index_MB], batch[1][index_MB])
        given = _with_copies(values, halved, halves)
        losses_M, *others = call(*given, *fixed_M, *buffers_M, inputs, targets, key_M, step)
        gradients, after, rights = _cut(others, len(values), len(buffers_M))
        weights.apply(values, velocities, gradients, learning_rate_M1, num_clipped_M1, settings, factored=factored)
        for place, copy in zip(halved, halves, strict=True):
            if place not in factored:
                copy.copy_(values[place])
        for old, new in zip(buffers_M, after, strict=True):
            old.copy_(new)
        return losses_M, [(gradients[place], right) for place, right in zip(factored, rights, strict=True)]

    advance: Callable[..., tuple[Tensor, list[tuple[Tensor, Tensor]]]] = make
    if is_compiled:
        register_with_compiler()
        advance = torch.compile(_with_own_code(make), dynamic=False, fullgraph=True)

    def update(
        values: Sequence[Tensor],
        velocities: Sequence[Tensor],
        halves: Sequence[Tensor],
        *others: Any,
        learning_rate_M1: Tensor,
        num_clipped_M1: Tensor,
        settings: Settings,
    ) -> Tensor:
        losses_M, pairs = advance(values, velocities, halves, *others, learning_rate_M1, num_clipped_M1, settings)
        for place, pair in zip(factored, pairs, strict=True):
            state = values[place], velocities[place], halves[halved.index(place)]
            weights.apply_factors(place, *state, pair, learning_rate_M1, settings)
        return losses_M

    return update


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that shares its code with no other: a compiler makes only eight programs of the same code."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


def _cut(results: list[Tensor], first: int, second: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return so many results, so many more, and the rest."""
    return results[:first], results[first : first + second], results[first + second :]


def _with_copies(values: Sequence[Tensor], places: Sequence[int], copies: Sequence[Tensor]) -> list[Tensor]:
    """Return values with copies at some places."""
    given = list(values)
    for place, copy in zip(places, copies, strict=True):
        given[place] = copy
    return given
