"""Measuring the gradient noise scale of a module, of a task, and of a task along its training.

`isotherm.theory.noise_scale` defines it and estimates it from the squared norms measured here.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isotherm.core.l2 import L2Scope
from isotherm.data.augment import RandomBits
from isotherm.errors import UserError, nearest
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.losses import LOSSES, LossFunction
from isotherm.tasks.model_check import check_model
from isotherm.tasks.seeding import derive, initial_model
from isotherm.tasks.task import Task
from isotherm.theory.batch_gradients import BatchGradients, CoupledExamplesError, Examples
from isotherm.theory.exact_arithmetic import exact_arithmetic
from isotherm.theory.noise_scale import MIN_DRAWS, NoiseScale, estimate_noise_scale


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The batches on which the noise is measured, and how.

    Args:
        small_batch_size: examples per small batch; with ghost batch norm the ghost size.
        large_batch_size: examples per large batch, a union of small ones. Larger batches determine ‖G‖² better.
        num_draws: number of independent large batches.
        sampling: "with_replacement": examples of a draw are independent, so that the plain formulas hold, whatever else
            is random about an example. "without_replacement": all different, with the exact correction for a finite
            training set; the large batch may then be the whole set, which makes ‖G‖² exact.
        mode: "train"; or "evaluate": no dropout, batch norm with running statistics, no augmentation.
        seed: of the draws, of augmentation and of the bootstrap.
        level: of the intervals.
        num_at_once: small batches computed at once; by default as many as fit into a GiB. 1 computes them one by one,
            for modules that `torch.func.vmap` does not support.
        num_windows_before: for text, how many windows the model reads before the measured one.
    """

    small_batch_size: int = 16
    large_batch_size: int = 256
    num_draws: int = 64
    sampling: Literal["with_replacement", "without_replacement"] = "with_replacement"
    mode: Literal["train", "evaluate"] = "train"
    seed: int = 0
    level: float = 0.95
    num_at_once: int | None = None
    num_windows_before: int = 1

    def __post_init__(self) -> None:
        least = {"small_batch_size": 1, "large_batch_size": 2, "num_draws": MIN_DRAWS, "num_windows_before": 0}
        if self.num_at_once is not None:
            least["num_at_once"] = 1
        for name, lowest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise UserError(f"{name} must be a whole number of at least {lowest}, not {value!r}")
        if self.large_batch_size == self.small_batch_size or self.large_batch_size % self.small_batch_size:
            raise UserError(
                f"large_batch_size={self.large_batch_size} is not two or more small batches of "
                f"{self.small_batch_size}; use a multiple, e.g. {16 * self.small_batch_size}"
            )
        for name, known in (("sampling", ("with_replacement", "without_replacement")), ("mode", ("train", "evaluate"))):
            if getattr(self, name) not in known:
                raise UserError(f"{name}={getattr(self, name)!r} is unknown; {nearest(getattr(self, name), known)}")

    @property
    def is_training(self) -> bool:
        """Whether the model is in training mode."""
        return self.mode == "train"

    @property
    def is_without_replacement(self) -> bool:
        """Whether the examples of a draw are all different."""
        return self.sampling == "without_replacement"

    def indices(self, num_examples: int) -> Iterator[NDArray[np.int64]]:
        """Yield the examples of every draw, shape (small batches, small_batch_size)."""
        if num_examples < self.large_batch_size:
            fitting = num_examples // self.small_batch_size * self.small_batch_size
            smaller = f"large_batch_size={fitting}" if fitting > self.small_batch_size else "smaller batches"
            raise UserError(
                f"{num_examples} examples are too few for large batches of {self.large_batch_size} beside small ones "
                f"of {self.small_batch_size}; use {smaller}, or give more examples"
            )
        generator = np.random.default_rng(derive(self.seed, "gradient noise"))
        for _ in range(self.num_draws):
            chosen = generator.choice(num_examples, size=self.large_batch_size, replace=not self.is_without_replacement)
            yield chosen.reshape(-1, self.small_batch_size)


DEFAULT_MEASUREMENT = Measurement()


