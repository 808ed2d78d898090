"""Checks of what a task is given: data, loss, metric and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotherm.core.checks import is_number
from isotherm.errors import UserError, nearest
from isotherm.tasks import frames
from isotherm.tasks.inputs import LazyInputs, Split, pieces
from isotherm.tasks.metrics import Metric
from isotherm.tasks.target_checks import check_between_0_and_1, checked_labels

_EXPECTED = {
    "loss": "a function (output, target) -> mean",
    "metric": "an isotherm.Metric(name='mine', function=..., direction='maximise')",
}


def check_known(value: Any, table: Mapping[str, Any], *, what: str, task: str) -> None:
    """Refuse a loss or metric that is neither a known name nor of the right kind."""
    if isinstance(value, str) and value not in table:
        raise UserError(f"task {task!r}: unknown {what} {value!r}; {nearest(value, table)}; or pass your own")
    if isinstance(value, type):
        raise UserError(f"task {task!r}: {what} is the class {value.__name__}; give an object: {value.__name__}(...)")
    if not isinstance(value, str) and not (callable(value) if what == "loss" else isinstance(value, Metric)):
        raise UserError(f"task {task!r}: {what} is {type(value).__name__}; give a name or {_EXPECTED[what]}")


def check_choice(value: object, choices: tuple[str, ...], *, what: str, task: str) -> None:
    """Refuse a setting that is not one of its choices."""
    if value not in choices:
        known = ", ".join(map(repr, choices))
        raise UserError(f"task {task!r}: {what}={value!r} is unknown; use one of {known}")


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse unknown names and suggest the nearest."""
    for name in given:
        if name not in known:
            raise UserError(f"{what} takes no {name!r}; {nearest(name, known)}")


def check_numbers(*, l2: Any, clip_norm: Any, task: str) -> None:
    """Refuse a negative penalty and a clipping norm that is not positive."""
    where = f"task {task!r}"
    if not is_number(l2) or not math.isfinite(l2) or l2 < 0:
        raise UserError(f"{where}: l2={l2!r} is not a number >= 0; use 0 for no penalty")
    if clip_norm is not None and not (is_number(clip_norm) and clip_norm > 0):
        raise UserError(f"{where}: clip_norm={clip_norm!r} is not above 0; use None to clip nothing")


def check_shapes(splits: Mapping[str, Split], *, task: str) -> None:
    """Refuse splits whose examples differ in shape."""
    for position, what in enumerate(("examples", "targets")):
        shapes = {part: tuple(split[position].shape[1:]) for part, split in splits.items()}
        if len(set(shapes.values())) > 1:
            raise UserError(f"task {task!r}: {what} differ in shape between splits: {shapes}; make them equal")


def check_metric_of_sequence(metric: Metric, *, task: str) -> None:
    """Refuse a metric over a split for a sequence, whose outputs would not fit into memory."""
    if metric.over == "split":
        raise UserError(
            f"task {task!r}: with unroll a metric is a mean over tokens, and {metric.name!r} is one over the split; "
            "use 'perplexity', 'cross_entropy' or 'accuracy', or a Metric(over='examples') of your own"
        )


def check_sequences(splits: Mapping[str, Split], *, unroll: Any, task: str) -> None:
    """Refuse what cannot be read as one long sequence, `unroll` tokens at a time."""
    where = f"task {task!r}"
    if isinstance(unroll, bool) or not isinstance(unroll, int) or unroll < 1:
        raise UserError(f"{where}: unroll must be a whole number of at least 1, not {unroll!r}; the paper uses 35")
    for part, (inputs, targets) in splits.items():
        if len(inputs.shape) != 1 or targets.ndim != 1 or inputs.dtype.is_floating_point:
            raise UserError(
                f"{where}, {part} data: with unroll each must be one sequence of whole numbers, got shapes "
                f"{tuple(inputs.shape)} and {tuple(targets.shape)}; use (tokens[:-1], tokens[1:])"
            )


