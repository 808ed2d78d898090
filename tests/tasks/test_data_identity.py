"""Content hashes of data: every value counts, and none of them is copied."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isotherm.tasks import data_identity
from isotherm.tasks.data_identity import data_id, data_parts


def data_id_of(given: dict[str, tuple[Tensor, Tensor]]) -> str:
    return data_id(data_parts(given))


def splits() -> dict[str, tuple[Tensor, Tensor]]:
    return {"train": (torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2]))}


def test_equal_values_are_equal_data_whatever_the_object_and_memory_layout():
    x, y = splits()["train"]
    assert data_id_of({"train": (x.T.contiguous().T, y.clone())}) == data_id_of(splits())


@given(st.integers(0, 5), st.sampled_from([1.0, -1.0, 1e-6]))
def test_any_changed_input_changes_the_data(index, change):
    changed = splits()
    changed["train"][0].view(-1)[index] += change
    assert data_id_of(changed) != data_id_of(splits())


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: {"train": (x, y.flip(0))},
        lambda x, y: {"train": (x.double(), y)},
        lambda x, y: {"train": (x.view(torch.int32), y)},
        lambda x, y: {"train": (x, y.int())},
        lambda x, y: {"train": (x.reshape(3, 1, 2), y)},
        lambda x, y: {"train": (x[[1, 0, 2]], y)},
        lambda x, y: {"train": (x[:2], y[:2])},
        lambda x, y: {"test": (x, y)},
        lambda x, y: {"train": (x, y), "test": (x, y)},
    ],
    ids=[
        "targets",
        "dtype",
        "dtype of equal bytes",
        "target dtype",
        "shape",
        "order",
        "length",
        "split name",
        "another split",
    ],
)
def test_every_property_of_the_data_counts(change):
    assert data_id_of(change(*splits()["train"])) != data_id_of(splits())


def test_examples_moved_between_splits_are_other_data():
    x, y = splits()["train"]
    ids = {data_id_of({"train": (x[:n], y[:n]), "test": (x[n:], y[n:])}) for n in (1, 2)}
    assert len(ids) == 2


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16])
def test_any_type_can_be_hashed(dtype):
    zeros, ones = (({"train": (torch.full((2, 2), v).to(dtype), torch.zeros(2))}) for v in (0, 1))
    assert data_id_of(zeros) != data_id_of(ones)


@pytest.mark.parametrize("size", [1, 5, 7, 1000])
def test_the_size_of_the_pieces_changes_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.arange(120.0).reshape(4, 5, 6), torch.arange(8)
    views = [x, x.transpose(0, 2), x[:, ::2], x.expand(2, 4, 5, 6), x[0, 0]]
    splits = {str(index): (view, y[::2]) for index, view in enumerate(views)}
    expected = data_parts({name: (view.contiguous(), y[::2].clone()) for name, (view, _) in splits.items()})
    monkeypatch.setattr(data_identity, "_PIECE", size)
    assert data_parts(splits) == expected


def test_the_parts_say_which_data_changed() -> None:
    x, y = splits()["train"]
    one, other = (data_parts({"train": (x, y), "test": (x, labels)}) for labels in (y, y + 1))
    assert {name for name in one if one[name] != other[name]} == {"test targets"}
