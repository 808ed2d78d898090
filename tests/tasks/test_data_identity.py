"""Content hashes of data: every value counts, and none of them is copied."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isotherm.tasks import inputs
from isotherm.tasks.data_identity import data_id, data_parts
from isotherm.tasks.task import Task


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
    monkeypatch.setattr(inputs, "_PIECE", size)
    assert data_parts(splits) == expected


def test_the_parts_say_which_data_changed() -> None:
    x, y = splits()["train"]
    one, other = (data_parts({"train": (x, y), "test": (x, labels)}) for labels in (y, y + 1))
    assert {name for name in one if one[name] != other[name]} == {"test targets"}


def test_a_task_shares_the_memory_of_arrays_and_tensors() -> None:
    x, y = np.zeros((4, 3), dtype=np.float32), torch.zeros(4, dtype=torch.int64)
    task = Task(name="shared", model=torch.nn.Identity, train=(x, y), test=(x.T.copy().T, y))
    x[0, 0], y[0] = 5.0, 2
    assert (float(task.train[0][0, 0]), int(task.train[1][0])) == (5.0, 2)


# -- memory -----------------------------------------------------------------------------------------------------

# Prints by how much the peak memory grew while a task was made and identified, in parts of the size of its data.
GROWTH = """
import sys
import numpy as np, torch
from torch import nn
from isotherm.tasks.task import Task

def memory(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))

num = int(sys.argv[1]) * 2**20 // 4000
def task(num):
    is_transposed = sys.argv[2] == "transposed"
    x = np.ones((1000, num), dtype=np.float32).T if is_transposed else np.ones((num, 1000), dtype=np.float32)
    data = (x, np.zeros(num, dtype=np.int64))
    return lambda: Task(name="large", model=lambda: nn.Linear(1000, 2), train=data, test=(x[:2], data[1][:2]))

task(2)().identify()  # what is loaded once
make = task(num)
before = memory("VmRSS")
identity = make().identify()
print((memory("VmHWM") - before) / (num * 4000))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_making_and_identifying_a_task_copies_no_data(layout: str) -> None:
    command = [sys.executable, "-c", GROWTH, "200", layout]
    growth = float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    assert growth < 0.3
