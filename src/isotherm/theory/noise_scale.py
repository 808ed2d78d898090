"""How noisy a gradient is: tr Σ, ‖G‖² and their ratio, the gradient noise scale B_simple = tr Σ / ‖G‖².

G is the mean and Σ the covariance of the gradients of single examples (McCandlish et al. 2018). A batch of B examples
drawn independently has E‖g_B‖² = ‖G‖² + tr Σ / B, so two batch sizes give both, without bias:

    ‖G‖² ≈ (B_l ‖g_l‖² - B_s ‖g_s‖²) / (B_l - B_s),        tr Σ ≈ (‖g_s‖² - ‖g_l‖²) / (1/B_s - 1/B_l).

A draw is a large batch, the union of small ones. Both quantities are averaged over many draws, and only then divided.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from isotherm.data.augment import RandomBits
from isotherm.errors import UserError, nearest
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.penalty import L2Scope, is_penalised
from isotherm.seeding import derive, initial_model
from isotherm.statistics import Floats, Interval, percentile_limits, t_interval
from isotherm.tasks import LOSSES, LossFunction, Task, check_model

Tensors = dict[str, Tensor]

_MIN_DRAWS = 8  # fewer say too little about their own spread
_NUM_RESAMPLES = 2000
_MEMORY = 2**30  # bytes for the small batches that are computed at once
_COPIES_OF_GRADIENT = 3  # the gradient, its square, and what the backward pass adds up
_COPIES_OF_ACTIVATIONS = 3  # what the forward pass keeps, and what the backward pass makes of it
_ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-7}  # relative differences between gradients it may explain


# -- from squared norms to the noise scale ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseScale:
    """tr Σ, ‖G‖² and B_simple = tr Σ / ‖G‖² with their confidence limits.

    tr Σ belongs to a single example. B_simple has no upper limit, `high` is infinite, where ‖G‖² cannot be told from
    zero; its estimate is infinite where that of ‖G‖² is not above zero.
    """

    noise_trace: Interval
    gradient_norm_squared: Interval
    gradient_noise_scale: Interval
    small_batch_size: int
    large_batch_size: int
    num_draws: int
    level: float

    @property
    def has_upper_limit(self) -> bool:
        """Whether ‖G‖² is distinguishable from zero, so that the noise scale has an upper limit."""
        return math.isfinite(self.gradient_noise_scale.high)

    def __str__(self) -> str:
        scale, part = self.gradient_noise_scale, f"{100 * self.level:g} %"
        drawn = f"{self.num_draws} draws of {self.small_batch_size} and {self.large_batch_size} examples"
        if self.has_upper_limit:
            return f"B_simple = {scale.estimate:.3g} [{scale.low:.3g}, {scale.high:.3g}] at {part}; {drawn}"
        return (
            f"B_simple is above {scale.low:.3g} at {part} and has no upper limit: ‖G‖² is not distinguishable from "
            f"zero by {drawn}; larger batches or more draws can tell"
        )


def two_batch_estimates(
    small: ArrayLike, large: ArrayLike, *, small_batch_size: int, large_batch_size: int, population: int | None = None
) -> tuple[Floats, Floats]:
    """Return unbiased estimates of tr Σ and of ‖G‖², one of each for every draw.

    Args:
        small: squared gradient norms at the small batch size, or their means over the small batches of a draw.
        large: squared gradient norms at the large batch size.
        small_batch_size: examples of a small batch.
        large_batch_size: examples of a large batch.
        population: None for examples drawn independently, with replacement. For batches drawn without replacement,
            how many examples there are: their noise is tr Σ (N - B) / (B (N - 1)), which is taken into account exactly.

    >>> trace, norm = two_batch_estimates([5.0], [2.0], small_batch_size=1, large_batch_size=4)
    >>> trace.tolist(), norm.tolist()
    ([4.0], [1.0])
    """
    small_D, large_D = np.asarray(small, dtype=np.float64), np.asarray(large, dtype=np.float64)
    if not 0 < small_batch_size < large_batch_size or (population is not None and large_batch_size > population):
        raise UserError(
            f"batches of {small_batch_size} and {large_batch_size} examples"
            f"{'' if population is None else f' out of {population}'} tell nothing about the noise; a small one of at "
            "least 1, a larger one, and no more than there are"
        )
    noise_of_small, noise_of_large = (
        1 / size if population is None else (population / size - 1) / (population - 1)
        for size in (small_batch_size, large_batch_size)
    )
    difference = noise_of_small - noise_of_large
    return (small_D - large_D) / difference, (noise_of_small * large_D - noise_of_large * small_D) / difference


def estimate_noise_scale(
    small: ArrayLike,
    large: ArrayLike,
    *,
    small_batch_size: int,
    large_batch_size: int,
    population: int | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> NoiseScale:
    """Return the noise scale from the squared gradient norms of independent draws; arguments as above.

    tr Σ and ‖G‖² have Student-t intervals. That of their ratio resamples the draws: a bootstrap-t of the angle between
    the two, which stays well behaved where either is zero.

    Args:
        small: shape (num_draws,), for `two_batch_estimates`; so are the next four.
        large: shape (num_draws,).
        small_batch_size: examples of a small batch.
        large_batch_size: examples of a large batch.
        population: None for draws with replacement.
        level: of all intervals.
        seed: of the resampling.
    """
    small_D, large_D = (_checked_norms(values, name) for values, name in ((small, "small"), (large, "large")))
    if len(small_D) != len(large_D):
        raise UserError(f"{len(small_D)} small and {len(large_D)} large squared norms; give one of each for every draw")
    if not 0 < level < 1:
        raise UserError(f"level={level} is not between 0 and 1; use 0.95")
    if not small_D.any() and not large_D.any():
        raise UserError(
            "every gradient is exactly zero, so there is neither a gradient nor noise to measure: the loss does not "
            "depend on the trainable parameters here; check the model and the loss, or measure at other parameters"
        )
    trace_D, norm_D = two_batch_estimates(
        small_D, large_D, small_batch_size=small_batch_size, large_batch_size=large_batch_size, population=population
    )
    return NoiseScale(
        noise_trace=t_interval(trace_D.tolist(), level=level),
        gradient_norm_squared=t_interval(norm_D.tolist(), level=level),
        gradient_noise_scale=_ratio_interval(trace_D, norm_D, unit=large_batch_size, level=level, seed=seed),
        small_batch_size=small_batch_size,
        large_batch_size=large_batch_size,
        num_draws=len(small_D),
        level=level,
    )


def optimal_learning_rate(batch_size: float, *, largest_learning_rate: float, gradient_noise_scale: float) -> float:
    """Return ε_opt(B) = ε_max / (1 + B_noise / B), the learning rate whose next step lowers the loss most.

    Args:
        batch_size: B.
        largest_learning_rate: ε_max, the best one without noise.
        gradient_noise_scale: B_noise = tr(HΣ) / (GᵀHG), which is B_simple where H is the same in all directions.

    >>> optimal_learning_rate(100, largest_learning_rate=2.0, gradient_noise_scale=100.0)
    1.0
    """
    return largest_learning_rate / (1 + gradient_noise_scale / batch_size)


def _checked_norms(values: ArrayLike, name: str) -> Floats:
    norms = np.asarray(values, dtype=np.float64)
    if norms.ndim != 1 or len(norms) < _MIN_DRAWS:
        raise UserError(
            f"squared norms {name!r} of shape {norms.shape} give no interval; give one value for every draw, and at "
            f"least {_MIN_DRAWS} draws"
        )
    if not np.isfinite(norms).all() or norms.min() < 0:
        place = int(np.argmax(~(norms >= 0) | np.isinf(norms)))
        raise UserError(f"squared norm {place} of {name!r} is {norms[place]}; a gradient that overflowed says nothing")
    return norms


def _ratio_interval(trace_D: Floats, norm_D: Floats, *, unit: float, level: float, seed: int) -> Interval:
    """Return mean(trace) / mean(norm) with its limits; a negative mean counts as zero, a ratio over zero as infinite.

    The angle is that of the point (tr Σ / unit, ‖G‖²): 0 where ‖G‖² is zero, a right one where tr Σ is.
    """
    num_draws = len(trace_D)
    points_D2 = np.stack([trace_D / unit, norm_D], axis=1)
    mean_2 = points_D2.mean(axis=0)
    offsets_D2 = points_D2 - mean_2
    products_D3 = _products(offsets_D2)
    counts_RD = _resampled_counts(num_draws, seed=seed)
    shifts_R2 = counts_RD @ offsets_D2 / num_draws
    covariances_R3 = counts_RD @ products_D3 / num_draws - _products(shifts_R2)

    angle, error = _angle(mean_2, products_D3.mean(axis=0))
    angles_R, errors_R = _angle(mean_2 + shifts_R2, covariances_R3)
    lowest, highest = 0.0, 0.0
    if error > 0:
        with np.errstate(divide="ignore", invalid="ignore"):  # resamples of equal draws
            standardised_R = (angles_R - angle) / errors_R
        standardised_R[np.isnan(standardised_R)] = 0.0
        lowest, highest = percentile_limits(standardised_R, level=level)
    angles = (float(angle), float(angle - lowest * error), float(angle - highest * error))
    estimate, low, high = (_ratio_at(value, unit) for value in angles)
    return Interval(estimate=estimate, low=low, high=high)


def _resampled_counts(num_draws: int, *, seed: int) -> Floats:
    """Return how often every draw occurs in resamples of as many, shape (resamples, num_draws)."""
    generator = np.random.default_rng(derive(seed, "resampled draws"))
    chosen_RD = generator.integers(num_draws, size=(_NUM_RESAMPLES, num_draws))
    cells_RD = chosen_RD + num_draws * np.arange(_NUM_RESAMPLES)[:, None]
    counts = np.bincount(cells_RD.ravel(), minlength=_NUM_RESAMPLES * num_draws)
    return counts.reshape(_NUM_RESAMPLES, num_draws).astype(np.float64)


def _products(points: Floats) -> Floats:
    """Return squares and product of pairs (trace, norm): (n, 2) -> (n, 3)."""
    trace, norm = points[:, 0], points[:, 1]
    return np.stack([trace**2, trace * norm, norm**2], axis=1)


def _angle(mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """Return the angle of mean points (..., 2) and its standard error, but for a factor that cancels.

    Covariances are ordered as in `_products`, shape (..., 3).
    """
    trace, norm = mean[..., 0], mean[..., 1]
    variance = norm**2 * covariance[..., 0] - 2 * trace * norm * covariance[..., 1] + trace**2 * covariance[..., 2]
    return np.arctan2(norm, trace), np.sqrt(np.maximum(variance, 0.0)) / (trace**2 + norm**2)


def _ratio_at(angle: float, unit: float) -> float:
    if angle <= 0:
        return math.inf
    return 0.0 if angle >= math.pi / 2 else unit / math.tan(angle)


# -- measuring a model ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """On which batches, and how, the noise is measured.

    Args:
        small_batch_size: examples of a small batch; with ghost batch norm the ghost size.
        large_batch_size: examples of a large batch, the union of small ones. The larger, the better ‖G‖² is known.
        num_draws: how many large batches, independent of one another.
        sampling: how the examples of a draw are chosen. "with_replacement": independently, so that the formulas above
            hold as they stand, whatever else is random about an example. "without_replacement": all different, with the
            exact correction for a finite training set; the large batch may then be all of it, which makes ‖G‖² exact.
        mode: "train"; or "evaluate": no dropout, batch norm with running statistics, no augmentation.
        seed: of the choice, of augmentation and of the resampling.
        level: of the intervals.
        num_at_once: small batches computed at once; None for what a GiB holds. 1 takes one after another, for modules
            that `torch.func.vmap` cannot take.
        num_windows_before: of a text, how many windows before the measured one the model's state comes from.
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
        least = {"small_batch_size": 1, "large_batch_size": 2, "num_draws": _MIN_DRAWS, "num_windows_before": 0}
        if self.num_at_once is not None:
            least["num_at_once"] = 1
        for name, lowest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise UserError(f"{name}={value!r} is not a whole number of at least {lowest}")
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
                f"of {self.small_batch_size}; use {smaller}, or give more examples: one batch size tells nothing"
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
    """Measure the gradient noise scale of a module at its present parameters; the module is left as it is.

    In training mode batch norm, which couples the examples of a batch, is refused, and so is whatever draws random
    numbers, such as dropout. Ghost batch norm couples the examples of a ghost batch: the small batch has to be one, and
    tr Σ is the ghost size times the noise of one.

    Args:
        module: in float32 or float64, on the device to compute on.
        loss: a name from `isotherm.tasks.LOSSES`, or a function (output, target) -> mean over the batch.
        inputs: of all examples; floating-point values are taken in the precision of the module.
        targets: of all examples.
        measurement: on which batches, and how.
        l2: coefficient of the penalty ½ l2 ‖w‖², whose gradient is part of G.
        l2_scope: what it covers.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        raise UserError(f"unknown loss {loss!r}; {nearest(loss, LOSSES)}; or pass a function (output, target) -> mean")
    if len(inputs) != len(targets):
        raise UserError(f"{len(inputs)} inputs and {len(targets)} targets; there must be as many")
    if not (math.isfinite(l2) and l2 >= 0) or l2_scope not in get_args(L2Scope):
        known = " or ".join(map(repr, get_args(L2Scope)))
        raise UserError(f"l2={l2} with l2_scope={l2_scope!r} is no penalty; give a number >= 0 and {known}")

    def read(index: Tensor) -> tuple[Tensor, Tensor]:
        return inputs[index.to(inputs.device)], targets[index.to(targets.device)]

    function = LOSSES[loss] if isinstance(loss, str) else loss
    examples = _Examples(num=len(inputs), read=read)
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

    Of a task with `unroll` an example is a window of that many tokens, one update of one stream, wherever in
    the text; the state is that of the same parameters after the windows before it. Clipping is left out: the noise is
    that of the gradients before it.

    Args:
        task: what is trained.
        parameters: `state_dict()` of its model; by default those with which a run of the measurement's seed begins.
        measurement: on which batches, and how.
        precision: of the computation, whatever the task's is.
        device: where.
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
    """Measure the gradient noise scale of a task at several steps of its training, on the same batches at every step.

    Args:
        task: what is trained.
        checkpoints: steps and the parameters after them; None for the initial ones.
        measurement: as for `noise_scale_of_task`; so are the others.
        precision: of the computation.
        device: where.
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
            raise UserError(f"task {task.name!r}, step {step}: {error}") from error
        found.append((step, scale))
    return found


