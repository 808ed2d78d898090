"""Data sets as splits: the same task whether given as tensors, as a data set, stacked or read lazily."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import cases
import isotherm as it
from helpers_datasets import MASK, NUM, TOKENS, Listed, MaskedText, Noisy, Positional, Rows, X, Y, pairs
from isotherm.errors import UserError
from isotherm.tasks.datasets import split as split_module
from isotherm.tasks.datasets.split import DatasetInputs, as_split
from isotherm.tasks.task import Task


def task(train: object, **changes: object) -> Task:
    fields = {"name": "mine", "model": cases.build_mlp, "train": train, "test": (X, Y)}
    return Task(**{**fields, **changes})  # type: ignore[arg-type]


def identity(train: object, **changes: object) -> tuple[str, str]:
    found = task(train, **changes).identify()
    return found.data_id, found.model_id


@pytest.mark.parametrize(
    "dataset",
    [
        pairs(),
        TensorDataset(X, Y),
        Subset(TensorDataset(X, Y), range(NUM)),
        Listed([(x.numpy(), np.int64(y)) for x, y in zip(X, Y, strict=True)]),
        Listed([(tuple(x.numpy()), y) for x, y in zip(X, Y.tolist(), strict=True)]),
        Listed([[x.tolist(), y] for x, y in zip(X, Y.tolist(), strict=True)]),
    ],
    ids=["pairs", "TensorDataset", "Subset", "arrays", "numbers", "lists"],
)
def test_a_data_set_is_the_task_that_its_tensors_are(dataset: object) -> None:
    assert identity(dataset) == identity((X, Y))
    assert identity(as_split(dataset, in_memory=False, num_workers=0)) == identity((X, Y))


def test_the_tensors_of_a_tensor_dataset_are_not_copied() -> None:
    ours = task(TensorDataset(X, Y)).train[0]
    assert isinstance(ours, torch.Tensor)
    assert ours.data_ptr() == X.data_ptr()


def test_other_values_are_another_task() -> None:
    other = X.clone()
    other[-1, -1] += 1e-3
    for in_memory in (True, False):
        assert identity(as_split(pairs(other), in_memory=in_memory, num_workers=0)) != identity((X, Y))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_inputs_that_are_read_lazily_are_those_that_are_stacked(num_workers: int) -> None:
    inputs, targets = as_split(pairs(), in_memory=False, num_workers=num_workers)
    assert isinstance(inputs, DatasetInputs)
    assert isinstance(inputs, it.LazyInputs)
    assert (inputs.shape, inputs.dtype, len(inputs)) == (X.shape, X.dtype, NUM)
    assert torch.equal(targets, Y)
    index = np.array([5, 0, 39, 5, 17])
    assert torch.equal(inputs.fetch(index, seed=3, step=1), X[index])
    inputs.close()


def test_the_numbers_of_a_run_do_not_depend_on_where_the_inputs_are() -> None:
    stores = []
    for train in ((X, Y), as_split(pairs(), in_memory=False, num_workers=0)):
        sweep = it.Sweep(
            task=task(train),
            batch_sizes=[8],
            effective_learning_rates=[0.1, 0.4],
            budget=it.Budget.steps(12),
            num_seeds=2,
            num_kept=1,
            tune_on="test",
            max_extensions=0,
            resolution="paper",
        )
        stores.append(it.run(sweep, store=None))
    first, *others = [{key: result.test_loss for key, result in found.by_key.items()} for found in stores]
    for other in others:
        assert other == pytest.approx(first, rel=1e-6)


def test_what_does_not_fit_is_read_lazily_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = X.nbytes
    for memory, kind in ((4 * needed, torch.Tensor), (4 * needed - 4, DatasetInputs)):
        monkeypatch.setattr(split_module, "physical_memory", lambda memory=memory: memory)
        monkeypatch.setattr(split_module, "default_workers", lambda: 0)
        assert isinstance(task(pairs()).train[0], kind)


def test_stacking_reads_every_item_once_but_for_the_few_that_are_compared() -> None:
    dataset = Listed(list(pairs().items) * 10)
    task(dataset)
    assert dataset.num_reads == 10 * NUM + 2 * 32 + 1


# -- several inputs and adapters ------------------------------------------------------------------------------------

ROWS = Rows({"id": list(range(NUM)), "tokens": TOKENS.tolist(), "mask": MASK.tolist(), "label": Y.tolist()})


def test_columns_are_chosen_by_name_or_by_a_function() -> None:
    direct = identity((TOKENS.float(), Y), test=(TOKENS.float(), Y))

    def floats(row: dict[str, object]) -> tuple[object, object]:
        return torch.tensor(row["tokens"], dtype=torch.float32), row["label"]

    assert identity(ROWS, test=ROWS, adapter=floats) == direct
    assert identity(ROWS, test=ROWS, adapter=("tokens", "label")) == identity((TOKENS, Y), test=(TOKENS, Y))


def test_several_columns_are_several_inputs() -> None:
    rows = Rows({**ROWS.columns, "point": list(X)})
    adapter = (("tokens", "mask", "point"), "label")
    expected = identity(({"tokens": TOKENS, "mask": MASK, "point": X}, Y), model=MaskedText, test=TEST)
    assert identity(rows, adapter=adapter, model=MaskedText, test=TEST) == expected
    lazily = as_split(rows, adapter=adapter, in_memory=False, num_workers=0)
    assert identity(lazily, model=MaskedText, test=TEST) == expected


TEST = ({"tokens": TOKENS, "mask": MASK, "point": X}, Y)


def test_items_of_three_tensors_are_two_inputs_by_position() -> None:
    dataset = TensorDataset(TOKENS, X, MASK, Y)
    given = ((TOKENS, X, MASK), Y)
    expected = identity(given, test=given, model=Positional)
    assert identity(dataset, test=given, model=Positional, adapter=((0, 1, 2), 3)) == expected


# -- what is refused ------------------------------------------------------------------------------------------------


def refusal(dataset: object, **changes: object) -> str:
    with pytest.raises(UserError) as caught:
        task(dataset, **changes)
    return str(caught.value)


def test_a_data_loader_is_refused_with_the_line_that_converts_it() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    message = refusal(loader)
    assert "task 'mine', train data: it is a DataLoader" in message
    line = message.rpartition("; give its data set: ")[2]
    assert line == "train=loader.dataset"
    assert identity(eval(line.partition("=")[2], {"loader": loader})) == identity((X, Y))
    assert "test=loader.dataset" in refusal((X, Y), test=loader)
    own = DataLoader(TensorDataset(X, Y), collate_fn=lambda items: items)
    assert "what its collate_fn does to an item goes into adapter=" in refusal(own)


def test_streams_and_folders_of_splits_are_refused_with_a_remedy() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(pairs())

    assert "can only be read from its beginning" in refusal(Stream())
    assert "can only be read from its beginning" in refusal(iter(pairs().items))
    message = refusal({"train": pairs(), "test": pairs()})
    assert "it holds the data sets 'train', 'test'; give one of them: train=data['train']" in message


def test_items_that_differ_in_shape_are_named() -> None:
    rows = [(x, y) for x, y in zip(X, Y.tolist(), strict=True)]
    rows[17] = (torch.zeros(3), 0)
    for in_memory in (True, False):
        with pytest.raises(
            UserError, match=r"items differ in shape: item 0 has inputs of shape \(2,\), item 17 of \(3"
        ):
            as_split(Listed(rows), in_memory=in_memory, num_workers=0)
    rows[17] = (X[17], [1, 2])
    assert "item 0 has a target of shape (), item 17 of (2,); pad, crop or resize" in refusal(Listed(rows))
    rows[17] = (X[17].double(), 1)
    assert "items differ in type: item 0 has inputs of torch.float32, item 17 of torch.float64" in refusal(Listed(rows))
    named = [({"a": x, "b": x}, 0) for x in X]
    named[3] = ({"a": X[3]}, 0)
    assert "item 3 has inputs a (2,) float32; make all items alike" in refusal(Listed(named))


def test_items_in_workers_are_named_too() -> None:
    rows = [(x, y) for x, y in zip(X, Y.tolist(), strict=True)]
    rows[17] = (torch.zeros(3), 0)
    with pytest.raises(UserError, match="item 17 of"):
        as_split(Listed(rows), num_workers=2)


@pytest.mark.parametrize("source", ["torch", "random", "numpy", "own"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_random_transform_is_refused(source: str, in_memory: bool) -> None:
    with pytest.raises(UserError, match=r"differs on two reads \(its transform\?\).* freeze .*isotherm\.CropAndFlip"):
        as_split(Noisy(pairs().items, source), in_memory=in_memory, num_workers=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rare_random_transform_is_found_by_its_random_numbers(num_workers: int) -> None:
    """One item in 200 changes: the few that are compared first hardly ever show it, a full read does."""
    torch.manual_seed(0)
    dataset = Noisy(pairs().items * 20, "torch", one_in=200)
    with pytest.raises(UserError, match="differs on two reads"):
        as_split(dataset, num_workers=num_workers)


def test_random_numbers_without_a_consequence_are_allowed() -> None:
    class Drawing(Listed):
        def __getitem__(self, index: int) -> object:
            torch.rand(())
            return super().__getitem__(index)

    assert identity(Drawing(pairs().items)) == identity((X, Y))


def test_a_value_that_is_not_a_number_is_refused_before_training() -> None:
    broken = X.clone()
    broken[20, 1] = float("nan")
    assert "the value at index [20, 1] is nan" in refusal(pairs(broken))
    with pytest.raises(UserError, match=r"items 0 to 39, inputs: the value at index \[20, 1\] is nan"):
        as_split(pairs(broken), in_memory=False, num_workers=0)


def test_other_data_sets_that_cannot_be_read() -> None:
    assert "train data: it is empty" in refusal(Listed([]))
    assert "item 0 is one Tensor of shape (2,), not a pair" in refusal(Listed(X))

    class Breaking(Listed):
        def __getitem__(self, index: int) -> object:
            raise OSError("no such file: 7.png")

    message = refusal(Breaking(X))
    assert "item 0: reading it raised OSError: no such file: 7.png" in message
    with pytest.raises(UserError, match="num_workers=-1 is not a number of processes"):
        as_split(pairs(), num_workers=-1)
    with pytest.raises(UserError, match=r"int has no len\(\)"):
        as_split(3)
