"""What one fleet has shown is known to the next."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import cases
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.kernels.ops import convolution as convolution_ops


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> PlacedTask:
    """Return a task with convolutions on a GPU with kernels."""
    monkeypatch.setattr(convolution_ops, "are_usable", lambda _device: True)
    on_cpu = place_task(cases.conv_task(), precision="mixed")
    return dataclasses.replace(on_cpu, device=torch.device("cuda"))


def test_kernels_that_failed_at_a_batch_size_are_not_tried_there_again(placed: PlacedTask) -> None:
    checks = FleetChecks()
    assert checks.convolves_together(placed, 4)
    assert not checks.wants_own_streams(placed, 4)
    checks.add_without_kernels(4)
    assert not checks.convolves_together(placed, 4)
    assert checks.wants_own_streams(placed, 4)
    assert checks.convolves_together(placed, 8)
    assert FleetChecks().convolves_together(placed, 4)


def test_a_check_holds_for_its_batch_size_and_its_way_to_train() -> None:
    checks = FleetChecks()
    checks.add_passed(8, as_one=False)
    found = [checks.has_passed(size, as_one=as_one) for size in (4, 8) for as_one in (True, False)]
    assert found == [False, False, False, True]
