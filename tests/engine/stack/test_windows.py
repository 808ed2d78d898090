"""Windows of updates and their examples, drawn ahead or not."""

from __future__ import annotations

import pytest
import torch

from isotherm.engine.stack.windows import Windows
from isotherm.tasks.seeding import DataOrder

NUM_STEPS = 23
ORDERS = [DataOrder(seed=seed, num_train=11, batch_size=4) for seed in (0, 3)]


def windows(*, size: int = 5, stops: tuple[int, ...] = (7, 14)) -> Windows:
    return Windows(ORDERS, size=size, num_steps=NUM_STEPS, stops=stops, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("size", "stops", "expected"),
    [
        (5, (), [5, 5, 5, 5, 3]),
        (5, (7, 14), [5, 2, 5, 2, 5, 4]),
        (5, (5, NUM_STEPS), [5, 5, 5, 5, 3]),
        (100, (1,), [1, 22]),
    ],
)
def test_windows_end_at_stops_and_at_the_end(size: int, stops: tuple[int, ...], expected: list[int]) -> None:
    ours, start, found = windows(size=size, stops=stops), 0, []
    while start < NUM_STEPS:
        found.append(ours.size_from(start))
        start += found[-1]
    assert found == expected


def test_examples_are_those_of_every_seed() -> None:
    found = windows().examples(7)
    assert found.shape == (5, 2, 4)
    for place, order in enumerate(ORDERS):
        assert found[:, place].tolist() == order.block(7, 5).tolist()


def test_examples_drawn_ahead_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, expected = windows(), windows().examples(7)
    ours.draw_ahead(7)
    monkeypatch.setattr(ours, "_drawn", None)
    assert torch.equal(ours.examples(7), expected)


def test_examples_of_another_window_are_not_taken() -> None:
    """A stack that continues from a checkpoint is somewhere else than it was."""
    ours = windows()
    ours.draw_ahead(7)
    assert torch.equal(ours.examples(5), windows().examples(5))
    assert torch.equal(ours.examples(7), windows().examples(7))


def test_there_is_no_window_after_the_last() -> None:
    ours = windows()
    ours.draw_ahead(NUM_STEPS)
    assert torch.equal(ours.examples(19), windows().examples(19))