def checked_split(pair: Any, *, where: str, loss: Any) -> Split:
    """Return a split as tensors, sharing the memory of tensors and writeable arrays; refuse what cannot be trained on.

    Args:
        pair: inputs and targets.
        where: names the split in errors.
        loss: decides what targets there can be.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"{where}: {_what_it_is(pair)}; give a pair (inputs, targets), e.g. {_as_pair(pair)}")
    if isinstance(pair[0], LazyInputs) and not isinstance(pair[0], Tensor):
        return _checked_lazy(pair[0], pair[1], where, loss=loss)
    frames.check_same_rows(pair[0], pair[1], where)
    inputs, targets = as_tensor(pair[0], f"{where}, inputs"), as_tensor(pair[1], f"{where}, targets")
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        raise UserError(
            f"{where}: inputs of shape {tuple(inputs.shape)} and targets of shape {tuple(targets.shape)} "
            "differ in length; the first dimension of both counts the examples"
        )
    if len(inputs) == 0:
        raise UserError(f"{where}: it is empty; give at least one example")
    refuse_non_finite(inputs, f"{where}, inputs")
    return inputs, _checked_targets(targets, pair[1], where, loss=loss)


def _checked_targets(targets: Tensor, given: Any, where: str, *, loss: Any) -> Tensor:
    refuse_non_finite(targets, f"{where}, targets")
    if loss == "bce":
        check_between_0_and_1(targets, given, where)
    return checked_labels(targets, given, where) if loss == "cross_entropy" else targets


def _checked_lazy(inputs: LazyInputs, given: Any, where: str, *, loss: Any) -> Split:
    targets = as_tensor(given, f"{where}, targets")
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise UserError(
            f"{where}: {len(inputs)} inputs and {len(targets)} targets; give one target per input, and at least one"
        )
    return inputs, _checked_targets(targets, given, where, loss=loss)


def _what_it_is(pair: Any) -> str:
    return f"it is a {type(pair).__name__}" + (f" of {len(pair)}" if isinstance(pair, tuple | list) else "")


def _as_pair(pair: Any) -> str:
    """Return how a pair is made of what was given."""
    if isinstance(pair, Mapping) and len(pair) == 2:
        return "({}, {})".format(*(f"data[{name!r}]" for name in pair))
    return "(x, y)"


def as_tensor(value: Any, where: str) -> Tensor:
    """Return a value as a tensor on the CPU, or say why it is none.

    Args:
        value: a tensor, an array, an object that NumPy takes for one (`__array__`), a table of pandas, or lists.
        where: names it in errors.
    """
    try:
        if frames.is_pandas(value):
            value = frames.as_array(value, where)
        elif not isinstance(value, Tensor | np.ndarray) and hasattr(value, "__array__"):
            value = np.asarray(value)
        if isinstance(value, Tensor) and value.layout != torch.strided:
            raise UserError(f"{where}: the tensor is sparse; use x.to_dense()")
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()  # a model that writes to its inputs would crash on memory that is read-only
        return torch.as_tensor(value).detach().cpu()
    except UserError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{where}: {_why_no_tensor(value)}") from error


def _why_no_tensor(value: Any) -> str:
    """Return why a value is no tensor, and how to make it one."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return "the rows differ in length; pad them to one length and stack them, e.g. torch.stack(rows)"
    if array.dtype.kind in "US" or any(isinstance(item, str) for item in array.flat):
        return "they are strings; number them, e.g. for class names np.unique(y, return_inverse=True)[1]"
    if array.ndim == 0:
        return f"{type(value).__name__} is neither a tensor nor an array; collect the examples, e.g. torch.stack(list)"
    return f"PyTorch has no type like {array.dtype}; convert them, e.g. np.asarray(x).astype('float32')"


def refuse_non_finite(tensor: Tensor, where: str) -> None:
    """Refuse a tensor that holds a value that is not finite, and say where it is."""
    if not tensor.is_floating_point():
        return
    offset = 0
    for piece in pieces(tensor):
        is_finite = torch.isfinite(piece)
        if not bool(is_finite.all()):
            position = offset + int(is_finite.logical_not().nonzero()[0])
            index = [int(i) for i in np.unravel_index(position, tuple(tensor.shape))]
            value = float(tensor[tuple(index)])
            raise UserError(f"{where}: the value at index {index} is {value}; remove or replace it before training")
        offset += len(piece)
