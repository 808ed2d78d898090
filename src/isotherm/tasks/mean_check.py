"""Is a user's metric the mean over examples that it is taken for? Compared over a few examples and parts of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.errors import UserError
from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS, MetricFunction
from isotherm.tasks.task import Task

# Examples that are compared with parts of them.
NUM_EXAMPLES = 128
# Rounding in float32 is a smaller part of the values than this; what is no mean differs by more.
_TOLERANCE = 1e-4
_ROUNDINGS = 8  # of the type that the function returns
_FEWEST = 4  # examples; parts of a single one are not tried


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A function over some examples, and how it is put together from parts of them."""

    num: int
    whole: float
    mean_of_parts: float
    sum_of_parts: float
    rounding: float

    @property
    def is_mean(self) -> bool:
        """Tell whether the whole is the mean over its parts, up to rounding."""
        return abs(self.whole - self.mean_of_parts) <= self.rounding

    @property
    def is_sum(self) -> bool:
        """Tell whether the whole is the sum over its parts, up to rounding."""
        return abs(self.whole - self.sum_of_parts) <= self.rounding


def has_own_mean(task: Task) -> bool:
    """Tell whether the loss or a metric over examples is the user's own."""
    metric = task.metric_definition
    return task.loss_function not in LOSSES.values() or (metric.over == "examples" and not _is_known(metric.function))


def check_means(task: Task, output: Tensor, target: Tensor) -> None:
    """Refuse a metric over examples that is no mean over them, and a loss that is a sum.

    Args:
        task: what is to be trained.
        output: of the untrained model for up to `NUM_EXAMPLES` examples.
        target: of the same examples.
    """
    where, metric = f"task {task.name!r}", task.metric_definition
    if task.loss_function not in LOSSES.values():
        wrong = first_difference(task.loss_function, output, target)
        if wrong is not None and wrong.is_sum:
            raise UserError(
                f"{where}: the loss is a sum over the batch, {wrong.whole:.4g} over {wrong.num} examples, so the best "
                "learning rate would depend on the batch size; return the mean, e.g. .mean() instead of .sum()"
            )
    if metric.over == "split" or _is_known(metric.function):
        return
    wrong = first_difference(metric.function, output, target)
    if wrong is None:
        return
    what = f"metric {metric.name!r}"
    remedy = "pass over='split' to Metric, so that it gets all outputs of a split at once"
    if metric.function is task.loss_function:
        what = "the loss, which is the metric too,"
        remedy = (
            "name another metric, or judge by the loss over the whole split with "
            "metric=it.Metric(name='loss', function=..., direction='minimise', over='split')"
        )
    raise UserError(
        f"{where}: {what} is no mean over examples: {wrong.whole:.4g} over {wrong.num} examples, but "
        f"{wrong.mean_of_parts:.4g} as the mean over parts of them; {remedy}"
    )


def check_bounds(task: Task, output: Tensor, target: Tensor) -> None:
    """Refuse a user's metric that leaves its bounds; one named like a built-in metric has the bounds of that."""
    metric = task.metric_definition
    bounds = metric.bounds or (METRICS[metric.name].bounds if metric.name in METRICS else None)
    if bounds is None:
        return
    for tried in (output, _as_if_trained(output, target)):
        value = _value(metric.function, tried, target)
        if math.isfinite(value) and not bounds[0] - _TOLERANCE <= value <= bounds[1] + _TOLERANCE:
            remedy = "correct bounds=" if metric.bounds else "return such a value, or give the metric another name"
            raise UserError(
                f"task {task.name!r}: metric {metric.name!r} is {value:.4g} for some outputs, and it lies from "
                f"{bounds[0]:g} to {bounds[1]:g}; {remedy}"
            )


def first_difference(function: MetricFunction, output: Tensor, target: Tensor) -> Comparison | None:
    """Return the first comparison in which a function is no mean over examples; None if it always is.

    An untrained model may show no difference, as where it is always wrong: outputs of a model that has learned
    something are tried too. Nothing is said of outputs for which the function is not finite over all examples.
    """
    for tried in (output, _as_if_trained(output, target)):
        found = _difference(function, tried, target)
        if found is not None:
            return found
    return None


def _difference(function: MetricFunction, output: Tensor, target: Tensor) -> Comparison | None:
    whole, num = _value(function, output, target), len(target)
    if num < _FEWEST or not math.isfinite(whole):
        return None
    tolerance = _tolerance(function, output, target)
    largest = float(output[output.isfinite()].abs().max())
    smallest = _ROUNDINGS * torch.finfo(output.dtype).eps * largest  # the error of values that cancel
    for index, sizes in _partitions(output, target):
        parts = torch.split(index, sizes)
        values = [_value(function, output[part], target[part]) for part in parts]
        found = Comparison(
            num=num,
            whole=whole,
            mean_of_parts=sum(value * size for value, size in zip(values, sizes, strict=True)) / num,
            sum_of_parts=sum(values),
            rounding=tolerance * max(map(abs, (whole, *values))) + smallest,
        )
        if not found.is_mean:  # also where a part is NaN
            return found
    return None


def _as_if_trained(output: Tensor, target: Tensor) -> Tensor:
    """Return outputs that are right more often than not; those of classes are probabilities if the model's are."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    is_of_classes = output.shape[:-1] == target.shape and not target.is_floating_point()
    if not is_of_classes or int(target.max()) >= output.shape[-1] or int(target.min()) < 0:
        order = torch.randperm(len(target), generator=generator)
        return 0.7 * target + 0.3 * target[order] if output.shape == target.shape else output[order]
    labels = torch.nn.functional.one_hot(target, output.shape[-1])
    logits = 2 * (noise + labels)
    are_probabilities = float(output.min()) >= 0 and torch.allclose(output.sum(dim=-1), output.new_ones(()))
    return logits.softmax(dim=-1) if are_probabilities else logits


def _partitions(output: Tensor, target: Tensor) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield orders of the examples and the sizes of the parts that they are cut into.

    Sorted by target or output, parts are as unlike each other as they can be: a test set may well be in such an order.
    """
    num = len(target)
    orders = [torch.arange(num), _key(target).argsort(stable=True), _key(output).argsort(stable=True)]
    for order in orders:
        yield order, [num // 2, num - num // 2]
        few = max(2, num // 4)
        yield order, [few, num - few]


def _key(values: Tensor) -> Tensor:
    return values.detach().double().reshape(len(values), -1)[:, 0]


def _value(function: MetricFunction, output: Tensor, target: Tensor) -> float:
    """Return a value; NaN where the function raises, as one of correlations does where a part is constant."""
    try:
        return float(function(output.clone(), target.clone()))
    except Exception:  # it took all examples: of some of them it is no number
        return math.nan


def _tolerance(function: MetricFunction, output: Tensor, target: Tensor) -> float:
    value = function(output.clone(), target.clone())
    is_real = isinstance(value, Tensor) and value.is_floating_point()
    return max(_TOLERANCE, _ROUNDINGS * torch.finfo(value.dtype).eps) if is_real else _TOLERANCE


def _is_known(function: MetricFunction) -> bool:
    return function in [metric.function for metric in METRICS.values() if metric.over == "examples"] + [
        *LOSSES.values()
    ]
