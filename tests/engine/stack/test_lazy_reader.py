"""Batches from disk, read one ahead."""

from __future__ import annotations

import torch

from cases_paper import FromDisk, lazy_task
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack.lazy_reader import LazyReader

SEEDS = (0, 7)


def reader() -> tuple[LazyReader, FromDisk]:
    placed = place_task(lazy_task(), precision="float64")
    orders = [placed.order(seed=seed, batch_size=4) for seed in SEEDS]
    source = placed.splits["train"][0]
    assert isinstance(source, FromDisk)
    return LazyReader(placed, orders, SEEDS), source


def test_every_batch_is_read_once_for_every_seed_and_none_after_the_last() -> None:
    ours, source = reader()
    for step in range(5):
        ours.batch(step, last=4)
    assert sorted((step, seed) for _, seed, step in source.calls) == [
        (step, seed) for step in range(5) for seed in SEEDS
    ]


def test_batches_are_the_same_read_ahead_or_not() -> None:
    (ahead, _), (plain, _) = reader(), reader()
    for step in (0, 1, 2, 5, 6):  # a stack may continue elsewhere
        for ours, theirs in zip(ahead.batch(step, last=9), plain.batch(step, last=step), strict=True):
            assert torch.equal(ours, theirs)
            assert len(ours) == len(SEEDS)
