"""A batch in parts of whole ghost batches."""

from __future__ import annotations

import itertools

import pytest

from isotherm.core.batch_split import part_sizes, split_batch, unit_of

SPLITS = [(12, 1, 1), (12, 5, 1), (256, 3, 64), (256, 4, 64), (7, 7, 1), (96, 2, 32), (10_007, 3, 1)]


@pytest.mark.parametrize(("batch_size", "num_parts", "unit"), SPLITS)
def test_parts_are_consecutive_whole_units_of_nearly_one_size(batch_size: int, num_parts: int, unit: int) -> None:
    parts = split_batch(batch_size, num_parts, unit=unit)
    assert len(parts) == num_parts
    assert list(itertools.chain(*parts)) == list(range(batch_size))
    sizes = [len(part) for part in parts]
    assert all(size % unit == 0 for size in sizes)
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= unit


@pytest.mark.parametrize(("batch_size", "num_parts", "unit"), [(10, 2, 4), (8, 0, 1), (8, 3, 4)])
def test_what_cannot_be_split_is_an_error_of_the_caller(batch_size: int, num_parts: int, unit: int) -> None:
    with pytest.raises(AssertionError, match="units"):
        split_batch(batch_size, num_parts, unit=unit)


def test_equal_parts_have_sizes_that_divide_the_batch() -> None:
    assert part_sizes(12) == [12, 6, 4, 3, 2, 1]
    assert part_sizes(16_384, unit=64)[:3] == [16_384, 8_192, 4_096]
    assert part_sizes(16_384, unit=64)[-1] == 64
    assert part_sizes(10_007) == [10_007, 1]
    assert part_sizes(64, unit=64) == [64]


def test_the_unit_holds_whole_ghost_batches_of_every_layer() -> None:
    assert unit_of(256) == 1
    assert unit_of(256, [64, 64]) == 64
    assert unit_of(192, [64, 48]) == 192
    assert unit_of(16, [64]) == 16
