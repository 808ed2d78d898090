"""When convolutions read rows of pixels once for three taps; `test_convolution_kernels` tests their results."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton.experimental.gluon.nvidia.hopper", reason="needs Triton with Gluon for Hopper")

from isotherm.kernels.gluon import row_convolution
from isotherm.kernels.tiling.partial_sums import Normalised
from isotherm.kernels.triton import convolution, filter_gradient

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not IS_HOPPER, reason="needs a GPU of the generation Hopper")
THREE = {"taps": (3, 3), "stride": 1, "padding": 1}


def images(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("shape", "num_out", "changes", "expected"),
    [
        ((3, 64, 64, 32, 32), 64, {}, True),
        ((3, 64, 128, 16, 16), 64, {}, True),
        ((3, 64, 256, 8, 8), 256, {}, True),
        ((3, 6, 64, 32, 32), 64, {"ghost_size": 3}, True),
        ((3, 6, 64, 8, 8), 64, {}, False),  # four images are a tile, and six none
        ((3, 64, 64, 8, 8), 64, {"ghost_size": 2}, False),
        ((3, 64, 64, 4, 4), 64, {}, False),  # few rows
        ((3, 64, 64, 64, 64), 64, {}, False),
        ((3, 64, 64, 24, 16), 64, {}, False),  # tiles of 16 rows do not fill 24
        ((3, 64, 64, 32, 24), 64, {}, False),
        ((3, 64, 64, 64, 4), 64, {}, False),  # short rows
        ((3, 64, 32, 32, 32), 64, {}, True),
        ((3, 64, 64, 32, 32), 16, {}, True),
        ((3, 64, 16, 32, 32), 16, {}, True),
        ((3, 64, 48, 32, 32), 64, {}, False),
        ((3, 64, 160, 32, 32), 160, {}, True),  # blocks of 64, of which the last is not full
        ((3, 64, 64, 32, 32), 96, {}, False),
        ((3, 64, 64, 32, 32), 64, {"stride": 2}, False),
        ((3, 64, 64, 32, 32), 64, {"padding": 0}, False),
        ((3, 64, 64, 32, 32), 64, {"taps": (1, 1), "padding": 0}, False),
        ((3, 64, 64, 32, 32), 64, {"taps": (3, 5)}, False),
    ],
    ids=str,
)
def test_what_they_are_made_for(shape, num_out, changes, expected, monkeypatch):
    monkeypatch.setattr(row_convolution, "are_usable", lambda device: True)
    assert row_convolution.fit(images(*shape), num_out, **THREE | changes) == expected
    assert not row_convolution.fit(images(*shape, dtype=torch.float32), num_out, **THREE | changes)


def test_a_cpu_has_none():
    assert not row_convolution.are_usable(torch.device("cpu"))


@on_hopper
def test_they_are_right_where_they_are_made_for():
    assert row_convolution._are_right(torch.device("cuda"))


@on_hopper
def test_they_are_taken(monkeypatch):
    assert row_convolution.are_usable(torch.device("cuda"))  # tried before they are watched
    taken = []
    for name in ("convolve", "weight_gradient"):
        function = getattr(row_convolution, name)
        monkeypatch.setattr(
            row_convolution, name, lambda *a, name=name, function=function, **k: taken.append(name) or function(*a, **k)
        )
    x = torch.zeros(1, 4, 16, 16, 64, device="cuda", dtype=torch.bfloat16).movedim(-1, 2)
    weight = torch.zeros(1, 64, 3, 3, 64, device="cuda", dtype=torch.bfloat16).movedim(-1, 2)
    convolution.forward(x, weight, stride=1, padding=1, ghost_size=4)
    convolution.input_gradient(x, weight, size=(16, 16), stride=1, padding=1)
    filter_gradient.weight_gradient(x, x, taps=(3, 3), stride=1, padding=1)
    assert taken == ["convolve", "convolve", "weight_gradient"]


# Ends by itself when its input is closed: under MPS, a process that is killed can take the others with it.
BUSY = """
import select, sys, torch
a = torch.rand(4096, 4096, device="cuda")
print(float(torch.tanh(a @ a).sum()), flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(20):
        a = torch.tanh(a @ a)
    torch.cuda.synchronize()
"""
SECONDS = 8


@on_hopper
@pytest.mark.parametrize("channels", [(16, 16), (16, 64), (64, 64)], ids=str)
@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
def test_sums_stay_right_while_another_process_takes_turns(channels, is_gradient):
    num_in, num_out = channels
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda").bfloat16().movedim(-1, 2)

    x, dy = (normal(3, 256, 32, 32, num) for num in channels)
    weight = normal(3, num_out, 3, 3, num_in)
    statistics = [torch.rand(3, 4, num_in, generator=generator, device="cuda") + 0.5 for _ in range(2)]
    scales = [torch.rand(3, num_in, generator=generator, device="cuda") for _ in range(2)]
    normalised = Normalised(x, *statistics, *scales, 1e-5, True)

    def sums() -> tuple[Tensor, Tensor]:
        if is_gradient:
            return row_convolution.convolve(dy, weight, is_gradient=True, normalised=normalised)[1]
        return row_convolution.convolve(x, weight, ghost_size=64)[1]

    expected = sums()
    num_different = torch.zeros((), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            for found, right in zip(sums(), expected, strict=True):
                num_different += (found != right).sum()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BUSY], text=True, **pipes) as other:
        try:
            assert other.stdout.readline()  # it has begun
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                for _ in range(10):
                    graph.replay()
                torch.cuda.synchronize()
            assert other.poll() is None  # it was there
        finally:
            other.communicate(timeout=60)
    assert num_different == 0
