"""One place says whether kernels can be used, and every operation asks it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch

import isotherm
from isotherm.kernels import availability

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(availability, "HAS_TRITON", True)
    monkeypatch.setattr(availability, "ENABLED", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def test_kernels_need_a_gpu():
    assert availability.are_available(GPU)
    assert not availability.are_available(CPU)


@pytest.mark.parametrize("missing", ["HAS_TRITON", "ENABLED"])
def test_kernels_need_triton_and_can_be_switched_off(missing, monkeypatch):
    monkeypatch.setattr(availability, missing, False)
    assert not availability.are_available(GPU)
    assert not availability.are_available(GPU, generations=(9,))


@pytest.mark.parametrize(("generations", "expected"), [((9,), True), ((9, 10), True), ((10,), False), (None, True)])
def test_kernels_may_be_written_for_some_generations(generations, expected):
    assert availability.are_available(GPU, generations=generations) == expected


def test_a_missing_gluon_module_is_none_and_an_unknown_one_is_not_an_error():
    assert availability.in_gluon("no_such_kernels") is None


def test_no_other_module_asks_whether_triton_is_there():
    """Neither for Triton, nor for the switch, nor for the generation of a GPU."""
    source = Path(inspect.getfile(isotherm)).parent
    for path in source.rglob("*.py"):
        if path.name == "availability.py" or path.parent.name in ("triton", "gluon"):
            continue
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not names & {"HAS_TRITON", "ENABLED", "get_device_capability", "has_triton"}, path
        assert not texts & {"ISOTHERM_KERNELS", "triton"} or path.name == "kernel_check.py", path
