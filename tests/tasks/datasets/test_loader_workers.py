"""Processes that read items: forked where that is possible, else started anew."""

from __future__ import annotations

import gc
import multiprocessing

import pytest
import torch

from helpers_datasets import Listed, X, pairs
from isotherm.errors import UserError
from isotherm.tasks.datasets import workers
from isotherm.tasks.datasets.reading import Items
from isotherm.tasks.datasets.workers import Reader, default_workers


def reader(dataset: object, *, num_workers: int) -> Reader:
    items = Items(dataset=dataset, adapter=None, where="here")
    return Reader(items, items.first(), num_workers=num_workers)


@pytest.mark.parametrize("num", [1, 2, 3, 7])
def test_blocks_of_any_size_come_in_their_order(num: int) -> None:
    ours = reader(pairs(), num_workers=3)
    inputs, targets = ours.read(list(range(num))[::-1])
    assert torch.equal(inputs, X[:num].flip(0))
    assert targets.tolist() == [pairs().items[index][1] for index in range(num)][::-1]
    ours.close()


def test_dtypes_that_numpy_lacks_come_back() -> None:
    dataset = Listed([(x.bfloat16(), 0) for x in X])
    ours = reader(dataset, num_workers=2)
    assert torch.equal(ours.read([3, 1])[0], X[[3, 1]].bfloat16())
    ours.close()


@pytest.mark.slow
def test_where_processes_cannot_be_forked_they_are_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "can_fork", lambda: False)
    assert default_workers() == 0
    x = X.clone()
    address, view = x.data_ptr(), x.numpy()
    ours = reader(pairs(x), num_workers=1)
    assert torch.equal(ours.read([5, 2])[0], x[[5, 2]])
    assert (x.data_ptr(), view.tolist()) == (address, X.tolist())  # not moved to shared memory
    ours.close()


def test_what_cannot_be_sent_to_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "can_fork", lambda: False)
    dataset = pairs()
    dataset.transform = lambda x: x
    with pytest.raises(UserError, match=r"cannot be sent to worker processes .* num_workers=0"):
        reader(dataset, num_workers=1).read([0])


def test_a_worker_of_another_pool_reads_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = reader(pairs(), num_workers=2)
    monkeypatch.setattr(multiprocessing.process._current_process, "_config", {"daemon": True})  # type: ignore[attr-defined]
    assert torch.equal(ours.read([1])[0], X[[1]])
    assert ours._pool is None


def test_they_end_with_what_reads_and_can_be_started_again() -> None:
    ours = reader(pairs(), num_workers=1)
    first = ours._workers()
    ours.close()
    assert torch.equal(ours.read([4])[0], X[[4]])
    second = ours._workers()
    assert second is not first
    del ours
    gc.collect()
    for pool in (first, second):
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(print)
