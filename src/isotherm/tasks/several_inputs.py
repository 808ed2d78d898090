"""Inputs of several tensors: packed into one for the engines, and taken apart in front of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isotherm.errors import UserError
from isotherm.tasks.checks import as_tensor, refuse_non_finite

# Whole numbers up to this one are exact in float32.
_LARGEST_EXACT = 2**24


@dataclass(frozen=True, kw_only=True, slots=True)
class InputField:
    """One tensor of several.

    Args:
        name: the argument of the model; None where arguments go by position.
        shape: of one example.
        dtype: as given.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_values(self) -> int:
        """Values of one example."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        name = "" if self.name is None else f"{self.name} "
        return f"{name}{self.shape} {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class InputLayout:
    """How several tensors lie side by side in one tensor (n, values).

    Whole numbers beside floating-point ones are stored as those, exactly: up to 2^24, which is checked.

    >>> x, mask = torch.tensor([[0.5, 1.5]]), torch.tensor([[True, False]])
    >>> layout = InputLayout.of({"x": x, "mask": mask})
    >>> layout.pack([x, mask]).tolist()
    [[0.5, 1.5, 1.0, 0.0]]
    >>> layout.unpack(layout.pack([x, mask]))[1].tolist()
    [[True, False]]
    """

    fields: tuple[InputField, ...]

    @classmethod
    def of(cls, tensors: Mapping[Any, Tensor] | Sequence[Tensor]) -> InputLayout:
        """Return the layout of tensors with one row per example, by name or by position."""
        named = tensors.items() if isinstance(tensors, Mapping) else ((None, tensor) for tensor in tensors)
        return cls(fields=tuple(InputField(name=name, shape=tuple(t.shape[1:]), dtype=t.dtype) for name, t in named))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the packed tensor: the widest that occurs, int64 for several kinds of whole numbers."""
        dtypes = {field.dtype for field in self.fields}
        if len(dtypes) == 1:
            return dtypes.pop()
        floating = {dtype for dtype in dtypes if dtype.is_floating_point}
        if not floating:
            return torch.int64
        return torch.float64 if torch.float64 in floating else torch.float32

    @property
    def num_values(self) -> int:
        """Values of one packed example."""
        return sum(field.num_values for field in self.fields)

    def pack(self, tensors: Sequence[Tensor], where: str = "inputs") -> Tensor:
        """Return the tensors side by side, shape (n, values)."""
        if self.dtype.is_floating_point:
            for field, tensor in zip(self.fields, tensors, strict=True):
                _check_exact(field, tensor, where)
        return torch.cat([tensor.reshape(len(tensor), -1).to(self.dtype) for tensor in tensors], dim=1)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Return the tensors again; floating-point ones have the dtype of the packed tensor, which is the run's."""
        found, start = [], 0
        for field in self.fields:
            values = packed[:, start : start + field.num_values].reshape(-1, *field.shape)
            found.append(values if field.dtype.is_floating_point else values.to(field.dtype))
            start += field.num_values
        return found

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))


def _check_exact(field: InputField, tensor: Tensor, where: str) -> None:
    if field.dtype.is_floating_point or field.dtype == torch.bool or not tensor.numel():
        return
    largest = max(int(tensor.max()), -int(tensor.min()))
    if largest > _LARGEST_EXACT:
        raise UserError(
            f"{where}: {field} holds {largest:,}; beside floating-point inputs whole numbers are exact up to "
            f"{_LARGEST_EXACT:,} only: number them from 0, or give inputs of whole numbers alone"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedModel:
    """Builds a model of several inputs as one that takes the packed tensor.

    Args:
        build: the user's builder.
        layout: of the inputs.
    """

    build: Callable[[], nn.Module]
    layout: InputLayout

    def __call__(self) -> nn.Module:
        """Return a fresh module."""
        return Unpacked(self.build(), self.layout)


class Unpacked(nn.Module):
    """Calls a module with the tensors of a packed one: by name, or by position."""

    def __init__(self, module: nn.Module, layout: InputLayout) -> None:
        super().__init__()
        self.module = module
        self.layout = layout

    def forward(self, packed: Tensor) -> Any:
        """Return what the module returns."""
        tensors = self.layout.unpack(packed)
        names = [field.name for field in self.layout.fields]
        if names[0] is None:
            return self.module(*tensors)
        return self.module(**dict(zip(names, tensors, strict=True)))  # type: ignore[arg-type]


def packed_pair(pair: Any, where: str) -> tuple[Any, InputLayout | None]:
    """Return the pair with several inputs packed into one tensor, and their layout; any other pair as it is.

    Several inputs are a mapping, or a tuple of tensors or arrays that each have one row per target.
    """
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return pair, None
    inputs, targets = pair
    if isinstance(layout := getattr(inputs, "layout", None), InputLayout):
        return pair, layout
    if not are_several(inputs, num=_length(targets)):
        return pair, None
    named = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    tensors = {name: as_tensor(value, f"{where}, input {name!r}") for name, value in named}
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or len(tensor) != _length(targets):
            raise UserError(
                f"{where}: input {name!r} of shape {tuple(tensor.shape)} and {_length(targets)} targets differ in "
                "length; the first dimension of each input counts the examples"
            )
        refuse_non_finite(tensor, f"{where}, input {name!r}")
    layout = InputLayout.of(tensors if isinstance(inputs, Mapping) else list(tensors.values()))
    return (layout.pack(list(tensors.values()), where), targets), layout


def check_packed(inputs: Any, layout: InputLayout, where: str) -> None:
    """Refuse inputs of one tensor for a task whose inputs are several, unless they are packed already."""
    if tuple(inputs.shape[1:]) != (layout.num_values,) or inputs.dtype != layout.dtype:
        raise UserError(
            f"{where}: the task takes several inputs ({layout}), and this is one tensor of shape {tuple(inputs.shape)} "
            f"and {inputs.dtype}; give a dict or a tuple of tensors"
        )


def are_several(inputs: Any, *, num: int | None = None) -> bool:
    """Tell whether inputs are several tensors, with `num` rows each if that is given.

    A tuple of numbers is one vector, whether they are Python's or NumPy's.

    >>> are_several((torch.zeros(3), torch.zeros(2))), are_several((np.float64(1.0), np.float64(2.0)))
    (True, False)
    """
    if isinstance(inputs, Mapping):
        return len(inputs) > 0
    if not isinstance(inputs, tuple) or not inputs or not all(map(_is_array, inputs)):
        return False
    return num is None or (len(inputs) != num and all(_length(value) == num for value in inputs))


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        return None


def common_layout(
    layouts: Mapping[str, InputLayout | None], given: InputLayout | None, task: str
) -> InputLayout | None:
    """Return the layout that all splits share.

    Args:
        layouts: by split; None for inputs of one tensor.
        given: of splits that are packed already.
        task: its name.
    """
    found = {part: layout or given for part, layout in layouts.items()}
    if len(set(found.values())) > 1:
        listed = "; ".join(f"{part}: {layout or 'one tensor'}" for part, layout in found.items())
        raise UserError(f"task {task!r}: inputs differ between splits ({listed}); give the same tensors for each")
    return next(iter(found.values()))
