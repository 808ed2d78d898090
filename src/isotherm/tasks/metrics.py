"""Metrics by name: what a trained model is judged by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isotherm.core.records import Direction
from isotherm.errors import UserError
from isotherm.tasks.losses import LOSSES, LossFunction, cross_entropy, mean_squared_error, squared_error


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A mean over examples, (output, target) -> scalar, and which way it improves.

    With `exponential` the metric is the exponential of that mean: perplexity is that of the cross entropy. `bounds` are
    the least and the largest value it can have, where there are such: intervals stay within them.
    """

    name: str
    function: LossFunction
    direction: Direction
    exponential: bool = False
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not callable(self.function):
            raise UserError(f"a metric needs a name and a function (output, target) -> mean, not {self.name!r}")
        try:
            object.__setattr__(self, "direction", Direction(self.direction))
        except ValueError as error:
            ways = " or ".join(repr(str(way)) for way in Direction)
            raise UserError(f"metric {self.name!r}: direction {self.direction!r} is unknown; use {ways}") from error


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of examples whose largest logit is the label."""
    return (output.argmax(dim=-1) == target).to(output.dtype).mean()


METRICS: dict[str, Metric] = {
    "accuracy": Metric(name="accuracy", function=accuracy, direction=Direction.MAXIMISE, bounds=(0.0, 1.0)),
    "mean_squared_error": Metric(name="mean_squared_error", function=mean_squared_error, direction=Direction.MINIMISE),
    "squared_error": Metric(name="squared_error", function=squared_error, direction=Direction.MINIMISE),
    "cross_entropy": Metric(name="cross_entropy", function=cross_entropy, direction=Direction.MINIMISE),
    "perplexity": Metric(name="perplexity", function=cross_entropy, direction=Direction.MINIMISE, exponential=True),
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
