"""A real data set of Hugging Face, made in memory."""

from __future__ import annotations

import warnings

import pytest

from helpers_datasets import MASK, NAMED, TOKENS, MaskedText, X, Y
from isotherm.errors import UserError
from isotherm.tasks.datasets.split import as_split
from isotherm.tasks.task import Task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the library itself imports
    datasets = pytest.importorskip("datasets")

COLUMNS = {"tokens": TOKENS.tolist(), "mask": MASK.tolist(), "point": X.tolist(), "label": Y.tolist()}
ADAPTER = (("tokens", "mask", "point"), "label")


def make() -> object:
    return datasets.Dataset.from_dict(COLUMNS)


def task(train: object, **changes: object) -> Task:
    return Task(name="rows", model=MaskedText, train=train, test=(NAMED, Y), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [None, "torch", "numpy"])
def test_rows_are_the_task_that_their_tensors_are(kind: str | None) -> None:
    dataset = make()
    ours = task(dataset.with_format(kind) if kind else dataset, adapter=ADAPTER)  # type: ignore[attr-defined]
    assert ours.identify() == task((NAMED, Y)).identify()


def test_rows_can_be_read_lazily() -> None:
    lazily = as_split(make(), adapter=ADAPTER, in_memory=False, num_workers=2)
    assert task(lazily).identify() == task((NAMED, Y)).identify()


def test_what_is_no_single_data_set_is_refused_with_its_line() -> None:
    with pytest.raises(UserError, match=r"it holds the data sets 'train'; give one of them: train=data\['train'\]"):
        task(datasets.DatasetDict(train=make()))
    with pytest.raises(UserError, match="can only be read from its beginning"):
        task(make().to_iterable_dataset())  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"item 0 is a dict of 'tokens', .* adapter=\(\('tokens', 'mask', 'point'\), "):
        task(make())