# -- examples -------------------------------------------------------------------------------------------------------


def _plain_output(call: Callable[..., Any], x: Tensor) -> Any:
    return call(x)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class _Examples:
    """What is drawn from, and how the model takes it.

    Args:
        num: how many there are.
        read: indices -> inputs and targets.
        output: (module or a stand-in, inputs) -> output.
        scale: the loss is multiplied by this.
    """

    num: int
    read: Callable[[Tensor], tuple[Tensor, Tensor]]
    output: Callable[[Callable[..., Any], Tensor], Any] = _plain_output
    scale: float = 1.0


def _examples_of(task: Task, module: nn.Module, measurement: Measurement) -> _Examples:
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
            x = inputs.fetch(index.numpy(), seed=measurement.seed, step=next(steps))
        else:
            x = inputs.fetch(index.numpy())
        x, y = x.to(device), targets[index].to(device)
        if task.transform is None:
            return x, y
        x = task.transform.train(x, bits) if measurement.is_training else task.transform.evaluate(x)
        return x, task.transform.targets(y)

    return _Examples(num=task.num_train, read=read)


def _random_bits(device: torch.device, measurement: Measurement) -> RandomBits:
    """Return where a transform takes its random numbers from."""
    generator = torch.Generator(device).manual_seed(derive(measurement.seed, "augmented gradients") % 2**63)

    def bits(shape: tuple[int, ...]) -> Tensor:
        _refuse_correction(measurement, "the transform draws random numbers in training mode")
        return torch.randint(2**32, shape, generator=generator, device=device)

    return bits


