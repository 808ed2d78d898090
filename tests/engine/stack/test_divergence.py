"""Which runs are in a stack and which diverged when."""

from __future__ import annotations

import pytest
import torch

from isotherm.engine.stack.divergence import Divergence


def losses(num_runs: int, bad: dict[int, int], *, num_updates: int = 4) -> torch.Tensor:
    """Return losses (K, M) that are not finite from an update on, for some positions."""
    found = torch.ones(num_updates, num_runs)
    for position, first in bad.items():
        found[first:, position] = torch.nan
    return found


def test_the_first_update_that_is_not_finite_counts() -> None:
    divergence = Divergence(4)
    divergence.note(losses(4, {1: 2, 3: 0}), first=10)
    divergence.note(losses(4, {1: 0, 3: 0}), first=14)
    assert divergence.steps == {1: 12, 3: 10}
    assert divergence.num_left == 2


@pytest.mark.parametrize(
    ("num_runs", "num_diverged", "leave"), [(8, 1, True), (9, 1, False), (17, 2, False), (1, 1, True)]
)
def test_runs_leave_once_an_eighth_has_diverged(num_runs: int, num_diverged: int, leave: bool) -> None:
    divergence = Divergence(num_runs)
    divergence.note(losses(num_runs, dict.fromkeys(range(num_diverged), 0)), first=0)
    assert divergence.positions_to_keep() == (list(range(num_diverged, num_runs)) if leave else None)


def test_nobody_leaves_before_anybody_diverged() -> None:
    assert Divergence(3).positions_to_keep() is None


def test_positions_are_those_in_the_stack_and_indices_those_of_the_plan() -> None:
    divergence = Divergence(5)
    divergence.note(losses(5, {0: 1, 2: 1}), first=0)
    divergence.select([1, 3, 4])
    divergence.note(losses(3, {1: 3}), first=4)
    assert divergence.index_M == (1, 3, 4)
    assert divergence.steps == {0: 1, 2: 1, 3: 7}
    assert divergence.positions_to_keep() == [0, 2]
    assert divergence.num_left == 2


def test_it_is_restored_as_it_was_saved() -> None:
    first, second = Divergence(3), Divergence(3)
    first.note(losses(3, {1: 0}), first=5)
    first.select([0, 2])
    with pytest.raises(AssertionError):
        second.restore(first.saved())
    second.select([0, 2])
    second.restore(first.saved())
    assert (second.steps, second.index_M, second.num_left) == ({1: 5}, (0, 2), 2)
