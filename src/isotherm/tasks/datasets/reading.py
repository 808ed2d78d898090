"""Items of a data set as tensors, block by block, and whether an item is the same on two reads."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotherm.errors import UserError
from isotherm.tasks.checks import as_tensor
from isotherm.tasks.datasets.adapter import Adapter, adapted
from isotherm.tasks.raised import raised
from isotherm.tasks.several_inputs import InputField, are_several

# Items that are read twice before anything else, spread over the data set.
NUM_READ_TWICE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One example: its inputs by name, None for a single one, and its target."""

    names: tuple[str | None, ...]
    values: tuple[Tensor, ...]  # inputs, then the target
    is_single: bool

    def same_as(self, other: Item) -> bool:
        """Tell whether all values are equal to the last bit."""
        return all(map(_equal, self.values, other.values)) and len(self.values) == len(other.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What every item looks like: one field per input, and the target."""

    inputs: tuple[InputField, ...]
    target: InputField
    is_single: bool

    @classmethod
    def of(cls, item: Item) -> Form:
        """Return the form of an item."""
        fields = [
            InputField(name=name, shape=tuple(value.shape), dtype=value.dtype)
            for name, value in zip((*item.names, "target"), item.values, strict=True)
        ]
        return cls(inputs=tuple(fields[:-1]), target=fields[-1], is_single=item.is_single)

    @property
    def fields(self) -> tuple[InputField, ...]:
        """Inputs, then the target."""
        return *self.inputs, self.target

    @property
    def num_bytes(self) -> int:
        """Bytes of one item's inputs."""
        return sum(field.num_values * field.dtype.itemsize for field in self.inputs)

    def names_differ(self, other: Form) -> bool:
        """Tell whether the inputs of two items are not the same ones."""
        return [field.name for field in self.inputs] != [field.name for field in other.inputs]

    def allocate(self, num: int) -> list[Tensor]:
        """Return tensors for some items: inputs, then targets."""
        return [torch.empty(num, *field.shape, dtype=field.dtype) for field in self.fields]


@dataclass(frozen=True, kw_only=True, slots=True)
class Items:
    """A data set whose items are read through an adapter.

    Args:
        dataset: has `len` and `[index]`.
        adapter: what makes inputs and target of an item.
        where: names the data in errors.
    """

    dataset: Any
    adapter: Adapter | None
    where: str

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> Item:
        """Read one item."""
        where = f"{self.where}, item {index}"
        try:
            found = self.dataset[index]
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{where}: reading it raised {raised(error)}; repair the data set") from error
        inputs, target = adapted(found, self.adapter, where)
        several = are_several(inputs)
        named: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
        values = named.values() if named else inputs if several else (inputs,)
        tensors = [as_tensor(_plain(value), f"{where}, inputs") for value in values]
        return Item(
            names=tuple(named) or (None,) * len(tensors),
            values=(*tensors, as_tensor(_plain(target), f"{where}, target")),
            is_single=not several,
        )

    def block(self, indices: Sequence[int], form: Form) -> list[Tensor]:
        """Read some items; if random numbers were drawn meanwhile, read them again and refuse a difference."""
        before = _generators()
        found = self._fill(indices, form)
        if _generators() == before:
            return found
        again = self._fill(indices, form)
        for one, other in zip(found, again, strict=True):
            for position, index in enumerate(indices):
                if not _equal(one[position], other[position]):
                    raise self.is_random(index)
        return found

    def _fill(self, indices: Sequence[int], form: Form) -> list[Tensor]:
        found = form.allocate(len(indices))
        for position, index in enumerate(indices):
            item = self.read(int(index))
            self.check_form(item, index, form)
            for values, value in zip(found, item.values, strict=True):
                values[position] = value
        return found

    def check_form(self, item: Item, index: int, form: Form) -> None:
        """Refuse an item that differs from the first in shape, dtype or names."""
        own = Form.of(item)
        if own == form:
            return
        if own.names_differ(form):
            raise UserError(
                f"{self.where}: item 0 has {_listed(form)} and item {index} has {_listed(own)}; make {_SAME}"
            )
        first, other = next((a, b) for a, b in zip(form.fields, own.fields, strict=True) if a != b)
        what = "a target" if first == form.target else "inputs" if first.name is None else f"an input {first.name!r}"
        if first.shape != other.shape:
            raise UserError(
                f"{self.where}: items differ in shape: item 0 has {what} of shape {first.shape}, item {index} of "
                f"{other.shape}; pad, crop or resize them to one shape, in the data set or with adapter="
            )
        raise UserError(
            f"{self.where}: items differ in type: item 0 has {what} of {first.dtype}, item {index} of {other.dtype}; "
            "convert them, e.g. with adapter=lambda item: (item[0], float(item[1]))"
        )

    def first(self) -> Form:
        """Read some items twice and return the form of the first; refuse items that differ on two reads."""
        num = len(self)
        for index in sorted({position * (num - 1) // max(1, NUM_READ_TWICE - 1) for position in range(NUM_READ_TWICE)}):
            item = self.read(index)
            if not item.same_as(self.read(index)):
                raise self.is_random(index)
        return Form.of(self.read(0))

    def is_random(self, index: int) -> UserError:
        """Return the error for an item that differs on two reads."""
        own = next((name for name in ("transform", "transforms") if getattr(self.dataset, name, None) is not None), "")
        named = f" (its {own}?)" if own else ""
        return UserError(
            f"{self.where}: item {index} differs on two reads{named}; reading it once would freeze one random draw for "
            "all epochs and runs. Give the data without random augmentation, and augment with the task's transform=, "
            "e.g. isotherm.CropAndFlip(...), or an object of yours with train, evaluate and targets: every run then "
            "draws from its own random numbers"
        )


_SAME = "all items alike, in the data set or with adapter="


def _listed(form: Form) -> str:
    return "inputs " + ", ".join(map(str, form.inputs))


def _plain(value: Any) -> Any:
    """Return an image of Pillow, and whatever else describes its memory, as an array."""
    return np.array(value) if hasattr(value, "__array_interface__") and not isinstance(value, np.ndarray) else value


def _equal(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are the same, not-a-numbers included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _generators() -> tuple[Any, ...]:
    """Return the states of the global random generators."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 (the state of the old generator is the question)
    return random.getstate(), bytes(torch.get_rng_state().numpy()), kind, bytes(np.asarray(keys)), *rest
