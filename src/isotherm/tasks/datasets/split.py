"""From a data set to a split: its items stacked once, or read when a batch needs them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from isotherm.core.machine import physical_memory
from isotherm.errors import UserError
from isotherm.tasks.checks import refuse_non_finite
from isotherm.tasks.content import hash_of_tensor
from isotherm.tasks.datasets.adapter import Adapter, check_adapter
from isotherm.tasks.datasets.kinds import is_dataset, refuse_other_kinds
from isotherm.tasks.datasets.reading import Items
from isotherm.tasks.datasets.workers import Reader, default_workers
from isotherm.tasks.several_inputs import InputLayout

# Of the machine's memory: inputs of up to this part are stacked.
STACKED_PART = 0.25
_BLOCK = 256  # items


class DatasetInputs:
    """Inputs of a data set that are read when a batch needs them; an `isotherm.LazyInputs`.

    Args:
        reader: of the items.
        num: how many there are.
        digest: of all inputs in their order.
        layout: of several inputs; None for one.
    """

    def __init__(self, reader: Reader, *, num: int, digest: str, layout: InputLayout | None) -> None:
        self._reader, self._num, self._digest, self.layout = reader, num, digest, layout

    def __len__(self) -> int:
        return self._num

    @property
    def shape(self) -> torch.Size:
        """The shape of all inputs, as a tensor would have it."""
        own = (self.layout.num_values,) if self.layout else self._reader.form.inputs[0].shape
        return torch.Size((self._num, *own))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of what `fetch` returns."""
        return self.layout.dtype if self.layout else self._reader.form.inputs[0].dtype

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
        """Return some inputs; every run sees the same, so seed and step change nothing."""
        *inputs, _ = self._reader.read([int(index) for index in indices])
        return self.layout.pack(inputs, self._reader.items.where) if self.layout else inputs[0]

    def identity(self) -> str:
        """Return the hash that a tensor of the same inputs has, from when the data set was read through."""
        return hash_of_tensor(self.dtype, self.shape, self._digest)

    def close(self) -> None:
        """End the worker processes; a later batch starts them again."""
        self._reader.close()


def as_split(
    dataset: Any,
    *,
    adapter: Adapter | None = None,
    in_memory: bool | None = None,
    num_workers: int | None = None,
    where: str = "train data",
) -> tuple[Any, Tensor]:
    """Return inputs and targets of a map-style data set, for the `train`, `test` or `validation` of a task.

    Every item is read once: its shape is checked, and its content hashed or stacked. Stacked or not, the same values
    have the same identity, and the numbers of a run do not depend on it.

    Args:
        dataset: an object with `len(dataset)` and `dataset[i]`, such as a `torch.utils.data.Dataset` or a data set of
            Hugging Face.
        adapter: what makes a pair (inputs, target) of an item, if it is not one: a function, or where they are, e.g.
            ("image", "label"), ((0, 1), 2) or (("input_ids", "attention_mask"), "label") for several inputs.
        in_memory: stack the inputs, or read them when a batch needs them; by default they are stacked if they take at
            most a quarter of the machine's memory.
        num_workers: processes that read items; by default none to stack them, else one per core, at most four, where
            processes can be forked.
        where: names the data in errors.
    """
    refuse_other_kinds(dataset, where)
    check_adapter(adapter, where)
    if not is_dataset(dataset) or not hasattr(dataset, "__len__"):
        raise UserError(f"{where}: {type(dataset).__name__} has no len() or no items [i]; give it __len__, __getitem__")
    if num_workers is not None and (isinstance(num_workers, bool) or num_workers < 0):
        raise UserError(f"{where}: num_workers={num_workers!r} is not a number of processes; use 0 for none")
    items = Items(dataset=dataset, adapter=adapter, where=where)
    if len(items) == 0:
        raise UserError(f"{where}: it is empty; give at least one example")
    if adapter is None and in_memory is not False and _is_pair_of_tensors(dataset):
        return dataset.tensors[0], dataset.tensors[1]
    form = items.first()
    if in_memory is None:
        in_memory = form.num_bytes * len(items) <= STACKED_PART * physical_memory()
    if num_workers is None:
        num_workers = 0 if in_memory else default_workers()
    reader = Reader(items, form, num_workers=num_workers)
    try:
        return _stacked(reader) if in_memory else _lazy(reader)
    finally:
        reader.close()


def read_if_dataset(given: Any, *, adapter: Adapter | None, where: str) -> Any:
    """Return a data set as a split; anything else as it is."""
    refuse_other_kinds(given, where)
    return as_split(given, adapter=adapter, where=where) if is_dataset(given) else given


def _is_pair_of_tensors(dataset: Any) -> bool:
    return type(dataset) is TensorDataset and len(dataset.tensors) == 2


def _stacked(reader: Reader) -> tuple[Any, Tensor]:
    form, num = reader.form, len(reader.items)
    found = form.allocate(num)
    for start, blocks in _blocks(reader, num):
        for values, block in zip(found, blocks, strict=True):
            values[start : start + len(block)] = block
    *inputs, targets = found
    if form.is_single:
        return inputs[0], targets
    names = [field.name for field in form.inputs]
    return tuple(inputs) if names[0] is None else dict(zip(names, inputs, strict=True)), targets


def _lazy(reader: Reader) -> tuple[DatasetInputs, Tensor]:
    form, num = reader.form, len(reader.items)
    layout = None if form.is_single else InputLayout(fields=form.inputs)
    digest, targets = hashlib.sha256(), form.allocate(num)[-1]
    for start, (*inputs, block) in _blocks(reader, num):
        targets[start : start + len(block)] = block
        for values, field in zip(inputs, form.inputs, strict=True):
            name = "inputs" if field.name is None else f"input {field.name!r}"
            refuse_non_finite(values, f"{reader.items.where}, items {start} to {start + len(block) - 1}, {name}")
        packed = layout.pack(inputs, reader.items.where) if layout else inputs[0]
        digest.update(packed.contiguous().view(-1).view(torch.uint8).numpy().data)
    return DatasetInputs(reader, num=num, digest=digest.hexdigest(), layout=layout), targets


def _blocks(reader: Reader, num: int) -> Iterator[tuple[int, list[Tensor]]]:
    size = _BLOCK * max(1, reader.num_workers)
    for start in range(0, num, size):
        indices: Sequence[int] = range(start, min(num, start + size))
        yield start, reader.read(indices)
