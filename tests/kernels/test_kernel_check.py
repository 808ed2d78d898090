"""Kernels are checked once per GPU, and the log says what is wrong with them."""

from __future__ import annotations

import logging

import pytest
import torch

from isotherm.kernels import availability, kernel_check
from isotherm.kernels.kernel_check import KernelCheck
from isotherm.kernels.saved_checks import SavedChecks

GPU = torch.device("cuda", 7)


@pytest.fixture(autouse=True)
def hopper(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_check.SavedChecks, "on", lambda device: SavedChecks(folder=tmp_path / str(device.index)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(availability, "HAS_TRITON", True)
    monkeypatch.setattr(availability, "ENABLED", True)
    monkeypatch.setattr(kernel_check, "version", lambda name: "3.6.0")


def test_kernels_are_checked_once_on_each_gpu():
    tried = []
    check = KernelCheck("things", lambda device: tried.append(device) or True)
    for device in (GPU, torch.device("cuda"), GPU, torch.device("cuda", 1)):
        assert check.passes(device)
    assert tried == [GPU, torch.device("cuda", 1)]


@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_other_gpus_and_cpus_are_not_checked(capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    check = KernelCheck("things", lambda device: pytest.fail("tried"))
    assert not check.passes(GPU)
    assert not check.passes(torch.device("cpu"))


@pytest.mark.parametrize("is_wrong", [False, True], ids=["do not compile", "are wrong"])
def test_kernels_that_do_not_work_are_logged_and_left_out(is_wrong, caplog):
    """As with a version of Triton in which Gluon has changed."""

    def found(device: torch.device) -> bool:
        if is_wrong:
            return False
        raise AttributeError("no such operation\nin this place")

    check = KernelCheck("updates", found)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert not check.passes(GPU)
        assert not check.passes(GPU)
    (record,) = caplog.records
    text = record.getMessage()
    assert "updates" in text
    assert "Triton 3.6.0" in text
    assert ("wrong results" if is_wrong else "AttributeError: no such operation)") in text


def test_nothing_is_checked_while_a_graph_is_captured(monkeypatch):
    check = KernelCheck("things", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not check.passes(GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert check.passes(GPU)


def test_running_out_of_memory_says_nothing_about_them():
    def found(device: torch.device) -> bool:
        raise torch.cuda.OutOfMemoryError("out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        KernelCheck("things", found).passes(GPU)


def test_kernels_that_are_switched_off_are_not_checked(monkeypatch):
    monkeypatch.setattr(availability, "ENABLED", False)
    assert not KernelCheck("things", lambda device: pytest.fail("checked")).passes(GPU)


def test_another_process_need_not_check_again():
    assert KernelCheck("things", lambda device: True).passes(GPU)
    assert KernelCheck("things", lambda device: pytest.fail("tried")).passes(GPU)


def test_kernels_that_failed_are_checked_again():
    assert not KernelCheck("things", lambda device: False).passes(GPU)
    assert KernelCheck("things", lambda device: True).passes(GPU)
