"""What one fleet has shown is known to the next."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import cases
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.kernels.ops import convolution as convolution_ops
from isotherm.kernels.saved_checks import SavedChecks


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


def test_small_networks_in_more_digits_have_their_convolutions_as_matmuls(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {precision: place_task(cases.conv_task(), precision=precision) for precision in ("float32", "mixed")}
    on_gpu = {key: dataclasses.replace(placed, device=torch.device("cuda")) for key, placed in tasks.items()}
    checks = FleetChecks()
    assert checks.unfolds_together(on_gpu["float32"], 64)
    assert not checks.wants_own_streams(on_gpu["float32"], 64)
    assert not checks.unfolds_together(on_gpu["mixed"], 64)
    assert not checks.unfolds_together(tasks["float32"], 64)
    most = on_gpu["float32"].most_flop_unfolded
    assert most is not None
    monkeypatch.setattr("isotherm.engine.placed_task.MOST_FLOP_UNFOLDED", 64 * most)
    assert not checks.unfolds_together(on_gpu["float32"], 65)
    assert checks.wants_own_streams(on_gpu["float32"], 65)
    checks.add_without_kernels(64)
    assert checks.wants_own_streams(on_gpu["float32"], 64)
    of_vectors = dataclasses.replace(place_task(cases.blobs_task(), precision="float32"), device=torch.device("cuda"))
    assert not checks.unfolds_together(of_vectors, 64)


def test_a_check_holds_for_its_batch_size_and_its_way_to_train() -> None:
    checks = FleetChecks()
    checks.add_passed(8, as_one=False)
    found = [checks.has_passed(size, as_one=as_one) for size in (4, 8) for as_one in (True, False)]
    assert found == [False, False, False, True]


@pytest.mark.parametrize(("is_built_in", "expected"), [(True, [True, True]), (False, [True, False])])
def test_gradients_are_known_to_later_processes(is_built_in: bool, expected: list[bool], tmp_path: Path) -> None:
    """Those of a user's model at the batch size that was checked, those of ours at every one."""

    def checks(name: str) -> FleetChecks:
        return FleetChecks(saved=SavedChecks(folder=tmp_path), name=name, is_built_in=is_built_in)

    checks("data model mixed").add_right_gradients(8, as_one=True)
    later = checks("data model mixed")
    assert [later.has_right_gradients(size, as_one=True) for size in (8, 4)] == expected
    assert not later.has_right_gradients(8, as_one=False)
    assert not later.has_passed(8, as_one=True)  # its program has not been made yet
    assert not checks("data model float32").has_right_gradients(8, as_one=True)


@pytest.mark.parametrize("is_built_in", [True, False])
def test_a_batch_in_micro_batches_is_checked_by_itself(is_built_in: bool) -> None:
    checks = FleetChecks(is_built_in=is_built_in)
    checks.add_right_gradients(8, as_one=True)
    checks.add_passed(8, as_one=True)
    assert not checks.has_right_gradients(8, as_one=True, micro_batch_size=4)
    assert not checks.has_passed(8, as_one=True, micro_batch_size=4)
    checks.add_right_gradients(8, as_one=True, micro_batch_size=4)
    assert checks.has_right_gradients(8, as_one=True, micro_batch_size=4)
    assert checks.has_right_gradients(8, as_one=True, micro_batch_size=2) == is_built_in


def test_without_a_folder_they_are_known_to_this_process_alone() -> None:
    checks = FleetChecks.on(torch.device("cpu"), name="data model mixed", is_built_in=False)
    checks.add_right_gradients(8, as_one=True)
    assert checks.has_right_gradients(8, as_one=True)
    again = FleetChecks.on(torch.device("cpu"), name="data model mixed", is_built_in=False)
    assert not again.has_right_gradients(8, as_one=True)


def test_more_work_is_worth_compiling_for_fewer_updates(placed: PlacedTask) -> None:
    assert FleetChecks().updates_worth_compiling(placed, 8, num_runs=2) is None
    checks = FleetChecks.on(torch.device("cpu"), name="", is_built_in=False, flop_per_example=1e9)
    few, many = (checks.updates_worth_compiling(placed, size, num_runs=2) for size in (64, 1024))
    assert few is not None
    assert many is not None
    assert few == pytest.approx(16 * many, rel=0.01)
