"""Which objects are data sets that can be read item by item, and what to do about those that cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from isotherm.errors import UserError
from isotherm.tasks.frames import is_pandas
from isotherm.tasks.inputs import LazyInputs


def is_dataset(value: Any) -> bool:
    """Tell whether a value is a map-style data set: `len(value)` items, `value[i]` each."""
    if isinstance(value, Tensor | np.ndarray | tuple | list | str | bytes | range | Mapping) or is_pandas(value):
        return False
    if isinstance(value, LazyInputs | type) or hasattr(value, "__array__"):
        return False
    return isinstance(value, Dataset) or (hasattr(value, "__getitem__") and hasattr(value, "__len__"))


def refuse_other_kinds(value: Any, where: str) -> None:
    """Refuse what holds or yields items but cannot be read by their number."""
    part = next((name for name in ("validation", "test") if f"{name} data" in where), "train")
    if isinstance(value, DataLoader):
        own = "" if value.collate_fn is default_collate else "; what its collate_fn does to an item goes into adapter="
        raise UserError(
            f"{where}: it is a DataLoader, with a batch size and an order of its own, and Isotherm draws the batches "
            f"of every run itself; give its data set: {part}=loader.dataset{own}"
        )
    if isinstance(value, Mapping) and value and all(is_dataset(item) for item in value.values()):
        names, first = ", ".join(map(repr, value)), next(iter(value))
        chosen = part if part in value else first
        raise UserError(f"{where}: it holds the data sets {names}; give one of them: {part}=data[{chosen!r}]")
    if isinstance(value, IterableDataset) or (is_foreign_stream(value) and not is_dataset(value)):
        raise UserError(
            f"{where}: {type(value).__name__} can only be read from its beginning, and a run reads examples in an "
            f"order of its own; collect its items: {part}=isotherm.as_split(Items(list(data))), where Items is a "
            "Dataset of yours with __len__ and __getitem__"
        )


def is_foreign_stream(value: Any) -> bool:
    """Tell whether a value yields items but has no length, such as a streamed data set of Hugging Face."""
    is_known = isinstance(value, Tensor | np.ndarray | tuple | list | str | bytes | Mapping | type)
    return not is_known and hasattr(value, "__iter__") and not hasattr(value, "__len__")
