"""Gradients of many small batches at fixed parameters, and their squared norms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from isotherm.core.l2 import L2Scope, is_penalised
from isotherm.errors import UserError
from isotherm.tasks.losses import LossFunction
from isotherm.tasks.torch_warnings import without_torch_warnings

Tensors = dict[str, Tensor]

_MEMORY = 2**30  # bytes for the small batches computed at once
_COPIES_OF_GRADIENT = 3  # the gradient, its square, and the backward pass's accumulators
_COPIES_OF_ACTIVATIONS = 3  # saved activations and their gradients
_ROUNDING = {
    torch.float32: 1e-3,
    torch.float64: 1e-7,
}  # relative differences between gradients that rounding may explain


class CoupledExamplesError(UserError):
    """The gradient of a batch is not the mean over its examples: layers couple them or draw random numbers."""


def _plain_output(call: Callable[..., Any], x: Tensor) -> Any:
    return call(x)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Examples:
    """The examples to draw from, and how the model takes them.

    Args:
        num: number of examples.
        read: indices -> inputs and targets.
        output: (module or a stand-in, inputs) -> output.
        scale: factor on the loss.
    """

    num: int
    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    output: Callable[[Callable[..., Any], Tensor], Any] = _plain_output
    scale: float = 1.0


class BatchGradients:
    """Gradients of batches at the parameters of a module, which is copied.

    Shape suffixes: K small batches, B examples of each.

    Args:
        module: in float32 or float64, on the device to compute on.
        loss: (output, target) -> mean over the batch.
        examples: batches are drawn from these.
        is_training: whether the module is in training mode.
        num_at_once: small batches computed at once; by default as many as fit into a GiB.
        l2: coefficient of the L2 penalty, whose gradient is included.
        l2_scope: the parameters it covers.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction,
        examples: Examples,
        *,
        is_training: bool,
        num_at_once: int | None,
        l2: float,
        l2_scope: L2Scope,
    ) -> None:
        named = dict(module.named_parameters())
        self._trainable = {name: p.detach() for name, p in named.items() if p.requires_grad}
        if not self._trainable:
            raise UserError("the model has no trainable parameters, so there is no gradient to measure")
        first = next(iter(self._trainable.values()))
        if first.dtype not in _ROUNDING:
            raise UserError(f"the model is in {first.dtype}; noise is measured in float32 or float64: module.float()")
        self.device, self._dtype = first.device, first.dtype
        self._frozen = {name: p.detach() for name, p in named.items() if not p.requires_grad}
        self._buffers = dict(module.named_buffers())
        self._decay = {name: l2 * p for name, p in self._trainable.items() if is_penalised(p, scope=l2_scope)}
        self._module = copy.deepcopy(module).train(is_training)
        self._loss, self._examples = loss, examples
        self._num_at_once = num_at_once

    @without_torch_warnings()
    def check(self, index_KB: NDArray[np.int64]) -> None:
        """Try two small batches, raise a UserError if they cannot be measured, and choose `num_at_once`."""
        x_2B, y_2B = self._read(index_KB[:2])
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            before = _generator_states(self.device)
            try:
                if self._num_at_once is None:
                    self._num_at_once = self._num_that_fit(x_2B.clone()[0], y_2B.clone()[0])
                apart, _ = self._of_batches(x_2B.clone(), y_2B.clone())
                joint, _ = self._of_batches(x_2B.flatten(0, 1)[None], y_2B.flatten(0, 1)[None])
            except UserError:
                raise
            except Exception as error:
                raise UserError(
                    f"the gradient of a batch cannot be computed: {type(error).__name__}: {error}; use "
                    "num_at_once=1 for a model that torch.func.vmap does not support"
                ) from error
            after = _generator_states(self.device)
        if not all(map(torch.equal, before, after)):
            raise CoupledExamplesError(
                "the model draws random numbers in this mode (dropout, noise), so that its gradient is not that of the "
                "examples alone",
                advice="use mode='evaluate', or take the noise out of the model",
            )
        size = sum(float(gradient.square().sum()) for gradient in apart.values())
        gap = sum(float((joint[name][0] - gradient.mean(dim=0)).square().sum()) for name, gradient in apart.items())
        if math.sqrt(gap) > _ROUNDING[self._dtype] * math.sqrt(size):
            raise CoupledExamplesError(
                "the gradient of two batches together is not the mean of theirs: either the loss is no mean over the "
                "batch, or the model couples the examples of a batch; return a mean, or try mode='evaluate'"
            )

    @without_torch_warnings()
    def squared_norms(self, index_KB: NDArray[np.int64]) -> tuple[float, float]:
        """Return the mean squared gradient norm of small batches, and that of their union."""
        assert self._num_at_once is not None  # by `check`
        total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in self._trainable.items()}
        small = 0.0
        for start in range(0, len(index_KB), self._num_at_once):
            gradients, losses = self._of_batches(*self._read(index_KB[start : start + self._num_at_once]))
            _refuse_non_finite(losses)
            for name, gradient in gradients.items():
                if name in self._decay:
                    gradient = gradient + self._decay[name]
                small += float(gradient.square().sum(dtype=torch.float64))
                total[name] += gradient.sum(dim=0, dtype=torch.float64)
        large = sum(float(gradient.square().sum()) for gradient in total.values())
        return small / len(index_KB), large / len(index_KB) ** 2

    def _read(self, index_KB: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets whose first two dimensions are those of the index."""
        pair = self._examples.read(torch.from_numpy(index_KB.reshape(-1)))
        x, y = (t.to(self.device, self._dtype if t.is_floating_point() else t.dtype) for t in pair)
        return x.reshape(*index_KB.shape, *x.shape[1:]), y.reshape(*index_KB.shape, *y.shape[1:])

    def _of_batches(self, x_KB: Tensor, y_KB: Tensor) -> tuple[Tensors, Tensor]:
        """Return the gradients of batches, with leading dimension K, and the losses (K,); x and y may change."""
        num = len(x_KB)
        of_one = grad_and_value(self._objective)
        buffers_K = {name: buffer.expand(num, *buffer.shape).clone() for name, buffer in self._buffers.items()}
        if self._num_at_once != 1:
            mapped = vmap(of_one, in_dims=(None, 0, 0, 0), randomness="different")
            return cast(tuple[Tensors, Tensor], mapped(self._trainable, buffers_K, x_KB, y_KB))
        found = [
            of_one(self._trainable, {name: buffer[k] for name, buffer in buffers_K.items()}, x_KB[k], y_KB[k])
            for k in range(num)
        ]
        gradients = {name: torch.stack([gradient[name] for gradient, _ in found]) for name in self._trainable}
        return gradients, torch.stack([value for _, value in found])

    def _objective(self, trainable: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> Tensor:
        tensors = {**trainable, **self._frozen, **buffers}
        output = self._examples.output(lambda *arguments: functional_call(self._module, tensors, arguments), x)
        return self._loss(output, y) * self._examples.scale

    def _num_that_fit(self, x: Tensor, y: Tensor) -> int:
        """Return how many small batches like this one fit into memory at once, at least one."""
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        trainable = {name: p.clone().requires_grad_() for name, p in self._trainable.items()}
        own = {p.untyped_storage().data_ptr() for p in (*trainable.values(), *self._frozen.values())}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self._objective(trainable, {name: buffer.clone() for name, buffer in self._buffers.items()}, x, y)
        of_gradient = sum(p.nbytes for p in self._trainable.values())
        of_activations = sum(size for pointer, size in kept.items() if pointer not in own)
        each = _COPIES_OF_GRADIENT * of_gradient + _COPIES_OF_ACTIVATIONS * of_activations
        return max(1, _MEMORY // each)


def _generator_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _refuse_non_finite(losses: Tensor) -> None:
    is_finite = torch.isfinite(losses)
    if not bool(is_finite.all()):
        raise UserError(
            f"the loss of a batch is {float(losses[~is_finite][0])} at these parameters; check the initialisation and "
            "the scale of the inputs, or measure at an earlier step"
        )
