"""Probes of small tasks: sizes by time, modes by layer, and what is reported if something cannot be measured."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cases
from helpers_second_derivative import CubeOnce
from isotherm.diagnose import probes
from isotherm.diagnose.probes import Prober
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task
from isotherm.theory.curvature import sampled_sharpness
from isotherm.theory.hessian import hessian_of_task


def blobs_task(model: Callable[[], nn.Module] = cases.build_mlp, *, num_train: int = 300) -> Task:
    return cases.classification("blobs", model, train=cases.blobs(num_train, seed=0))


def prober(task: Task, now: Callable[[], float] = time.perf_counter) -> tuple[Prober, list[str]]:
    told: list[str] = []
    return Prober(task=task, seed=0, device="cpu", on_missing=told.append, now=now), told


# -- what is measured ------------------------------------------------------------------------------------------------


def test_sharpness_is_that_of_the_hessian_and_noise_that_of_the_start() -> None:
    task = blobs_task()
    prober_of_task, told = prober(task)
    found = prober_of_task.at(0, None, seconds=1e3)
    assert told == []
    assert (found.step, found.num_examples, found.mode) == (0, 256, "train")
    module = initial_model(task.model, seed=0)
    hessian = hessian_of_task(task, module, mode="eval", num_examples=256, subset_seed=0, precision="float32")
    expected = sampled_sharpness(hessian, num_blocks=4, tolerance=1e-2, seed=0)
    assert found.sharpness is not None
    assert found.sharpness.estimate == pytest.approx(expected.of_all, rel=0.02)
    assert 0 < found.sharpness.low <= found.sharpness.estimate <= found.sharpness.high
    assert found.noise_scale is not None
    assert 0 < found.noise_scale.low < found.noise_scale.estimate < found.noise_scale.high


def test_other_parameters_have_another_curvature() -> None:
    task = blobs_task()
    start = prober(task)[0].at(0, None, seconds=1e3)
    state = {name: 3 * value for name, value in initial_model(task.model, seed=0).state_dict().items()}
    later = prober(task)[0].at(17, state, seconds=1e3)
    assert later.step == 17
    assert start.sharpness is not None
    assert later.sharpness is not None
    assert start.noise_scale != later.noise_scale
    assert later.sharpness.estimate != pytest.approx(start.sharpness.estimate, rel=0.05)


def test_the_penalty_is_part_of_the_curvature() -> None:
    plain, penalised = (
        prober(dataclasses.replace(blobs_task(), l2=l2))[0].at(0, None, seconds=1e3).sharpness for l2 in (0.0, 2.0)
    )
    assert plain is not None
    assert penalised is not None
    assert 1.0 < penalised.estimate - plain.estimate < 2.1


# -- sizes by time ---------------------------------------------------------------------------------------------------


def test_less_time_means_fewer_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int, int]] = []
    original = Prober._measured

    def noted(self: Prober, size: tuple[int, int, int], parameters: Any) -> Any:
        sizes.append(size)
        return original(self, size, parameters)

    monkeypatch.setattr(Prober, "_measured", noted)
    task = blobs_task(num_train=1100)
    assert prober(task)[0].at(0, None, seconds=1e3).num_examples == 1024
    assert sizes == [probes.NOISE_SIZES[-1], probes.NOISE_SIZES[0]]
    sizes.clear()
    hasty, told = prober(task)
    found = hasty.at(0, None, seconds=1e-9)
    assert sizes == [probes.NOISE_SIZES[-1]]
    assert found.noise_scale is not None
    assert (found.sharpness, found.num_examples) == (None, 0)
    assert len(told) == 1
    assert told[0].startswith("curvature: it would take about")
    assert "over 64 examples; give more minutes, at least" in told[0]


def test_what_could_not_be_measured_is_not_tried_again() -> None:
    hasty, told = prober(blobs_task())
    hasty.at(0, None, seconds=1e-9)
    assert hasty.at(5, None, seconds=1e3).sharpness is None
    assert len(told) == 1


def test_a_little_too_slow_is_still_tried_with_the_fewest_examples() -> None:
    """Every product takes a second by this clock: 15 for each of 2 + 2 eigenvalues over 64 examples."""
    ticks = partial(next, map(float, range(1000)))
    task = blobs_task()
    almost, told = prober(task, ticks)
    assert almost._sharpness(0, None, seconds=16.0)[1] == 64
    assert told == []
    beyond, told = prober(task, ticks)
    assert beyond._sharpness(0, None, seconds=14.0) == (None, 0)
    assert told == ["curvature: it would take about 60 s over 64 examples; give more minutes, at least 12"]
    enough, _ = prober(task, ticks)
    assert enough._sharpness(0, None, seconds=1e4)[1] == 256


# -- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "reason"),
    [(cases.DropoutNet, "draws random numbers"), (cases.build_batch_norm, "layer '1' (BatchNorm1d) normalises with")],
)
def test_layers_that_couple_or_draw_are_measured_in_evaluation_mode(
    model: Callable[[], nn.Module], reason: str
) -> None:
    one, told = prober(blobs_task(model))
    found = one.at(0, None, seconds=1.0)
    assert found.mode == "evaluate"
    assert found.noise_scale is not None
    assert found.sharpness is not None
    assert len(told) == 1
    assert told[0].startswith("gradient noise in training mode: ")
    assert reason in told[0]
    assert told[0].endswith("; it is measured in evaluation mode")
    assert "mode=" not in told[0]


def build_ghosts() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), GhostBatchNorm2d(4, ghost_size=16), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )


def test_with_ghosts_the_small_batch_is_a_ghost_and_curvature_is_that_of_training() -> None:
    x, y = cases.images(300, seed=0)
    task = Task(name="ghosts", model=build_ghosts, train=(x, y), test=(x[:9], y[:9]))
    one, told = prober(task)
    assert one._noise_sizes() == [(16, 256, 32), (16, 128, 16), (16, 128, 8)]
    found = one.at(0, None, seconds=1.0)
    assert told == []
    assert found.mode == "train"
    assert found.noise_scale is not None
    assert one._hessian(None, num_examples=64).mode == "train"
    assert prober(blobs_task())[0]._hessian(None, num_examples=64).mode == "eval"


# -- what is missing -------------------------------------------------------------------------------------------------


def test_too_few_examples_for_two_batch_sizes_are_told() -> None:
    one, told = prober(blobs_task(num_train=50))
    found = one.at(0, None, seconds=1e3)
    assert (found.noise_scale, found.sharpness) == (None, None)
    assert told == [
        "gradient noise: 50 training examples are too few for two batch sizes; give more, the noise scale needs a "
        "small and a large batch",
        "curvature: only 50 training examples; at least 64 are needed",
    ]


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return CubeOnce.apply(x)


def test_a_layer_that_cannot_be_differentiated_twice_is_named() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), Cube(), nn.Linear(4, 3))

    one, told = prober(blobs_task(build))
    found = one.at(0, None, seconds=1.0)
    assert (found.sharpness, found.num_examples) == (None, 0)
    assert found.noise_scale is not None
    assert len(told) == 1
    assert told[0].startswith("curvature: ")
    assert "layer '1' (Cube) cannot be differentiated twice" in told[0]
    assert "a cube knows one derivative" in told[0]
    assert "differentiation=" not in told[0]


def test_a_loss_that_only_bends_downwards_sets_no_limit() -> None:
    """A concave loss, -w²: no direction curves upwards."""

    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    x = torch.randn(300, 1, generator=torch.Generator().manual_seed(0))

    def concave(output: Tensor, target: Tensor) -> Tensor:
        return -output.square().mean()

    task = Task(name="hill", model=Scalar, train=(x, x), test=(x, x), loss=concave)
    one, told = prober(task)
    found = one.at(4, None, seconds=1e3)
    assert found.sharpness is None
    assert told == ["curvature: at update 4 no direction curves upwards, so curvature sets no limit"]


def test_parameters_that_are_not_finite_are_refused() -> None:
    task = blobs_task()
    state = {name: value * torch.inf for name, value in initial_model(task.model, seed=0).state_dict().items()}
    with pytest.raises(UserError, match=r"finite|nan|inf"):
        prober(task)[0].at(3, state, seconds=1.0)
