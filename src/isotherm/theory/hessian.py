"""The Hessian of a training objective over fixed examples, through Hessian-vector products.

Everything is a sum over examples, computed in chunks; the chunk size changes nothing but memory. Nothing falls back to
another method silently.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch import Tensor, nn
from torch.func import functional_call

from isotherm.core.l2 import L2Scope, is_penalised
from isotherm.core.statistics import Floats
from isotherm.errors import UserError, nearest
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.losses import LossFunction
from isotherm.tasks.seeding import derive, seeded
from isotherm.tasks.task import Task
from isotherm.tasks.torch_warnings import without_torch_warnings
from isotherm.theory.exact_arithmetic import exact_arithmetic
from isotherm.theory.second_derivative import Tensors, failing_layers, second_derivative

Mode = Literal["train", "eval"]
Precision = Literal["float32", "float64"]
Differentiation = Literal["reverse_over_reverse", "forward_over_reverse", "finite_difference"]

# Default number of examples computed at once; bounds the memory of a Hessian-vector product.
EXAMPLES_AT_ONCE = 512


class NotFiniteError(UserError):
    """A second derivative is infinite or NaN at these parameters."""


class Hessian:
    """The Hessian of a mean loss over fixed examples; all parameters form one vector.

    Tied parameters count once; frozen and integer parameters are constants. The module is copied, and its buffers,
    including running statistics, stay as they are.

    Args:
        module: called with a chunk of inputs.
        loss: (output, target) -> mean over examples.
        inputs: the examples, along the first dimension.
        targets: one per input.
        mode: "train" normalises by batch statistics, over ghost batches if the layer has them, else over all examples
            at once; dropout is refused, as every pass would have another loss. "eval" normalises by running statistics
            and disables dropout.
        precision: of the computation; sums over chunks are in float64 in any case.
        examples_at_once: bounds memory. By default `EXAMPLES_AT_ONCE`, rounded to whole ghost batches.
        differentiation: how second derivatives are taken: reverse over reverse, forward over reverse, or central
            differences of gradients, which work for every trainable layer, but only with smooth layers and in float64:
            a ReLU that switches within the step looks like an enormous curvature.
        l2: coefficient of the penalty (l2/2)‖w‖², which is part of the objective: adds l2 to the diagonal.
        l2_scope: the parameters it covers, "weights" (two dimensions or more) or "all".
        unroll: for sequences as in `Task`: examples are windows of this many tokens, each read from the module's
            `initial_state`, and the loss is summed over a window.
        device: to compute on.

    Raises:
        UserError: there is nothing to differentiate, or the loss is not deterministic and finite.

    >>> from isotherm.tasks.losses import half_squared_error
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> line = nn.Linear(2, 1, bias=False)
    >>> hessian = Hessian(line, half_squared_error, inputs=x, targets=torch.zeros(2, 1), mode="eval")
    >>> hessian.product(np.array([1.0, 1.0])).tolist()  # XᵀX/N
    [0.5, 4.5]
    """

    @without_torch_warnings()
    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction,
        *,
        inputs: Tensor,
        targets: Tensor,
        mode: Mode,
        precision: Precision = "float64",
        examples_at_once: int | None = None,
        differentiation: Differentiation = "reverse_over_reverse",
        l2: float = 0.0,
        l2_scope: L2Scope = "weights",
        unroll: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        _check_choice("mode", mode, Mode)
        _check_choice("precision", precision, Precision)
        _check_choice("differentiation", differentiation, Differentiation)
        _check_choice("l2_scope", l2_scope, L2Scope)
        if differentiation == "finite_difference" and precision != "float64":
            raise UserError(
                f"differentiation='finite_difference' in precision={precision!r} would measure rounding errors; "
                "use 'float64'"
            )
        if not (math.isfinite(l2) and l2 >= 0):
            raise UserError(f"l2={l2} is not a number >= 0; use 0 for no penalty")
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise UserError(
                f"{len(inputs)} inputs and {len(targets)} targets; give as many targets as inputs, and at least one"
            )
        if unroll is not None and not hasattr(module, "initial_state"):
            raise UserError("with unroll the module needs a method initial_state(batch_size) that returns a tensor")
        self.mode, self.differentiation = mode, differentiation
        self._dtype = torch.float64 if precision == "float64" else torch.float32
        self._device = torch.device(device)
        self._loss, self._inputs, self._targets, self._unroll = loss, inputs, targets, unroll
        names = _trainable(module)
        self._module = copy.deepcopy(module).to(self._device, self._dtype).train(mode == "train").requires_grad_(False)
        own = dict(self._module.named_parameters())
        self._parameters: Tensors = {name: own[name] for name in names}
        self._buffers: Tensors = dict(self._module.named_buffers())
        self._sizes = [parameter.numel() for parameter in self._parameters.values()]
        self._l2_P = l2 * np.concatenate(
            [np.full(p.numel(), float(is_penalised(p, scope=l2_scope))) for p in self._parameters.values()]
        )
        self._refuse_dropout()
        self.group_size = self._group_size(len(inputs))
        self.examples_at_once = self._checked_examples_at_once(examples_at_once)
        self._product_of_all: Callable[[Tensors], Tensors] | None = None
        self.num_products = 0
        self._check()

    # -- sizes and names --------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """The number of trainable scalars: the length of a vector."""
        return sum(self._sizes)

    @property
    def num_examples(self) -> int:
        """The number of examples that the loss averages over."""
        return len(self._inputs)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in their order within a vector."""
        return tuple(self._parameters)

    def at(
        self,
        parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        buffers: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None,
    ) -> Hessian:
        """Return the Hessian of the same objective at other parameters.

        Args:
            parameters: by name, e.g. `module.named_parameters()`; those that are not trained may be left out.
            buffers: by name; needed in "eval" mode if a layer has running statistics.
        """
        given = dict(parameters)
        if buffers is None and self.mode == "eval" and (layers := _running_layers(self._module)):
            raise UserError(
                f"in mode 'eval' {_listed(layers)} normalise by running statistics, which change as the parameters do; "
                "give buffers=module.named_buffers() too"
            )
        moved = copy.copy(self)
        moved._parameters = {name: self._placed(given, name, like) for name, like in self._parameters.items()}
        if buffers is not None:
            stored = dict(buffers)
            moved._buffers = {name: self._placed(stored, name, like) for name, like in self._buffers.items()}
        moved._product_of_all = None
        moved.num_products = 0
        return moved

    def over(self, indices: NDArray[np.int64]) -> Hessian:
        """Return the Hessian over a subset of the examples; with ghost batches, over whole groups."""
        index = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        if len(index) == 0:
            raise UserError("the subset is empty; give at least one example")
        part = copy.copy(self)
        part._inputs, part._targets = self._inputs[index], self._targets[index]
        part.group_size = part._group_size(len(index))
        if part.group_size != self.group_size:
            raise UserError(
                f"{len(index)} examples do not make whole groups of {self.group_size} that share their statistics"
            )
        part._product_of_all = None
        part.num_products = 0
        return part

    # -- values -----------------------------------------------------------------------------------------------------

    @without_torch_warnings()
    def objective(self) -> float:
        """Return the loss over all examples, penalty included."""
        with torch.no_grad(), exact_arithmetic(self._device):
            mean = math.fsum(
                float(self._chunk_loss(self._parameters, x, y)) * len(y) / self.num_examples for x, y in self._chunks()
            )
        penalised = self._l2_P > 0
        with np.errstate(over="ignore"):  # a diverging run
            return mean + 0.5 * float(self._l2_P[penalised] @ self.point()[penalised] ** 2)

    @without_torch_warnings()
    def gradient(self) -> Floats:
        """Return the gradient of the objective."""
        with exact_arithmetic(self._device):
            return self._gradient_at(self._parameters) + self._l2_P * self.point()

    def point(self) -> Floats:
        """Return the parameters as one vector."""
        return self._flat(self._parameters)

    @without_torch_warnings()
    def product(self, vector: Floats) -> Floats:
        """Return the Hessian times a vector, shape (num_parameters,)."""
        flat = np.asarray(vector, dtype=np.float64).reshape(-1)
        if len(flat) != self.num_parameters:
            raise ValueError(f"a vector of {len(flat)} numbers for {self.num_parameters} parameters")
        self.num_products += 1
        with exact_arithmetic(self._device):
            curved = self._difference(flat) if self.differentiation == "finite_difference" else self._derivative(flat)
        if not np.isfinite(curved).all():
            raise NotFiniteError(
                f"the Hessian of {self._where(curved)} is not finite at these parameters; look for a root, a norm or a "
                "logarithm at zero"
            )
        return curved + self._l2_P * flat

    def operator(self) -> LinearOperator[np.float64]:
        """Return the Hessian as a SciPy linear operator."""
        shape = (self.num_parameters, self.num_parameters)
        return LinearOperator(shape, matvec=self.product, rmatvec=self.product, dtype=np.float64)

    # -- second derivatives -----------------------------------------------------------------------------------------

    def _derivative(self, flat: Floats) -> Floats:
        tangent = self._unflat(flat)
        if self.examples_at_once >= self.num_examples:
            if self._product_of_all is None:  # with one chunk, whatever does not depend on the vector is computed once
                ((x, y),) = self._chunks()
                self._product_of_all = self._product_over(x, y)
            return self._flat(self._product_of_all(tangent))
        total = np.zeros(self.num_parameters)
        for x, y in self._chunks():
            total += self._flat(self._product_over(x, y)(tangent)) * (len(y) / self.num_examples)
        return total

    def _product_over(self, x: Tensor, y: Tensor) -> Callable[[Tensors], Tensors]:
        """Return the Hessian-vector product of a chunk as a function of the vector."""
        assert self.differentiation != "finite_difference"  # finite differences are taken elsewhere
        function = partial(self._chunk_loss, x=x, y=y)
        return second_derivative(function, self._parameters, differentiation=self.differentiation)

    def _difference(self, flat: Floats) -> Floats:
        """Return central differences of the gradient, with a step that balances truncation and rounding."""
        length = float(np.linalg.norm(flat))
        if length == 0:
            return np.zeros(self.num_parameters)
        largest = max(float(parameter.abs().max()) for parameter in self._parameters.values())
        step = float(np.finfo(np.float64).eps) ** (1 / 3) * (1.0 + largest)
        shift = self._unflat(flat * (step / length))
        ahead, behind = (
            self._gradient_at({name: value + sign * shift[name] for name, value in self._parameters.items()})
            for sign in (1, -1)
        )
        return np.asarray((ahead - behind) * (length / (2 * step)))

    def _gradient_at(self, parameters: Tensors) -> Floats:
        """Return the gradient of the mean loss by plain autograd, which every trainable layer supports."""
        total = np.zeros(self.num_parameters)
        for x, y in self._chunks():
            leaves = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
            with torch.enable_grad():
                loss = self._chunk_loss(leaves, x, y)
            found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            total += self._flat(dict(zip(leaves, found, strict=True))) * (len(y) / self.num_examples)
        return total

    # -- chunks -----------------------------------------------------------------------------------------------------

    def _chunks(self) -> Iterable[tuple[Tensor, Tensor]]:
        for start in range(0, self.num_examples, self.examples_at_once):
            yield self._chunk(start, start + self.examples_at_once)

    def _chunk(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        x, y = self._inputs[start:stop], self._targets[start:stop]
        return self._moved(x), self._moved(y)

    def _moved(self, values: Tensor) -> Tensor:
        return values.to(self._device, self._dtype if values.is_floating_point() else values.dtype)

    def _output(self, parameters: Tensors, x: Tensor) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}  # a pass updates running statistics
        if self._unroll is None:
            output: Tensor = functional_call(self._module, (parameters, buffers), (x.clone(),))
            return output
        state = self._moved(self._module.initial_state(len(x)))  # type: ignore[operator]
        output, _ = functional_call(self._module, (parameters, buffers), (x.clone(), state))
        return output

    def _chunk_loss(self, parameters: Tensors, x: Tensor, y: Tensor) -> Tensor:
        loss = self._loss(self._output(parameters, x), y.clone())  # copies: chunks lie in the memory of the data
        return loss if self._unroll is None else loss * self._unroll

    def _flat(self, tensors: Tensors) -> Floats:
        flat = torch.cat([tensors[name].detach().reshape(-1) for name in self._parameters])
        return np.asarray(flat.double().cpu().numpy())

    def _unflat(self, flat: Floats) -> Tensors:
        parts = torch.split(torch.tensor(flat, device=self._device, dtype=self._dtype), self._sizes)
        return {name: part.view(p.shape) for (name, p), part in zip(self._parameters.items(), parts, strict=True)}

    def _placed(self, given: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
        if name not in given:
            raise UserError(f"no value is given for {name!r}; {nearest(name, given)}")
        value = given[name]
        if value.shape != like.shape or value.is_floating_point() != like.is_floating_point():
            raise UserError(
                f"{name!r} is {value.dtype} of shape {tuple(value.shape)}, not numbers like {like.dtype} of shape "
                f"{tuple(like.shape)}; give the values of the module that the Hessian was made with"
            )
        return value.detach().to(self._device, like.dtype, copy=True)

    # -- checks -----------------------------------------------------------------------------------------------------

    def _refuse_dropout(self) -> None:
        kind = nn.modules.dropout._DropoutNd
        layers = [n for n, part in self._module.named_modules() if isinstance(part, kind) and part.p > 0]
        if self.mode == "train" and layers:
            raise UserError(
                f"in mode 'train' the dropout in {_listed(layers)} changes the loss with every pass, so that it has "
                "no Hessian",
                advice="use mode='eval', or a drop probability of 0",
            )

    def _group_size(self, num_examples: int) -> int:
        """Return how many consecutive examples share statistics: 1, a ghost batch, or all of them."""
        if self.mode == "eval":
            return 1
        parts = list(self._module.modules())
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts):
            return num_examples
        sizes = [part.checked_ghost_size(num_examples) for part in parts if isinstance(part, GhostBatchNorm2d)]
        return math.lcm(*sizes)

    def _checked_examples_at_once(self, given: int | None) -> int:
        if given is None:
            return max(self.group_size, EXAMPLES_AT_ONCE // self.group_size * self.group_size)
        if given < 1:
            raise UserError(f"examples_at_once={given} is not positive; use 1 or more")
        if given < self.num_examples and given % self.group_size:
            raise UserError(
                f"examples_at_once={given} would cut groups of {self.group_size} examples that share their statistics",
                advice=f"use a multiple of {self.group_size}, or mode='eval'",
            )
        return given

    def _check(self) -> None:
        """Raise a UserError if the loss is not finite, scalar, deterministic, a mean, and twice differentiable."""
        x, y = self._chunk(0, self.examples_at_once)
        with torch.no_grad(), seeded(0, "curvature"):
            first, second = (self._chunk_loss(self._parameters, x, y) for _ in range(2))
        if not isinstance(first, Tensor) or first.ndim != 0:
            shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
            raise UserError(f"the loss must return a scalar tensor, the mean over the examples, not {shape}")
        if not math.isfinite(value := self.objective()):
            raise UserError(f"the loss is {value}{self._blame()}; curvature needs a finite loss to start from")
        if not self._are_close(first, second):
            raise UserError(
                f"the same examples gave a loss of {float(first)} and then of {float(second)}: the module draws random "
                "numbers (dropout as a function?) or counts its calls",
                advice="use mode='eval', or fix what it draws",
            )
        if self.examples_at_once < self.num_examples:
            self.refuse_coupled(self.examples_at_once)
        try:
            self.over(np.arange(len(y))).product(np.random.default_rng(0).standard_normal(self.num_parameters))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            failing = self._failing_layers(x, y)
            if not failing:
                raise
            others = [way for way in get_args(Differentiation) if way != self.differentiation]
            raise UserError(
                f"{_listed(failing)} cannot be differentiated twice by {self.differentiation}: "
                f"{str(error).strip().splitlines()[0]}",
                advice=f"try differentiation={others[0]!r} or {others[1]!r}",
            ) from error

    def _failing_layers(self, x: Tensor, y: Tensor) -> list[str]:
        if self.differentiation == "finite_difference":
            return []
        return failing_layers(
            self._module,
            partial(self._output, self._parameters, x),
            lambda output: self._loss(output, y),
            differentiation=self.differentiation,
        )

    def refuse_coupled(self, num: int) -> None:
        """Raise a UserError if the loss over `num` examples is not the mean over its parts."""
        first, both = self._chunk(0, num), self._chunk(0, 2 * num)
        second = self._chunk(num, 2 * num)
        with torch.no_grad():
            losses = [self._chunk_loss(self._parameters, x, y).double() for x, y in (first, second, both)]
        shares = [len(y) / len(both[1]) for _, y in (first, second)]
        apart = losses[0] * shares[0] + losses[1] * shares[1]
        if not self._are_close(apart, losses[2]):
            raise UserError(
                f"the loss of {len(both[1])} examples is {float(losses[2])}, but {float(apart)} as the mean over its "
                "parts: the loss is not a mean over examples, or a layer mixes them; give a mean, or use "
                f"examples_at_once={self.num_examples}"
            )

    def _are_close(self, first: Tensor, second: Tensor) -> bool:
        tolerance = 1e-9 if self._dtype == torch.float64 else 1e-4
        return math.isclose(float(first), float(second), rel_tol=tolerance, abs_tol=tolerance**2)

    def _blame(self) -> str:
        bad = [name for name, value in self._parameters.items() if not bool(torch.isfinite(value).all())]
        return f", as parameter {bad[0]!r} is not finite" if bad else ""

    def _where(self, curved: Floats) -> str:
        names = np.repeat(np.array(self.names), self._sizes)
        return f"parameter {str(names[~np.isfinite(curved)][0])!r}"


def hessian_of_task(
    task: Task,
    module: nn.Module,
    *,
    mode: Mode,
    num_examples: int | None = None,
    subset_seed: int = 0,
    l2: float | None = None,
    precision: Precision = "float64",
    examples_at_once: int | None = None,
    differentiation: Differentiation = "reverse_over_reverse",
    device: torch.device | str = "cpu",
) -> Hessian:
    """Return the Hessian of a task's objective, over training examples drawn once, without augmentation.

    Args:
        task: gives data, transform, loss and penalty.
        module: the task's model with the weights in question, e.g. `seeding.initial_model(task.model, seed=0)`.
        mode: as for `Hessian`, like the other arguments below.
        num_examples: drawn without replacement (windows, for sequences); by default all.
        subset_seed: equal seeds draw equal examples.
        l2: coefficient of the penalty; by default the task's.
        precision: of the computation.
        examples_at_once: bounds memory.
        differentiation: how second derivatives are taken.
        device: to compute on.
    """
    inputs, targets = task.train
    available = len(inputs) // (task.unroll or 1)
    num = available if num_examples is None else num_examples
    if not 1 <= num <= available:
        raise UserError(f"num_examples={num} of task {task.name!r}; it has {available} to draw from")
    drawn = np.random.default_rng(derive(subset_seed, "curvature subset")).permutation(available)[:num]
    if task.unroll is not None:
        drawn = drawn[:, None] * task.unroll + np.arange(task.unroll)
    index = torch.from_numpy(drawn)
    x, y = inputs[index] if isinstance(inputs, Tensor) else inputs.fetch(drawn), targets[index]
    if task.transform is not None:
        x, y = task.transform.evaluate(x), task.transform.targets(y)
    try:
        return Hessian(
            module,
            task.loss_function,
            inputs=x,
            targets=y,
            mode=mode,
            precision=precision,
            examples_at_once=examples_at_once,
            differentiation=differentiation,
            l2=task.l2 if l2 is None else l2,
            l2_scope=task.l2_scope,
            unroll=task.unroll,
            device=device,
        )
    except UserError as error:
        raise UserError(f"task {task.name!r}: {error.reason}", advice=error.advice) from error


def _check_choice(name: str, value: str, kind: Any) -> None:
    if value not in get_args(kind):
        raise UserError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, get_args(kind)))}")


def _trainable(module: nn.Module) -> list[str]:
    """Return the names of the parameters to differentiate with respect to, or raise a UserError if there are none."""
    named = dict(module.named_parameters())
    names = [name for name, parameter in named.items() if parameter.requires_grad]
    if not names:
        whole = sum(not (p.is_floating_point() or p.is_complex()) for p in named.values())
        raise UserError(
            f"none of the module's {len(named)} parameters is trainable ({whole} are integers, the others frozen); "
            "set requires_grad on at least one"
        )
    for name in names:
        if named[name].is_complex():
            raise UserError(f"parameter {name!r} is {named[name].dtype}", advice="use two real parameters instead")
    return names


def _running_layers(module: nn.Module) -> list[str]:
    kinds = (nn.modules.batchnorm._NormBase, GhostBatchNorm2d)
    parts = ((name, part) for name, part in module.named_modules() if isinstance(part, kinds))
    return [f"layer {name!r}" for name, part in parts if part.running_mean is not None]


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
