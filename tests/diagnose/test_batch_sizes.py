"""The batch sizes of short runs: they suit the task, the model and the length of the intended training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from cases import build_mlp, classification
from isotherm.core.budget import Budget
from isotherm.diagnose.batch_sizes import intended_steps, large_batch_size, three_batch_sizes
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.task import Task

LONG = Budget.epochs(100)


def small_task(num_train: int, model: Callable[[], nn.Module] = build_mlp) -> Task:
    x = torch.randn(num_train, 2, generator=torch.Generator().manual_seed(0))
    return classification("points", model, train=(x, torch.arange(num_train) % 3))


def ghosts_task(num_train: int, ghost_size: int) -> Task:
    def build() -> nn.Module:
        norm = GhostBatchNorm2d(2, ghost_size=ghost_size)
        return nn.Sequential(nn.Conv2d(1, 2, 3), norm, nn.Flatten(), nn.Linear(8, 3))

    x = torch.randn(num_train, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(num_train) % 3
    return Task(name="ghosts", model=build, train=(x, y), test=(x[:9], y[:9]))


def test_batch_sizes_are_a_factor_of_four_apart() -> None:
    assert three_batch_sizes(small_task(4000), None, centre=None, budget=LONG) == (8, 32, 128)


def test_batch_sizes_lie_around_the_one_in_use() -> None:
    assert three_batch_sizes(small_task(40_000), None, centre=256, budget=LONG) == (64, 256, 1024)
    assert three_batch_sizes(small_task(40_000), None, centre=1, budget=LONG) == (2, 8, 32)
    assert three_batch_sizes(small_task(3600), None, centre=512, budget=LONG) == (16, 64, 256)


@pytest.mark.parametrize(("num_train", "expected"), [(512, (4, 16, 64)), (300, (2, 8, 32)), (64, (1, 4))])
def test_batch_sizes_fit_a_small_training_set(num_train: int, expected: tuple[int, ...]) -> None:
    assert three_batch_sizes(small_task(num_train), None, centre=None, budget=LONG) == expected
    assert three_batch_sizes(small_task(num_train), None, centre=4096, budget=LONG) == expected


def test_too_few_examples_for_two_batch_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="31 training examples are too few for two batch sizes"):
        three_batch_sizes(small_task(31), None, centre=None, budget=LONG)


def test_batch_sizes_are_whole_ghosts() -> None:
    assert three_batch_sizes(ghosts_task(10_000, 64), None, centre=None, budget=LONG) == (64, 256, 1024)
    assert three_batch_sizes(ghosts_task(10_000, 50), None, centre=None, budget=LONG) == (50, 200, 800)
    assert three_batch_sizes(ghosts_task(10_000, 8), None, centre=128, budget=LONG) == (32, 128, 512)


def test_with_few_examples_batches_are_smaller_than_a_ghost() -> None:
    assert three_batch_sizes(ghosts_task(1000, 64), None, centre=None, budget=LONG) == (4, 16, 64)


def test_batch_sizes_that_are_asked_for_are_taken() -> None:
    assert three_batch_sizes(small_task(4000), [64, 16, 64], centre=8, budget=LONG) == (16, 64)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([16], "give two or more"),
        ([16, 16], "give two or more"),
        ([16, 501], "more than an eighth of the training set, .*; use at most 500"),
        ([0, 16], "whole numbers of at least 1, not 0"),
        ([16.0, 32], "whole numbers of at least 1, not 16.0"),
        ([True, 32], "whole numbers of at least 1, not True"),
    ],
)
def test_batch_sizes_that_cannot_be_used_are_refused(sizes: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        three_batch_sizes(small_task(4000), sizes, centre=None, budget=LONG)


def test_ghosts_refuse_batch_sizes_that_they_do_not_divide() -> None:
    with pytest.raises(UserError, match="96"):
        three_batch_sizes(ghosts_task(10_000, 64), [64, 96], centre=None, budget=LONG)


def test_a_model_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(UserError, match="no trainable parameters"):
        three_batch_sizes(small_task(4000, nn.Identity), None, centre=None, budget=LONG)


def test_stability_is_looked_at_at_twice_the_largest_batch_where_it_fits() -> None:
    assert large_batch_size(small_task(4000), (8, 32, 128), LONG) == 256
    assert large_batch_size(small_task(4000), (8, 32, 251), LONG) == 251
    assert large_batch_size(ghosts_task(10_000, 50), (50, 75), LONG) == 150
    assert large_batch_size(ghosts_task(10_000, 64), (16, 48), LONG) == 48


def test_a_short_training_has_smaller_batches() -> None:
    """40 updates of the largest batch fit into 6,000 examples, twice as many of the one whose stability is tried."""
    task = small_task(2000)
    assert three_batch_sizes(task, None, centre=None, budget=Budget.epochs(3)) == (8, 32, 128)
    assert large_batch_size(task, (8, 32, 128), Budget.epochs(3)) == 32
    assert three_batch_sizes(task, None, centre=None, budget=Budget.epochs(1)) == (2, 8, 32)
    with pytest.raises(UserError, match=r"leaves fewer than 40 updates in 1 epoch; use at most 50"):
        three_batch_sizes(task, [16, 64], centre=None, budget=Budget.epochs(1))


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UserError, match="with at least 40 updates in 20 steps; give more examples, a longer training"):
        three_batch_sizes(small_task(2000), None, centre=None, budget=Budget.steps(20))
    assert three_batch_sizes(small_task(2000), None, centre=None, budget=Budget.steps(60)) == (8, 32, 128)


def test_a_training_shorter_than_an_update_has_one() -> None:
    assert intended_steps(small_task(100), Budget.epochs(0.1), 8) == 1
    assert intended_steps(small_task(100), Budget.epochs(0.1), 50) == 1
    assert intended_steps(small_task(100), Budget.steps(7), 50) == 7