def _windows_of(task: Task, module: nn.Module, *, unroll: int, num_before: int) -> _Examples:
    """Return the windows of a text as examples; inputs begin with the windows before."""
    inputs, targets = task.train
    assert isinstance(inputs, Tensor)  # the task has seen to it
    places = torch.arange((num_before + 1) * unroll)

    def read(index: Tensor) -> tuple[Tensor, Tensor]:
        place = index[:, None] * unroll + places
        return inputs[place], targets[place[:, -unroll:]]

    def output(call: Callable[..., Any], x: Tensor) -> Any:
        like = next(module.parameters())
        state = cast(Any, module).initial_state(len(x)).to(like.device, like.dtype)
        for start in range(0, num_before * unroll, unroll):
            with torch.no_grad():
                state = call(x[:, start : start + unroll], state)[1]
        return call(x[:, -unroll:], state)[0]

    return _Examples(num=max(0, task.num_train // unroll - num_before), read=read, output=output, scale=float(unroll))


def _load(module: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Copy parameters and buffers into the module, or say which do not fit."""
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


# -- gradients ------------------------------------------------------------------------------------------------------


def _measured(
    module: nn.Module,
    loss: LossFunction,
    examples: _Examples,
    measurement: Measurement,
    *,
    l2: float,
    l2_scope: L2Scope,
) -> NoiseScale:
    if measurement.is_training:
        _refuse_coupling(module, measurement)
    gradients = _Gradients(module, loss, examples, measurement, l2=l2, l2_scope=l2_scope)
    with _exact_arithmetic(gradients.device):
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
    """Refuse layers under which a batch is more than its examples, other than ghosts of the right size."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            raise UserError(
                f"layer {name!r} ({type(part).__name__}) normalises with the statistics of the batch, so that the "
                "gradient is no mean over examples; use mode='evaluate' for running statistics, or GhostBatchNorm2d"
            )
        if isinstance(part, GhostBatchNorm2d):
            if part.ghost_size != measurement.small_batch_size:
                raise UserError(
                    f"layer {name!r} normalises ghost batches of {part.ghost_size}, but small_batch_size="
                    f"{measurement.small_batch_size}; use small_batch_size={part.ghost_size}, or mode='evaluate'"
                )
            _refuse_correction(measurement, f"layer {name!r} couples the examples of a ghost batch")


class _Gradients:
    """Gradients of batches at the parameters of a module.

    Shape suffixes: K small batches, B examples of each.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction,
        examples: _Examples,
        measurement: Measurement,
        *,
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
        self._module = copy.deepcopy(module).train(measurement.is_training)
        self._loss, self._examples = loss, examples
        self._num_at_once = measurement.num_at_once

    def check(self, index_KB: NDArray[np.int64]) -> None:
        """Try two small batches, refuse what cannot be measured, and choose how many are computed at once."""
        x_2B, y_2B = self._read(index_KB[:2])
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            before = _generator_states(self.device)
            try:
                if self._num_at_once is None:
                    self._num_at_once = self._num_that_fit(x_2B[0], y_2B[0])
                apart, _ = self._of_batches(x_2B, y_2B)
                joint, _ = self._of_batches(x_2B.flatten(0, 1)[None], y_2B.flatten(0, 1)[None])
            except UserError:
                raise
            except Exception as error:
                raise UserError(
                    f"the gradient of a batch cannot be computed: {type(error).__name__}: {error}; for a model that "
                    "torch.func.vmap cannot take use num_at_once=1"
                ) from error
            after = _generator_states(self.device)
        if not all(map(torch.equal, before, after)):
            raise UserError(
                "the model draws random numbers in this mode (dropout, noise), so that its gradient is not that of the "
                "examples alone; use mode='evaluate', or take the noise out of the model"
            )
        size = sum(float(gradient.square().sum()) for gradient in apart.values())
        gap = sum(float((joint[name][0] - gradient.mean(dim=0)).square().sum()) for name, gradient in apart.items())
        if math.sqrt(gap) > _ROUNDING[self._dtype] * math.sqrt(size):
            raise UserError(
                "the gradient of two batches together is not the mean of theirs: either the loss is no mean over the "
                "batch, or the model couples the examples of a batch; return a mean, or try mode='evaluate'"
            )

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
        """Return inputs and targets, the first two dimensions as those of the index."""
        pair = self._examples.read(torch.from_numpy(index_KB.reshape(-1)))
        x, y = (t.to(self.device, self._dtype if t.is_floating_point() else t.dtype) for t in pair)
        return x.reshape(*index_KB.shape, *x.shape[1:]), y.reshape(*index_KB.shape, *y.shape[1:])

    def _of_batches(self, x_KB: Tensor, y_KB: Tensor) -> tuple[Tensors, Tensor]:
        """Return the gradients of batches, their first dimension K, and the losses, (K,)."""
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
        """Return how many small batches like this one fit into the memory at once, at least one."""
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
        of_activations = sum(size for place, size in kept.items() if place not in own)
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


@contextmanager
def _exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Within this context float32 means float32: cuDNN would round the inputs of convolutions to 10 bits."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        yield
