"""Memory estimates: from two passes, on any device, right within a factor for networks whose needs are known."""

from __future__ import annotations

import dataclasses
import functools
import os

import pytest
import torch
from torch import nn

import cases
from cases_paper import ghost_task, language_task, lazy_task
from isotherm.engine import memory
from isotherm.engine.placed_task import place_task

NUM_UNITS, NUM_BYTES = 1_000, 4


def deep_task(depth=10):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(NUM_UNITS, NUM_UNITS), nn.Tanh())]
    task = cases.blobs_task()
    ends = nn.Linear(task.train[0].shape[1], NUM_UNITS), nn.Linear(NUM_UNITS, 3)
    model = functools.partial(nn.Sequential, ends[0], *layers, ends[1])
    return dataclasses.replace(task, model=lambda: model())


def test_activations_are_counted_and_grow_with_the_batch():
    placed = place_task(deep_task(), precision="float32")
    small, large = (memory.bytes_per_run(placed, size) for size in (8, 4_000))
    of_parameters = 4 * NUM_BYTES * placed.num_parameters
    of_activations = 10 * 4_000 * NUM_UNITS * NUM_BYTES  # what tanh keeps
    assert of_parameters < small < 1.1 * of_parameters
    assert of_activations < large - of_parameters < 6 * of_activations


def test_rounded_weights_do_not_grow_with_the_batch():
    """Autocast's copies are kept for the backward pass, once, however many examples there are."""
    mixed, plain = (memory.bytes_per_run(place_task(deep_task(), precision=p), 4_000) for p in ("mixed", "float32"))
    assert mixed < plain


def test_the_outputs_that_a_metric_over_the_split_needs_are_counted():
    """Many examples, few weights: the outputs of the largest split are what is large."""
    train = torch.zeros(50_000, 2), torch.zeros(50_000, dtype=torch.int64)
    by_mean, over_split = (
        memory.bytes_per_run(
            place_task(cases.classification("m", cases.build_mlp, metric=m, train=train), precision="float32"), 8
        )
        for m in ("accuracy", "f1")
    )
    assert over_split - by_mean == pytest.approx(50_000 * 3 * NUM_BYTES, rel=0.05)


def test_the_precision_counts():
    sizes = [memory.bytes_per_run(place_task(deep_task(), precision=p), 64) for p in ("float32", "float64")]
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.1)


@pytest.mark.parametrize("make", [ghost_task, language_task, lazy_task])
def test_every_kind_of_task_is_estimated(make):
    placed = place_task(make(), precision="float32")
    of_parameters = 4 * NUM_BYTES * placed.num_parameters
    assert memory.bytes_per_run(placed, 16) > of_parameters
    assert memory.bytes_per_run(placed, 16) < memory.bytes_per_run(placed, 32)


def test_a_module_that_fails_counts_with_its_parameters():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(7))

        def forward(self, x):
            raise RuntimeError("broken")

    placed = place_task(dataclasses.replace(cases.blobs_task(), model=Broken), precision="float32")
    assert memory.bytes_per_run(placed, 8) == 4 * NUM_BYTES * 7


def test_half_of_the_machine_may_be_used():
    found = memory.usable_memory(torch.device("cpu"))
    assert found == pytest.approx(0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=1e-6)


def test_a_system_that_does_not_tell_has_a_little(monkeypatch):
    def unknown(_name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.sysconf", unknown)
    assert memory.usable_memory(torch.device("cpu")) == 2**32


def test_the_state_of_a_run_is_its_weights_velocities_and_gradients():
    assert memory.state_bytes(15_210) == 4 * 3 * 15_210
    assert memory.state_bytes(10, dtype=torch.float64) == 2 * memory.state_bytes(10)
    assert memory.bytes_per_run(place_task(deep_task(1), precision="float32"), 8) > memory.state_bytes(NUM_UNITS**2)


def test_a_real_allocation_that_fails_is_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert memory.is_out_of_memory(caught.value)


class OfAccelerator(torch.AcceleratorError):
    """An error with a code, as CUDA's runtime gives it."""

    error_code = 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("the user is out of memory of what to allocate memory for"), False),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), False),
        (RuntimeError("shapes do not match"), False),
    ],
    ids=str,
)
def test_which_errors_are_out_of_memory(error, expected):
    assert memory.is_out_of_memory(error) == expected


@pytest.mark.parametrize(("code", "expected"), [(2, True), (700, False)])
def test_errors_of_an_accelerator_are_told_by_their_code(code, expected):
    error = OfAccelerator("CUDA error: out of memory")
    error.error_code = code
    assert memory.is_out_of_memory(error) == expected
