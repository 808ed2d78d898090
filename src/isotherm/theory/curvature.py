"""Curvature of a training objective: Hessian-vector products, the top of the spectrum, and the sharpness of a run.

Gradient descent is stable along a direction of curvature λ while ε < 2/λ, heavy ball while ε < 2(1 + m)/λ. The largest
eigenvalue λ_max of the Hessian, the sharpness, therefore sets the critical learning rate of the paper's section 2. It
is no constant of a problem: full-batch descent tends to raise it until it meets 2(1 + m)/ε, the edge of stability.

Everything here is a sum over fixed examples, computed in chunks; how many are computed at once changes nothing but
memory. Nothing falls back to another way of computing by itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp

from isotherm.errors import UserError, nearest
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.records import L2Scope
from isotherm.seeding import derive, seeded
from isotherm.statistics import Floats, Interval, t_interval
from isotherm.tasks import LossFunction, Task, half_squared_error
from isotherm.temperature import effective_learning_rate
from isotherm.theory.demonstration import Curve, Demonstration, Panel, Table
from isotherm.theory.noisy_quadratic import critical_learning_rate

Mode = Literal["train", "eval"]
Precision = Literal["float32", "float64"]
Differentiation = Literal["reverse_over_reverse", "forward_over_reverse", "finite_difference"]
Tensors = dict[str, Tensor]

# Examples that are computed at once where nothing is said; bounds the memory of a product.
EXAMPLES_AT_ONCE = 512
# Up to so many parameters the Hessian is written out and diagonalised, which no iteration can beat.
DENSE_PARAMETERS = 40
# Share of a random vector in the start of an iteration that goes on from an earlier eigenvector. Without it, it would
# not see an eigenvalue that has overtaken in a block of the Hessian in which that eigenvector is zero.
FRESH_PART = 0.1


# -- the Hessian ------------------------------------------------------------------------------------------------------


class NotFiniteError(UserError):
    """A second derivative is infinite or no number at the parameters in question."""


class Hessian:
    """The Hessian of a mean loss over fixed examples, by its products with vectors; the parameters form one vector.

    Tied parameters count once, frozen ones and those of whole numbers are constants. The module is copied; its
    buffers, running statistics among them, are as they are now and stay so.

    Args:
        module: called with a chunk of inputs.
        loss: (output, target) -> mean over examples.
        inputs: the examples, the first dimension counts them.
        targets: as many.
        mode: "train" normalises by the statistics of the examples themselves, over ghosts where the layer has ghosts,
            else over all examples at once; dropout is refused there, as each pass would draw another loss. "eval"
            normalises by running statistics and drops nothing.
        precision: in which everything is computed; chunks are added up in float64 in any case.
        examples_at_once: for memory. By default `EXAMPLES_AT_ONCE`, in whole ghosts.
        differentiation: how second derivatives are taken: the gradient of the gradient, the forward derivative of the
            gradient, or central differences of gradients, which every layer has that can be trained. These are for
            smooth layers and float64 only: a ReLU that switches within the step looks like an enormous curvature.
        l2: coefficient of the penalty (l2/2)‖w‖², which is part of the objective: adds l2 to the diagonal.
        l2_scope: what it covers, "weights" (two dimensions or more) or "all".
        unroll: for sequences as in `Task`: examples are windows of this many tokens, each read from the module's
            `initial_state`, and the loss is summed over a window.
        device: where it is computed.

    Raises:
        UserError: there is nothing to differentiate, or no fixed and finite loss to do it with.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> line = nn.Linear(2, 1, bias=False)
    >>> hessian = Hessian(line, half_squared_error, inputs=x, targets=torch.zeros(2, 1), mode="eval")
    >>> hessian.product(np.array([1.0, 1.0])).tolist()  # XᵀX/N
    [0.5, 4.5]
    """

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
                f"differentiation='finite_difference' in precision={precision!r} would be rounding; use 'float64'"
            )
        if not (math.isfinite(l2) and l2 >= 0):
            raise UserError(f"l2={l2} is not a number >= 0; use 0 for no penalty")
        if len(inputs) != len(targets) or len(inputs) == 0:
            raise UserError(f"{len(inputs)} inputs and {len(targets)} targets; give as many, and at least one")
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
            [np.full(p.numel(), float(l2_scope == "all" or p.ndim >= 2)) for p in self._parameters.values()]
        )
        self._refuse_dropout()
        self.group_size = self._group_size(len(inputs))
        self.examples_at_once = self._checked_examples_at_once(examples_at_once)
        self._product_of_all: Callable[[Tensors], Tensors] | None = None
        self.num_products = 0
        self._check()

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """How many numbers are differentiated by: the length of a vector."""
        return sum(self._sizes)

    @property
    def num_examples(self) -> int:
        """How many examples the loss is a mean over."""
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
        """Return the Hessian of the same objective elsewhere.

        Args:
            parameters: by name, e.g. `module.named_parameters()`; what is not trained may be left out.
            buffers: by name. In "eval" mode they are needed where a layer has running statistics.
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
        """Return the Hessian over some of the examples; where they are grouped into ghosts, over whole groups."""
        index = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        if len(index) == 0:
            raise UserError("a subset of no examples has no loss; give at least one")
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

    def objective(self) -> float:
        """Return the loss over all examples, penalty included."""
        with torch.no_grad(), self._exact_arithmetic():
            mean = math.fsum(
                float(self._chunk_loss(self._parameters, x, y)) * len(y) / self.num_examples for x, y in self._chunks()
            )
        penalised = self._l2_P > 0
        with np.errstate(over="ignore"):  # of a run that diverges
            return mean + 0.5 * float(self._l2_P[penalised] @ self.point()[penalised] ** 2)

    def gradient(self) -> Floats:
        """Return the gradient of the objective."""
        with self._exact_arithmetic():
            return self._gradient_at(self._parameters) + self._l2_P * self.point()

    def point(self) -> Floats:
        """Return the parameters as one vector."""
        return self._flat(self._parameters)

    def product(self, vector: Floats) -> Floats:
        """Return the Hessian times a vector, shape (num_parameters,)."""
        flat = np.asarray(vector, dtype=np.float64).reshape(-1)
        if len(flat) != self.num_parameters:
            raise ValueError(f"a vector of {len(flat)} numbers for {self.num_parameters} parameters")
        self.num_products += 1
        with self._exact_arithmetic():
            curved = self._difference(flat) if self.differentiation == "finite_difference" else self._derivative(flat)
        if not np.isfinite(curved).all():
            raise NotFiniteError(
                f"the Hessian of {self._where(curved)} is not finite at these parameters; look for a root, a norm or a "
                "logarithm at zero"
            )
        return curved + self._l2_P * flat

    def operator(self) -> LinearOperator[np.float64]:
        """Return the Hessian as SciPy's routines take it."""
        shape = (self.num_parameters, self.num_parameters)
        return LinearOperator(shape, matvec=self.product, rmatvec=self.product, dtype=np.float64)

    # -- second derivatives -----------------------------------------------------------------------------------------

    def _derivative(self, flat: Floats) -> Floats:
        tangent = self._unflat(flat)
        if self.examples_at_once >= self.num_examples:
            if self._product_of_all is None:  # one chunk: what does not depend on the vector is computed once
                ((x, y),) = self._chunks()
                self._product_of_all = self._second_derivative(partial(self._chunk_loss, x=x, y=y), self._parameters)
            return self._flat(self._product_of_all(tangent))
        total = np.zeros(self.num_parameters)
        for x, y in self._chunks():
            product = self._second_derivative(partial(self._chunk_loss, x=x, y=y), self._parameters)
            total += self._flat(product(tangent)) * (len(y) / self.num_examples)
        return total

    def _second_derivative(self, function: Callable[[Tensors], Tensor], point: Tensors) -> Callable[[Tensors], Tensors]:
        """Return the product of a function's Hessian at a point with a vector, as a function of the vector."""
        if self.differentiation == "forward_over_reverse":
            return lambda tangent: jvp(grad(function), (point,), (tangent,))[1]
        pull_back = vjp(grad(function), point)[1]
        return lambda tangent: pull_back(tangent)[0]

    def _difference(self, flat: Floats) -> Floats:
        """Return central differences of the gradient, over a step at which truncation and rounding are alike."""
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
        """Return the gradient of the mean loss by plain autograd, which every layer supports that can be trained."""
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
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}  # a pass moves running statistics
        if self._unroll is None:
            output: Tensor = functional_call(self._module, (parameters, buffers), (x,))
            return output
        state = self._moved(self._module.initial_state(len(x)))  # type: ignore[operator]
        output, _ = functional_call(self._module, (parameters, buffers), (x, state))
        return output

    def _chunk_loss(self, parameters: Tensors, x: Tensor, y: Tensor) -> Tensor:
        loss = self._loss(self._output(parameters, x), y)
        return loss if self._unroll is None else loss * self._unroll

    @contextmanager
    def _exact_arithmetic(self) -> Iterator[None]:
        """Within this context float32 means float32: cuDNN would round the inputs of convolutions to 10 bits."""
        if self._device.type != "cuda":
            yield
            return
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            yield

    def _flat(self, tensors: Tensors) -> Floats:
        flat = torch.cat([tensors[name].detach().reshape(-1) for name in self._parameters])
        return np.asarray(flat.double().cpu().numpy())

    def _unflat(self, flat: Floats) -> Tensors:
        pieces = torch.split(torch.tensor(flat, device=self._device, dtype=self._dtype), self._sizes)
        return {name: piece.view(p.shape) for (name, p), piece in zip(self._parameters.items(), pieces, strict=True)}

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
                f"in mode 'train' the dropout in {_listed(layers)} draws another loss with every pass, which has no "
                "Hessian; use mode='eval', or a drop probability of 0"
            )

    def _group_size(self, num_examples: int) -> int:
        """Return how many neighbouring examples share statistics: 1, whole ghosts, or all of them."""
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
            raise UserError(f"examples_at_once={given} computes nothing; use a positive number")
        if given < self.num_examples and given % self.group_size:
            raise UserError(
                f"examples_at_once={given} would cut groups of {self.group_size} examples that share their statistics; "
                f"use a multiple of {self.group_size}, or mode='eval'"
            )
        return given

    def _check(self) -> None:
        """Refuse a loss that is not finite, not one number, not the same twice, no mean, or not differentiable."""
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
                "numbers (dropout as a function?) or counts its calls; use mode='eval', or fix what it draws"
            )
        if self.examples_at_once < self.num_examples:
            self.refuse_coupled(self.examples_at_once)
        try:
            self.over(np.arange(len(y))).product(np.random.default_rng(0).standard_normal(self.num_parameters))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            failing = [] if self.differentiation == "finite_difference" else self._failing_layers(x, y)
            if not failing:
                raise
            others = [way for way in get_args(Differentiation) if way != self.differentiation]
            raise UserError(
                f"{_listed(failing)} cannot be differentiated twice by {self.differentiation}: "
                f"{str(error).strip().splitlines()[0]}; try differentiation={others[0]!r} or {others[1]!r}"
            ) from error

    def refuse_coupled(self, num: int) -> None:
        """Refuse to add up the loss over parts of `num` examples if it is no mean over them."""
        first, both = self._chunk(0, num), self._chunk(0, 2 * num)
        second = self._chunk(num, 2 * num)
        with torch.no_grad():
            losses = [self._chunk_loss(self._parameters, x, y).double() for x, y in (first, second, both)]
        shares = [len(y) / len(both[1]) for _, y in (first, second)]
        apart = losses[0] * shares[0] + losses[1] * shares[1]
        if not self._are_close(apart, losses[2]):
            raise UserError(
                f"the loss of {len(both[1])} examples is {float(losses[2])}, but {float(apart)} as the mean over its "
                "parts: the loss is no mean over examples, or a layer mixes them; give a mean, or use "
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

    def _failing_layers(self, x: Tensor, y: Tensor) -> list[str]:
        """Return the innermost layers whose own second derivative fails on what reaches them, or else the loss."""
        calls: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {}

        def note(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls[name] = part, args, kwargs

        hooks = [
            part.register_forward_pre_hook(partial(note, name), with_kwargs=True)
            for name, part in self._module.named_modules()
        ]
        try:
            with torch.no_grad():
                output = self._output(self._parameters, x)
        finally:
            for hook in hooks:
                hook.remove()
        failing: list[str] = []
        for name, (part, args, kwargs) in reversed(calls.items()):  # inner layers were called after outer ones
            holds_one = bool(failing) if name == "" else any(inner.startswith(f"{name}.") for inner in failing)
            if not holds_one and self._fails(*_squared_output(part, args, kwargs)):
                failing.append(name)
        if not failing and self._fails(lambda tensors: self._loss(tensors["output"], y), {"output": output}):
            return ["the loss"]
        kinds = {name: type(part).__name__ for name, (part, _, _) in calls.items()}
        return [f"layer {name!r} ({kinds[name]})" if name else f"the {kinds[name]} itself" for name in failing[::-1]]

    def _fails(self, function: Callable[[Tensors], Tensor], point: Tensors) -> bool:
        if not point:
            return False
        try:
            self._second_derivative(function, point)({name: torch.ones_like(value) for name, value in point.items()})
        except RuntimeError:
            return True
        return False


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
    """Return the Hessian of what a task minimises, over training examples drawn once, without augmentation.

    Args:
        task: gives data, transform, loss and penalty.
        module: the task's model with the weights in question, e.g. `seeding.initial_model(task.model, seed=0)`.
        mode: as for `Hessian`; so for the rest.
        num_examples: drawn without replacement, of a sequence as many windows; by default all.
        subset_seed: equal seeds draw equal examples.
        l2: coefficient of the penalty; by default the task's.
        precision: of the computation.
        examples_at_once: for memory.
        differentiation: how second derivatives are taken.
        device: where it is computed.
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
        raise UserError(f"task {task.name!r}: {error}") from error


# -- the top of the spectrum ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Eigenpairs:
    """Eigenvalues from one end of the spectrum, the outermost first, with unit eigenvectors as rows.

    `residuals` are ‖Hv - λv‖, measured with one more product each: an eigenvalue of H lies within that distance of λ.
    """

    values: Floats
    vectors: Floats
    residuals: Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Spectrum:
    """Both ends of a Hessian's spectrum, and what it took to find them."""

    largest: Eigenpairs
    smallest: Eigenpairs
    num_parameters: int
    num_examples: int
    num_products: int

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue."""
        return float(self.largest.values[0])

    @property
    def most_negative(self) -> float:
        """The smallest eigenvalue; above zero in a basin."""
        return float(self.smallest.values[0])

    def critical_learning_rate(self, *, momentum: float = 0.0) -> float:
        """Return 2(1 + m)/λ_max, from which on descent is unstable; infinite where no direction curves upwards."""
        return math.inf if self.sharpness <= 0 else critical_learning_rate(self.sharpness, momentum=momentum)

    def critical_effective_learning_rate(self, *, momentum: float = 0.0) -> float:
        """Return the same as an effective learning rate, 2(1 + m)/((1 - m) λ_max)."""
        return effective_learning_rate(self.critical_learning_rate(momentum=momentum), momentum=momentum)


def spectrum(hessian: Hessian, *, num_eigenvalues: int = 5, tolerance: float = 1e-6, seed: int = 0) -> Spectrum:
    """Return the largest eigenvalues of a Hessian and the smallest one.

    Args:
        hessian: over fixed examples.
        num_eigenvalues: how many of the largest.
        tolerance: at which the iteration stops, relative to the eigenvalue; `residuals` say what came of it.
        seed: of the vector it starts from.
    """
    before = hessian.num_products
    largest = largest_eigenpairs(hessian, num=num_eigenvalues, tolerance=tolerance, seed=seed)
    smallest = _smallest_eigenpair(hessian, scale=abs(float(largest.values[0])), tolerance=tolerance, seed=seed)
    return Spectrum(
        largest=largest,
        smallest=smallest,
        num_parameters=hessian.num_parameters,
        num_examples=hessian.num_examples,
        num_products=hessian.num_products - before,
    )


def largest_eigenpairs(
    hessian: Hessian, *, num: int = 1, tolerance: float = 1e-6, seed: int = 0, near: Floats | None = None
) -> Eigenpairs:
    """Return the largest eigenvalues of a Hessian; all zero where it is zero, as for outputs that never change.

    Args:
        hessian: over fixed examples.
        num: how many.
        tolerance: at which the iteration stops, relative to the eigenvalue.
        seed: of the random vector it starts from.
        near: go on from this vector, e.g. the eigenvector of a moment ago, with some of the random one mixed in.
    """
    size = hessian.num_parameters
    if not 1 <= num <= size:
        raise UserError(f"{num} eigenvalues of a Hessian of {size} parameters; ask for 1 to {size}")
    if max(DENSE_PARAMETERS, num + 1) >= size:
        values, vectors = _dense(hessian)
        return _checked(hessian, values[::-1][:num], vectors[:, ::-1][:, :num])
    start = _start(size, seed=seed, near=near)
    if not hessian.product(start).any():
        return _checked(hessian, np.zeros(num), np.eye(size, num))
    # Going on from a good vector takes a smaller basis.
    basis = min(size, max(2 * num + 1, 20) if near is None else 2 * num + 7)
    values, vectors = _lanczos(hessian.operator(), num=num, which="LA", start=start, tolerance=tolerance, basis=basis)
    return _checked(hessian, values[::-1], vectors[:, ::-1])


def _smallest_eigenpair(hessian: Hessian, *, scale: float, tolerance: float, seed: int) -> Eigenpairs:
    """Return the smallest eigenvalue, to a tolerance relative to the scale given: it may be next to zero."""
    size = hessian.num_parameters
    if size <= DENSE_PARAMETERS:
        values, vectors = _dense(hessian)
        return _checked(hessian, values[:1], vectors[:, :1])
    start = _start(size, seed=seed)
    if not hessian.product(start).any():
        return _checked(hessian, np.zeros(1), np.eye(size, 1))

    def shifted(vector: Floats) -> Floats:
        return hessian.product(vector) - 2 * scale * vector

    operator = LinearOperator((size, size), matvec=shifted, rmatvec=shifted, dtype=np.float64)
    values, vectors = _lanczos(operator, num=1, which="LM", start=start, tolerance=tolerance, basis=min(size, 20))
    return _checked(hessian, values + 2 * scale, vectors)


def _lanczos(
    operator: LinearOperator[np.float64],
    *,
    num: int,
    which: Literal["LA", "LM"],
    start: Floats,
    tolerance: float,
    basis: int,
) -> tuple[Floats, Floats]:
    try:
        values, vectors = eigsh(operator, k=num, which=which, v0=start, tol=tolerance, ncv=basis)
    except ArpackNoConvergence as error:
        raise UserError(
            f"{num} eigenvalues did not converge to a tolerance of {tolerance}: {error}; ask for fewer, or raise it"
        ) from error
    return np.asarray(values, dtype=np.float64), np.asarray(vectors, dtype=np.float64)


def _dense(hessian: Hessian) -> tuple[Floats, Floats]:
    """Return all eigenvalues, rising, and their vectors as columns, of the Hessian written out."""
    matrix = np.stack([hessian.product(row) for row in np.eye(hessian.num_parameters)])
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return values, vectors


def _start(size: int, *, seed: int, near: Floats | None = None) -> Floats:
    """Return a random unit vector, or one near to that given."""
    vector = np.random.default_rng(derive(seed, "curvature start")).standard_normal(size)
    vector /= np.linalg.norm(vector)
    return vector if near is None else near / np.linalg.norm(near) + FRESH_PART * vector


def _checked(hessian: Hessian, values: Floats, vectors: Floats) -> Eigenpairs:
    """Return eigenpairs with their measured residuals; vectors are columns here."""
    rows = np.ascontiguousarray(vectors.T)
    residuals = [np.linalg.norm(hessian.product(v) - value * v) for value, v in zip(values, rows, strict=True)]
    return Eigenpairs(values=np.array(values), vectors=rows, residuals=np.array(residuals))


# -- a subset is a sample ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledSharpness:
    """The sharpness over a sample of examples, as an estimate of that over all examples there could be.

    Two values bracket it. The largest eigenvalue over a sample is too large on average, as its direction is chosen on
    the same examples; with many parameters small samples even agree with each other on a wrong value. The curvature
    along that direction over other examples is too small on average, as no direction curves more than λ_max.

    Args:
        of_all: the largest eigenvalue over all examples given.
        held_out: the mean over blocks of the curvature of a block along the sharpest direction of all the others.
        interval: from the lower limit of the second to the upper limit of the first; the estimate is halfway between
            the two, whose errors are opposite and equal to first order.
    """

    of_all: float
    held_out: float
    interval: Interval


def sampled_sharpness(
    hessian: Hessian, *, num_blocks: int = 8, level: float = 0.95, tolerance: float = 1e-4, seed: int = 0
) -> SampledSharpness:
    """Return the sharpness with an interval for what another sample of examples would change.

    Args:
        hessian: over examples drawn at random, in random order.
        num_blocks: equal blocks they are cut into; each costs an eigenvalue over all the others.
        level: of the interval.
        tolerance: of each eigenvalue.
        seed: of the iterations' start.
    """
    size, rest = divmod(hessian.num_examples, num_blocks) if num_blocks > 1 else (0, 0)
    if size == 0 or rest or size % hessian.group_size:
        raise UserError(
            f"{hessian.num_examples} examples in groups of {hessian.group_size} cannot be cut into {num_blocks} equal "
            "blocks of whole groups; choose a number of examples that can, and 2 blocks or more"
        )
    hessian.refuse_coupled(size)
    pair = largest_eigenpairs(hessian, tolerance=tolerance, seed=seed)
    vector = pair.vectors[0]
    everything = np.arange(hessian.num_examples)
    along, held_out = [], []
    for indices in np.split(everything, num_blocks):
        block, others = hessian.over(indices), hessian.over(np.setdiff1d(everything, indices))
        apart = largest_eigenpairs(others, tolerance=tolerance, seed=seed, near=vector).vectors[0]
        along.append(float(vector @ block.product(vector)))
        held_out.append(float(apart @ block.product(apart)))
    upper, lower = t_interval(along, level=level), t_interval(held_out, level=level)
    middle = (upper.estimate + lower.estimate) / 2
    return SampledSharpness(
        of_all=float(pair.values[0]),
        held_out=lower.estimate,
        interval=Interval(estimate=middle, low=lower.low, high=upper.high),
    )


# -- the sharpness of a run -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SharpnessRecord:
    """Sharpness and objective before an update; the sharpness is NaN where the run has diverged."""

    step: int
    objective: float
    sharpness: float
    residual: float


class SharpnessProbe:
    """Records the sharpness every few updates of a training loop, each time going on from the last eigenvector.

    Args:
        hessian: over the examples to look at; it is moved to the parameters of the moment.
        every: how many updates lie between two looks.
        tolerance: of the eigenvalue.
        seed: of the iterations' start.

    >>> module = nn.Linear(1, 1, bias=False)
    >>> data = {"inputs": torch.tensor([[2.0]]), "targets": torch.zeros(1, 1)}
    >>> probe = SharpnessProbe(Hessian(module, half_squared_error, **data, mode="train"), every=2)
    >>> for step in range(4):
    ...     _ = probe(step, module.named_parameters())
    >>> [(record.step, record.sharpness) for record in probe.records]
    [(0, 4.0), (2, 4.0)]
    """

    def __init__(self, hessian: Hessian, *, every: int, tolerance: float = 1e-3, seed: int = 0) -> None:
        if every < 1:
            raise UserError(f"every={every} is not a positive number of updates")
        self._hessian, self._every, self._tolerance, self._seed = hessian, every, tolerance, seed
        self._vector: Floats | None = None
        self.records: list[SharpnessRecord] = []

    def __call__(
        self,
        step: int,
        parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
        buffers: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] | None = None,
    ) -> SharpnessRecord | None:
        """Look if it is time to; return what was found.

        Args:
            step: the update that is about to be made, from 0.
            parameters: by name, e.g. `module.named_parameters()`.
            buffers: by name; needed in "eval" mode where a layer has running statistics.
        """
        if step % self._every:
            return None
        hessian = self._hessian.at(parameters, buffers)
        objective = hessian.objective()
        sharpness = residual = math.nan
        if math.isfinite(objective):
            with suppress(NotFiniteError):  # next to divergence the Hessian overflows before the objective does
                pair = largest_eigenpairs(hessian, tolerance=self._tolerance, seed=self._seed + step, near=self._vector)
                self._vector, sharpness, residual = pair.vectors[0], float(pair.values[0]), float(pair.residuals[0])
        record = SharpnessRecord(step=step, objective=objective, sharpness=sharpness, residual=residual)
        self.records.append(record)
        return record


# -- helpers ----------------------------------------------------------------------------------------------------------


def _check_choice(name: str, value: str, kind: Any) -> None:
    if value not in get_args(kind):
        raise UserError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, get_args(kind)))}")


def _trainable(module: nn.Module) -> list[str]:
    """Return the names of the parameters to differentiate by, or say that there are none that could be."""
    named = dict(module.named_parameters())
    names = [name for name, parameter in named.items() if parameter.requires_grad]
    if not names:
        whole = sum(not (p.is_floating_point() or p.is_complex()) for p in named.values())
        raise UserError(
            f"of the module's {len(named)} parameters none is trained ({whole} are whole numbers, the others frozen); "
            "curvature needs one that is: set requires_grad"
        )
    for name in names:
        if named[name].is_complex():
            raise UserError(f"parameter {name!r} is {named[name].dtype}; use two real parameters for its parts")
    return names


def _running_layers(module: nn.Module) -> list[str]:
    kinds = (nn.modules.batchnorm._NormBase, GhostBatchNorm2d)
    parts = ((name, part) for name, part in module.named_modules() if isinstance(part, kinds))
    return [f"layer {name!r}" for name, part in parts if part.running_mean is not None]


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _squared_output(
    part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[[Tensors], Tensor], Tensors]:
    """Return the sum of a layer's squared outputs as a function of its parameters and inputs, and their values."""
    inputs = {f"input {place}": value for place, value in enumerate(args) if _is_real(value)}
    parameters = {f"parameter {name}": value for name, value in part.named_parameters() if _is_real(value)}

    def function(tensors: Tensors) -> Tensor:
        replaced = [tensors.get(f"input {place}", value) for place, value in enumerate(args)]
        own = {name: tensors[f"parameter {name}"] for name, value in part.named_parameters() if _is_real(value)}
        buffers = {name: buffer.clone() for name, buffer in part.named_buffers()}
        output = functional_call(part, (own, buffers), tuple(replaced), kwargs)
        outputs = output if isinstance(output, tuple | list) else [output]
        return torch.stack([value.square().sum() for value in outputs if _is_real(value)]).sum()

    return function, {**inputs, **parameters}


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


# -- the demonstration ------------------------------------------------------------------------------------------------

_NUM_POINTS = 60
_WIDTHS = (2, 24, 24, 2)
_NUM_LOOKS = 40
_NUM_EIGENVALUES = 8
# Learning rate, momentum and updates; heavy ball has one of the learning rates, to show what momentum changes.
_RUNS = ((0.2, 0.0, 1500), (0.1, 0.0, 2000), (0.2, 0.3, 1500))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Descent:
    """A run of full-batch descent, and the spectrum where it ended."""

    learning_rate: float
    momentum: float
    records: tuple[SharpnessRecord, ...]
    losses: tuple[float, ...]
    end: Spectrum

    @property
    def label(self) -> str:
        return f"ε = {self.learning_rate:g}" + (f", m = {self.momentum:g}" if self.momentum else "")

    @property
    def edge(self) -> float:
        """The sharpness from which on this run is unstable, 2(1 + m)/ε."""
        return 2.0 * (1.0 + self.momentum) / self.learning_rate

    @property
    def late_sharpness(self) -> float:
        """The mean over the last quarter of the looks."""
        return float(np.mean([record.sharpness for record in self.records[-(len(self.records) // 4) :]]))

    @property
    def num_rises(self) -> int:
        """How many updates raised the loss, which no update below the edge does."""
        return int(np.sum(np.diff(self.losses) > 0))


def demonstrate(*, seed: int = 0) -> Demonstration:
    """Show that full-batch descent sharpens a small network until it meets the edge of stability.

    Args:
        seed: of the data and of the initialisation.
    """
    inputs, targets = _spirals(_NUM_POINTS, seed=seed)
    hessian = Hessian(_network(seed=seed), half_squared_error, inputs=inputs, targets=targets, mode="train")
    start = _ends(hessian, seed=seed)
    descents = [
        _descend(learning_rate=rate, momentum=momentum, num_steps=num_steps, seed=seed)
        for rate, momentum, num_steps in _RUNS
    ]
    sharpness = [
        curve
        for run in descents
        for curve in (
            Curve(label=run.label, x=[r.step for r in run.records], y=[r.sharpness for r in run.records]),
            Curve(
                label=f"2(1 + m)/ε for {run.label}",
                x=[0, run.records[-1].step],
                y=[run.edge, run.edge],
                style="dashed",
            ),
        )
    ]
    places = list(range(1, _NUM_EIGENVALUES + 1))
    tops = [Curve(label="start", x=places, y=start.largest.values.tolist(), style="points")]
    tops += [
        Curve(label=f"end, {run.label}", x=places, y=run.end.largest.values.tolist(), style="points")
        for run in descents
    ]
    return Demonstration(
        name="curvature",
        title="Full-batch descent sharpens a network up to the edge of stability",
        paragraph=_paragraph(start, descents),
        panels=[
            Panel(title="Sharpness of three runs", x_label="update", y_label="λ_max", curves=sharpness),
            Panel(
                title=f"The {_NUM_EIGENVALUES} largest eigenvalues",
                x_label="place",
                y_label="eigenvalue",
                curves=tops,
                y_log=True,
            ),
        ],
        tables=[_table_of_runs(start, descents), _table_of_eigenvalues(start, descents)],
        settings={
            "seed": seed,
            "widths": list(_WIDTHS),
            "num_points": _NUM_POINTS,
            "runs": [{"learning_rate": e, "momentum": m, "num_steps": n} for e, m, n in _RUNS],
            "num_looks": _NUM_LOOKS,
        },
    )


def _spirals(num: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return points (num, 2) on two noisy spirals, and which spiral as (1, 0) or (0, 1)."""
    generator = np.random.default_rng(derive(seed, "spirals"))
    label, radius = np.arange(num) % 2, np.linspace(0.2, 1.0, num)
    angle = np.pi * label + 9.0 * radius + 0.1 * generator.standard_normal(num)
    points = 3.0 * radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return torch.from_numpy(points), torch.from_numpy(np.eye(2)[label])


def _network(*, seed: int) -> nn.Sequential:
    with seeded(seed, "initialisation"):
        layers = [nn.Linear(*sizes) for sizes in pairwise(_WIDTHS)]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]).double()


def _descend(*, learning_rate: float, momentum: float, num_steps: int, seed: int) -> _Descent:
    inputs, targets = _spirals(_NUM_POINTS, seed=seed)
    module = _network(seed=seed)
    hessian = Hessian(module, half_squared_error, inputs=inputs, targets=targets, mode="train")
    probe = SharpnessProbe(hessian, every=num_steps // _NUM_LOOKS, seed=seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=momentum)
    losses = []
    for step in range(num_steps):
        probe(step, module.named_parameters())
        optimizer.zero_grad()
        loss = half_squared_error(module(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return _Descent(
        learning_rate=learning_rate,
        momentum=momentum,
        records=tuple(probe.records),
        losses=tuple(losses),
        end=_ends(hessian.at(module.named_parameters()), seed=seed),
    )


def _ends(hessian: Hessian, *, seed: int) -> Spectrum:
    return spectrum(hessian, num_eigenvalues=_NUM_EIGENVALUES, tolerance=1e-4, seed=seed)


def _paragraph(start: Spectrum, descents: Sequence[_Descent]) -> str:
    found = "; ".join(
        f"{run.label}: {run.late_sharpness:.2f} over the last quarter, {run.late_sharpness / run.edge:.3f} of "
        f"2(1 + m)/ε = {run.edge:g}, while {run.num_rises} of {len(run.losses)} updates raised the loss, which fell "
        f"from {run.losses[0]:.3g} to {run.losses[-1]:.2g}"
        for run in descents
    )
    at_edge = [run.label for run in descents if abs(run.late_sharpness / run.edge - 1) < 0.05]
    verdict = f"{len(at_edge)} of {len(descents)} runs end within 5 % of their edge" + (
        f" ({'; '.join(at_edge)})." if at_edge else "."
    )
    return (
        f"A tanh network of {start.num_parameters} parameters learns to tell {_NUM_POINTS} points of two spirals apart "
        f"by full-batch gradient descent. Its Hessian's largest eigenvalue starts at {start.sharpness:.2f}, so that a "
        f"quadratic of this curvature would allow ε up to {start.critical_learning_rate():.2f}. But the curvature does "
        f"not stay what it was. {found}. {verdict} Where it hovers there, the critical learning rate is no property of "
        "the problem: training has moved to where the learning rate chosen is just about critical, and heavy ball at "
        "the same ε allows (1 + m) times the curvature. The smallest eigenvalue was "
        f"{start.most_negative:.3g} at the start and {descents[0].end.most_negative:.3g} after the first run."
    )


def _table_of_runs(start: Spectrum, descents: Sequence[_Descent]) -> Table:
    return Table(
        title="Sharpness against the edge of stability",
        columns=["ε", "m", "2(1 + m)/ε", "λ_max at start", "λ_max, last quarter", "ratio", "loss rose", "final loss"],
        rows=[
            (
                run.learning_rate,
                run.momentum,
                run.edge,
                start.sharpness,
                run.late_sharpness,
                run.late_sharpness / run.edge,
                f"{run.num_rises} of {len(run.losses)}",
                run.losses[-1],
            )
            for run in descents
        ],
    )


def _table_of_eigenvalues(start: Spectrum, descents: Sequence[_Descent]) -> Table:
    """Return the ends of the spectra, with the largest residual of each."""
    spectra = [("start", start), *((f"end, {run.label}", run.end) for run in descents)]
    return Table(
        title="The ends of the spectrum",
        columns=["when", *(f"λ_{place}" for place in range(1, _NUM_EIGENVALUES + 1)), "smallest", "largest residual"],
        rows=[
            (when, *found.largest.values.tolist(), found.most_negative, float(found.largest.residuals.max()))
            for when, found in spectra
        ],
    )
