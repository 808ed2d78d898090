"""Kernels are tried once on each GPU, and what is wrong with them is told."""

from __future__ import annotations

import logging

import pytest
import torch

from isotherm.kernels import kernel_check
from isotherm.kernels.kernel_check import Trial

GPU = torch.device("cuda", 7)


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(kernel_check, "version", lambda name: "3.6.0")


def test_they_are_tried_once_on_each_gpu():
    tried = []
    trial = Trial("things", lambda device: tried.append(device) or True)
    for device in (GPU, torch.device("cuda"), GPU, torch.device("cuda", 1)):
        assert trial.is_passed(device)
    assert tried == [GPU, torch.device("cuda", 1)]


@pytest.mark.parametrize("capability", [(8, 0), (10, 0), (12, 0)])
def test_other_gpus_and_cpus_are_not_tried(capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    trial = Trial("things", lambda device: pytest.fail("tried"))
    assert not trial.is_passed(GPU)
    assert not trial.is_passed(torch.device("cpu"))


@pytest.mark.parametrize("is_wrong", [False, True], ids=["do not compile", "are wrong"])
def test_kernels_that_do_not_work_are_told_and_left_out(is_wrong, caplog):
    """As with a version of Triton in which Gluon has changed."""

    def found(device: torch.device) -> bool:
        if is_wrong:
            return False
        raise AttributeError("no such operation\nin this place")

    trial = Trial("updates", found)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert not trial.is_passed(GPU)
        assert not trial.is_passed(GPU)
    (record,) = caplog.records
    text = record.getMessage()
    assert "updates" in text
    assert "Triton 3.6.0" in text
    assert ("are wrong" if is_wrong else "AttributeError: no such operation)") in text


def test_nothing_is_tried_while_a_gpu_records(monkeypatch):
    trial = Trial("things", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not trial.is_passed(GPU)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert trial.is_passed(GPU)


def test_a_gpu_without_memory_says_nothing_about_them():
    def found(device: torch.device) -> bool:
        raise torch.cuda.OutOfMemoryError("out of memory")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        Trial("things", found).is_passed(GPU)