def gradient_noise_scale(
    module: nn.Module,
    loss: str | LossFunction,
    inputs: Tensor,
    targets: Tensor,
    *,
    measurement: Measurement = DEFAULT_MEASUREMENT,
    l2: float = 0.0,
    l2_scope: L2Scope = "weights",
) -> NoiseScale:
    """Measure the gradient noise scale of a module at its current parameters; the module is not changed.

    In training mode, batch norm is refused because it couples the examples of a batch, and so is anything that draws
    random numbers, such as dropout. Ghost batch norm couples the examples of a ghost batch: the small batch must be one
    ghost batch, and tr Σ is the ghost size times its noise.

    Args:
        module: in float32 or float64, on the device to compute on.
        loss: a name from `isotherm.tasks.losses.LOSSES`, or a function (output, target) -> mean over the batch.
        inputs: of all examples; floating-point values are cast to the dtype of the module.
        targets: of all examples.
        measurement: batches and method.
        l2: coefficient of the penalty ½ l2 ‖w‖², whose gradient is part of G.
        l2_scope: the parameters it covers.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        raise UserError(f"unknown loss {loss!r}; {nearest(loss, LOSSES)}; or pass a function (output, target) -> mean")
    if len(inputs) != len(targets):
        raise UserError(f"{len(inputs)} inputs and {len(targets)} targets; give one target per input")
    if not (math.isfinite(l2) and l2 >= 0) or l2_scope not in get_args(L2Scope):
        known = " or ".join(map(repr, get_args(L2Scope)))
        raise UserError(f"l2={l2} with l2_scope={l2_scope!r} is not a valid penalty; give a number >= 0 and {known}")

    def read(index: Tensor) -> tuple[Tensor, Tensor]:
        return inputs[index.to(inputs.device)], targets[index.to(targets.device)]

    function = LOSSES[loss] if isinstance(loss, str) else loss
    examples = Examples(num=len(inputs), read=read)
    return _measured(module, function, examples, measurement, l2=l2, l2_scope=l2_scope)


def noise_scale_of_task(
    task: Task,
    *,
    parameters: Mapping[str, Tensor] | None = None,
    measurement: Measurement = DEFAULT_MEASUREMENT,
    precision: Literal["float32", "float64"] = "float32",
    device: torch.device | str = "cpu",
) -> NoiseScale:
    """Measure the gradient noise scale of a task: with its loss, its L2 and, in training mode, its augmentation.

    For a task with `unroll`, an example is a window of that many tokens anywhere in the text; the model's state comes
    from reading the windows before it with the same parameters. Clipping is left out: the noise is that of the
    unclipped gradients.

    Args:
        task: what is trained.
        parameters: `state_dict()` of its model; by default the initial parameters of the measurement's seed.
        measurement: batches and method.
        precision: of the computation, whatever the task's is.
        device: to compute on.
    """
    checkpoints = [(0, parameters)]
    return noise_scale_along_training(task, checkpoints, measurement=measurement, precision=precision, device=device)[
        0
    ][1]


def noise_scale_along_training(
    task: Task,
    checkpoints: Iterable[tuple[int, Mapping[str, Tensor] | None]],
    *,
    measurement: Measurement = DEFAULT_MEASUREMENT,
    precision: Literal["float32", "float64"] = "float32",
    device: torch.device | str = "cpu",
) -> list[tuple[int, NoiseScale]]:
    """Measure the gradient noise scale of a task at several steps of its training, on the same batches each time.

    Args:
        task: what is trained.
        checkpoints: steps and the parameters after them; None for the initial ones.
        measurement: as for `noise_scale_of_task`, like the other arguments.
        precision: of the computation.
        device: to compute on.
    """
    if precision not in ("float32", "float64"):
        raise UserError(f"precision={precision!r}: noise is measured in 'float32' or 'float64'")
    check_model(task)
    module = initial_model(task.model, seed=measurement.seed).to(device, getattr(torch, precision))
    initial = copy.deepcopy(module.state_dict())
    found = []
    for step, parameters in checkpoints:
        try:
            _load(module, initial if parameters is None else parameters)
            examples = _examples_of(task, module, measurement)
            scale = _measured(module, task.loss_function, examples, measurement, l2=task.l2, l2_scope=task.l2_scope)
        except UserError as error:
            raise error.within(f"task {task.name!r}, step {step}") from error
        found.append((step, scale))
    return found


# -- the examples of a task -----------------------------------------------------------------------------------------


def _examples_of(task: Task, module: nn.Module, measurement: Measurement) -> Examples:
    if task.unroll is not None:
        return _windows_of(task, module, unroll=task.unroll, num_before=measurement.num_windows_before)
    inputs, targets = task.train
    device = next(module.parameters()).device
    bits = _random_bits(device, measurement)
    steps = itertools.count()
    if not isinstance(inputs, Tensor) and measurement.is_training:
        _refuse_correction(measurement, "inputs on disk may be augmented when they are read")

    def read(index: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(inputs, Tensor):
            x = inputs[index]
        elif measurement.is_training:
            x = inputs.fetch(index.numpy(), seed=measurement.seed, step=next(steps)).clone()
        else:
            x = inputs.fetch(index.numpy()).clone()
        x, y = x.to(device), targets[index].to(device)
        if task.transform is None:
            return x, y
        x = task.transform.train(x, bits) if measurement.is_training else task.transform.evaluate(x)
        return x, task.transform.targets(y)

    return Examples(num=task.num_train, read=read)


def _random_bits(device: torch.device, measurement: Measurement) -> RandomBits:
    """Return the source of a transform's random numbers."""
    generator = torch.Generator(device).manual_seed(derive(measurement.seed, "augmented gradients") % 2**63)

    def bits(shape: tuple[int, ...]) -> Tensor:
        _refuse_correction(measurement, "the transform draws random numbers in training mode")
        return torch.randint(2**32, shape, generator=generator, device=device)

    return bits


