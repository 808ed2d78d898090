from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from helpers_protocol import blobs_task, tiny_sweep
from isotherm.budget import Budget
from isotherm.data.augment import CropAndFlip
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.planning import estimate
from isotherm.runner import run_study
from isotherm.study import Study


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 7, bias=False), nn.ReLU(), nn.Linear(7, 2, bias=False))


def test_counts_are_exact() -> None:
    sweep = tiny_sweep(task=blobs_task(model=wide), batch_sizes=[4, 8])
    found = estimate(Study.of(sweep), {})
    assert found.num_runs == 2 * 3 * 2
    assert found.num_stored == 0
    assert found.num_examples == 3 * 2 * 10 * (4 + 8)
    # forward 2 FLOP per weight, backward as much for the weights and again for the hidden layer's inputs
    assert found.flop == found.num_examples * (2 * 2 * 14 + 3 * 2 * 14)
    assert {c.batch_size: c.num_runs for c in found.costs} == {4: 6, 8: 6}
    assert all(c.fleet_size == 6 for c in found.costs)
    # weights, velocity and two gradients; twice the outputs 7 + 7 + 2 of every example; 8 bytes in float64
    assert {c.batch_size: c.memory_bytes for c in found.costs} == {b: 8 * 6 * (4 * 28 + 2 * b * 16) for b in (4, 8)}
    assert found.memory_bytes == max(c.memory_bytes for c in found.costs)


def test_time_grows_with_the_budget_and_is_positive() -> None:
    short = estimate(Study.of(tiny_sweep()), {})
    assert short.seconds > 0
    long = estimate(Study.of(tiny_sweep(budget=Budget.steps(200_000))), {})
    assert long.seconds > 20 * short.seconds  # 20,000 times the updates, with a fixed cost on both sides


def test_what_is_stored_is_not_counted_again() -> None:
    sweep = tiny_sweep()
    known = run_study(Study.of(sweep)).by_key
    found = estimate(Study.of(sweep), known)
    assert (found.num_runs, found.num_stored, found.seconds) == (0, 6, 0)
    more = estimate(Study.of(tiny_sweep(num_seeds=3)), known)
    assert (more.num_runs, more.num_stored) == (3, 6)


def test_the_estimate_disturbs_no_generator() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    estimate(Study.of(tiny_sweep()), {})
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("fleet_size", [1, 4])
def test_fleets_are_those_that_would_run(fleet_size: int) -> None:
    found = estimate(Study.of(tiny_sweep()), {}, fleet_size=fleet_size)
    assert [c.fleet_size for c in found.costs] == [fleet_size]


# -- what is not a tensor of examples --------------------------------------------------------------


def test_a_sequence_is_counted_in_tokens() -> None:
    tokens = torch.arange(61) % 5
    split = (tokens[:-1], tokens[1:])
    model = partial(LSTMLanguageModel, vocabulary=5, width=4, num_layers=1)
    task = blobs_task(model=model, train=split, test=split, unroll=3, metric="perplexity")
    found = estimate(Study.of(tiny_sweep(task=task, batch_sizes=[2], budget=Budget.epochs(2))), {})
    # 61 tokens in 2 streams of 30: 9 windows, twice, of 2 · 3 tokens; 3 learning rates and 2 seeds.
    assert found.num_examples == 6 * (2 * 9) * 2 * 3
    # Of a token: 16 gates by 4 inputs, 16 by 4 recurrent values, 5 words by 4 units; 2 FLOP forward, 4 backward.
    assert found.flop == found.num_examples * 6 * (16 * 4 + 16 * 4 + 5 * 4)
    assert found.seconds > 0


class OnDisk:
    """Images that are fetched."""

    shape, dtype = torch.Size((32, 1, 4, 4)), torch.uint8

    def __len__(self) -> int:
        return 32

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> torch.Tensor:
        return torch.full((len(indices), 1, 4, 4), 7, dtype=torch.uint8)

    def identity(self) -> str:
        return "sevens"


def test_images_are_counted_as_the_model_sees_them() -> None:
    labels = torch.arange(32) % 2
    task = blobs_task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)),
        train=(OnDisk(), labels),
        test=(OnDisk(), labels),
        transform=CropAndFlip(mean=(3.0,), std=(2.0,), pad=1),
    )
    found = estimate(Study.of(tiny_sweep(task=task)), {})
    assert found.flop == found.num_examples * 2 * 2 * 32  # no gradient of the inputs is needed


def test_dropout_disturbs_no_generator_either() -> None:
    task = blobs_task(model=lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2)))
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    estimate(Study.of(tiny_sweep(task=task)), {})
    assert torch.equal(torch.random.get_rng_state(), before)
