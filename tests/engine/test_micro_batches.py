"""The parts of micro-batches: where random bits are in the batch, and where buffers move."""

from __future__ import annotations

import pytest
import torch

import cases
import cases_paper
from isotherm.engine.dropout import KeyedBits, noise_key
from isotherm.engine.micro_batches import BufferMoves, MicroBatches, largest_size, sizes_of
from isotherm.engine.placed_task import place_task
from isotherm.errors import UserError

KEY, STEP = noise_key(3), torch.tensor(5)
# A shape for twelve examples, and which dimension counts them; two calls with the last one.
SHAPES = [((12, 3), 0), ((2, 12, 3), 1), ((5, 12), 1), ((24, 2), 0), ((4, 4), None)]


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("size", [6, 4, 1])
def test_parts_draw_the_bits_of_the_whole(shape: tuple[int, ...], dim: int | None, size: int) -> None:
    cut = MicroBatches(batch_size=12, size=size, dropout_dims=(None, dim))
    whole = KeyedBits(KEY, STEP)
    expected = [whole((7,)), whole(shape)][1]
    found = []
    for part in cut.parts:
        bits = KeyedBits(KEY, STEP, cut.indices(torch.tensor(part.start)).dropout)
        bits((7,))
        own = tuple(n * size // 12 if d == dim else n for d, n in enumerate(shape))
        found.append(bits(own))
    if dim is None:
        assert all(torch.equal(bits, expected) for bits in found)
    else:
        assert torch.equal(torch.cat(found, dim=dim), expected)


def test_one_draw_more_than_were_counted_is_refused() -> None:
    bits = KeyedBits(KEY, STEP, MicroBatches(batch_size=4, size=2, dropout_dims=(0,)).indices(0).dropout)
    bits((2,))
    with pytest.raises(UserError, match="more often in some updates than in others"):
        bits((2,))


def test_buffers_move_once_by_the_mean_of_all_parts() -> None:
    cut = MicroBatches(batch_size=6, size=2, buffer_dims={"state": 0})
    buffers = {
        "mean": torch.tensor([1.0, 0.1]),
        "mask": torch.tensor([0.0, -torch.inf]),
        "count": torch.tensor(7),
        "state": torch.arange(6.0),
    }
    moves = BufferMoves(buffers, cut)
    moves.begin()
    for number, part in enumerate(cut.parts):
        moves.load(part)
        assert moves.read["state"].tolist() == [part.start, part.start + 1]
        after = {"mean": moves.read["mean"] + torch.tensor([number, 0.0]), "mask": moves.read["mask"]}
        moves.add(part, {**after, "count": moves.read["count"] + 1, "state": moves.read["state"] + 10})
        assert buffers["mean"].tolist() == pytest.approx([1.0, 0.1])  # every part starts from the same
    moves.finish()
    assert buffers["mean"].tolist() == [2.0, torch.tensor(0.1).item()]  # what does not move keeps its bits
    assert buffers["mask"].tolist() == [0.0, -torch.inf]
    assert buffers["count"].item() == 8
    assert buffers["state"].tolist() == [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    moves.begin()
    moves.finish()
    assert buffers["mean"][0].item() == 2.0


def test_sizes_are_of_whole_ghost_batches() -> None:
    ghost = place_task(cases_paper.ghost_task(), precision="float32")
    assert sizes_of(ghost, 32) == [32, 16, 8]
    assert sizes_of(ghost, 4) == [4]  # a small batch is one ghost batch
    assert sizes_of(ghost, 12) == [12]  # its layers refuse it themselves
    assert sizes_of(place_task(cases.blobs_task(), precision="float32"), 12) == [12, 6, 4, 3, 2, 1]


def test_the_largest_size_within_a_limit_or_the_smallest() -> None:
    ghost = place_task(cases_paper.ghost_task(), precision="float32")
    assert [largest_size(ghost, 32, at_most=most) for most in (99, 32, 31, 9, 3)] == [32, 32, 16, 8, 8]