def _windows_of(task: Task, module: nn.Module, *, unroll: int, num_before: int) -> Examples:
    """Return the windows of a text as examples; inputs start with the windows before."""
    inputs, targets = task.train
    assert isinstance(inputs, Tensor)  # checked by the task
    offsets = torch.arange((num_before + 1) * unroll)

    def read(index: Tensor) -> tuple[Tensor, Tensor]:
        positions = index[:, None] * unroll + offsets
        return inputs[positions], targets[positions[:, -unroll:]]

    def output(call: Callable[..., Any], x: Tensor) -> Any:
        like = next(module.parameters())
        state = cast(Any, module).initial_state(len(x)).to(like.device, like.dtype)
        for start in range(0, num_before * unroll, unroll):
            with torch.no_grad():
                state = call(x[:, start : start + unroll], state)[1]
        return call(x[:, -unroll:], state)[0]

    return Examples(num=max(0, task.num_train // unroll - num_before), read=read, output=output, scale=float(unroll))


def _load(module: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Copy parameters and buffers into the module, or raise a UserError that names those that do not fit."""
    own = module.state_dict()
    needed = {name for name, _ in (*module.named_parameters(), *module.named_buffers())} & set(own)
    wrong = {
        "is missing": sorted(needed - set(parameters)),
        "is unknown": sorted(set(parameters) - set(own)),
        "has another shape": [name for name in parameters if name in own and parameters[name].shape != own[name].shape],
    }
    for what, names in wrong.items():
        if names:
            raise UserError(f"{names[0]!r} {what} among the parameters; give state_dict() of the task's model")
    for name, value in parameters.items():
        own[name].copy_(value.detach())


# -- from gradients to the noise scale ------------------------------------------------------------------------------


def _measured(
    module: nn.Module,
    loss: LossFunction,
    examples: Examples,
    measurement: Measurement,
    *,
    l2: float,
    l2_scope: L2Scope,
) -> NoiseScale:
    if measurement.is_training:
        _refuse_coupling(module, measurement)
    gradients = BatchGradients(
        module,
        loss,
        examples,
        is_training=measurement.is_training,
        num_at_once=measurement.num_at_once,
        l2=l2,
        l2_scope=l2_scope,
    )
    with exact_arithmetic(gradients.device):
        gradients.check(next(measurement.indices(examples.num)))
        norms = [gradients.squared_norms(index_KB) for index_KB in measurement.indices(examples.num)]
    return estimate_noise_scale(
        [small for small, _ in norms],
        [large for _, large in norms],
        small_batch_size=measurement.small_batch_size,
        large_batch_size=measurement.large_batch_size,
        population=examples.num if measurement.is_without_replacement else None,
        level=measurement.level,
        seed=measurement.seed,
    )


def _refuse_correction(measurement: Measurement, reason: str) -> None:
    if measurement.is_without_replacement:
        raise UserError(
            f"{reason}, so that the correction for a finite training set does not hold; use sampling='with_replacement'"
        )


def _refuse_coupling(module: nn.Module, measurement: Measurement) -> None:
    """Raise a UserError for layers that couple the examples of a batch, except ghost batch norm of the right size."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            raise CoupledExamplesError(
                f"layer {name!r} ({type(part).__name__}) normalises with the statistics of the batch, so that the "
                "gradient is not a mean over examples",
                advice="use mode='evaluate' for running statistics, or GhostBatchNorm2d",
            )
        if isinstance(part, GhostBatchNorm2d):
            if part.ghost_size != measurement.small_batch_size:
                raise CoupledExamplesError(
                    f"layer {name!r} normalises ghost batches of {part.ghost_size}, but small_batch_size="
                    f"{measurement.small_batch_size}",
                    advice=f"use small_batch_size={part.ghost_size}, or mode='evaluate'",
                )
            _refuse_correction(measurement, f"layer {name!r} couples the examples of a ghost batch")
