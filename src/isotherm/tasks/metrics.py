"""Metrics by name: what a trained model is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor

from isotherm.core.checks import is_number
from isotherm.core.records import Direction
from isotherm.errors import UserError
from isotherm.tasks.losses import (
    LOSSES,
    LossFunction,
    binary_cross_entropy,
    cross_entropy,
    mean_squared_error,
    squared_error,
)
from isotherm.tasks.split_metrics import auc, macro_f1, r_squared

MetricFunction = Callable[[Tensor, Tensor], Any]
Over = Literal["examples", "split"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """What a model is judged by: a function (output, target) -> number, and which way it improves.

    Args:
        name: how it is shown.
        function: with over="examples" it returns the mean over the examples it is given, as a scalar tensor, and is
            called with parts of a split. With over="split" it gets all outputs and targets of a split at once, of one
            run, and may return any number.
        direction: "maximise" or "minimise".
        over: "split" for what is no mean over examples, such as F1 or a correlation.
        bounds: the smallest and the largest value there can be, such as (0, 1); None where there are none.
        exponential: the metric is the exponential of the function's value: perplexity is that of the cross entropy.
    """

    name: str
    function: MetricFunction
    direction: Direction
    exponential: bool = False
    over: Over = "examples"
    bounds: tuple[float, float] | None = field(default=None, compare=False)  # says nothing about how it is computed

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not callable(self.function):
            raise UserError(
                f"a metric needs a name and a function, not {self.name!r} and {self.function!r}; "
                "give e.g. name='mine' and function=lambda output, target: (output - target).abs().mean()"
            )
        try:
            object.__setattr__(self, "direction", Direction(self.direction))
        except ValueError as error:
            ways = " or ".join(repr(str(way)) for way in Direction)
            raise UserError(f"metric {self.name!r}: direction {self.direction!r} is unknown; use {ways}") from error
        if self.over not in get_args(Over):
            raise UserError(
                f"metric {self.name!r}: over={self.over!r} is unknown; use 'examples' for a mean over examples, "
                "'split' for a function of all outputs of a split"
            )
        object.__setattr__(self, "bounds", _checked_bounds(self.bounds, self.name))


def _checked_bounds(bounds: Any, name: str) -> tuple[float, float] | None:
    if bounds is None:
        return None
    is_pair = isinstance(bounds, Sequence) and len(bounds) == 2 and all(is_number(bound) for bound in bounds)
    if not is_pair or math.isnan(sum(bounds)) or not bounds[0] < bounds[1]:
        raise UserError(f"metric {name!r}: bounds={bounds!r} is no pair (smallest, largest); use e.g. (0, 1)")
    return float(bounds[0]), float(bounds[1])


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of examples whose largest logit is the label."""
    return (output.argmax(dim=-1) == target).to(output.dtype).mean()


def metric_of_constant(metric: MetricFunction, target: Tensor) -> float | None:
    """Return the best a constant output reaches by accuracy or R², which is to be maximised; None of other metrics.

    An output that has nothing to do with its input reaches a little more by chance: three standard errors are added.

    >>> import torch
    >>> round(metric_of_constant(accuracy, torch.tensor([0, 1, 1, 1] * 2500)), 3)
    0.763
    """
    if metric is r_squared:
        return 0.0
    if metric is not accuracy:
        return None
    labels = target.flatten()
    most_frequent = float(labels[labels >= 0].bincount().max()) / len(labels)
    return most_frequent + 3 * math.sqrt(most_frequent * (1 - most_frequent) / len(labels))


def _metric(name: str, function: MetricFunction, **settings: Any) -> Metric:
    return Metric(name=name, function=function, **{"direction": Direction.MINIMISE, **settings})


_SCORE = {"direction": Direction.MAXIMISE, "bounds": (0.0, 1.0)}

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _metric("accuracy", accuracy, **_SCORE),
        _metric("auc", auc, over="split", **_SCORE),
        _metric("bce", binary_cross_entropy),
        _metric("cross_entropy", cross_entropy),
        _metric("f1", macro_f1, over="split", **_SCORE),
        _metric("mean_squared_error", mean_squared_error),
        _metric("mse", mean_squared_error),
        _metric("perplexity", cross_entropy, exponential=True),
        _metric("r2", r_squared, over="split", direction=Direction.MAXIMISE),
        _metric("squared_error", squared_error),
    )
}
# The default metric of a loss; other losses are their own metric.
_DEFAULT_METRICS = {"cross_entropy": "accuracy", "half_squared_error": "squared_error"}


def default_metric(loss: str | LossFunction) -> str | Metric:
    """Return the metric of a task that names none.

    >>> default_metric("cross_entropy"), default_metric("mean_squared_error")
    ('accuracy', 'mean_squared_error')
    """
    if not isinstance(loss, str):
        return Metric(name="loss", function=loss, direction=Direction.MINIMISE)
    name = _DEFAULT_METRICS.get(loss, loss)
    if name in METRICS or loss not in LOSSES:  # an unknown loss is refused elsewhere
        return name
    return Metric(name=loss, function=LOSSES[loss], direction=Direction.MINIMISE)
