"""FLOP, bytes and floors, against numbers counted by hand."""

from __future__ import annotations

import pytest
import torch

from isotherm.bench.ceilings import (
    Floor,
    bytes_per_step,
    copy_bytes_per_second,
    matmul_flop_per_second,
)
from isotherm.running.flop import flop_per_example
from isotherm.tasks.builtin import made_task


def test_bytes_by_hand() -> None:
    # weight in the forward and in the backward pass; gradient out and in; velocity in and out; weight in and out
    assert bytes_per_step(15_210) == 4 * 15_210 * (2 + 2 + 2 + 2)
    assert bytes_per_step(15_210, "float64") == 8 * 15_210 * (2 + 2 + 2 + 2)
    assert bytes_per_step(15_210, "mixed") == 15_210 * (2 * (2 + 2) + 4 * (2 + 2) + 2)


@pytest.mark.parametrize(
    ("flop_per_second", "bytes_per_second", "expected"),
    [(656_000 * 1e5, 486_720 * 2e4, 2e4), (656_000 * 1e4, 486_720 * 2e4, 1e4)],
)
def test_the_floor_of_the_mlp_by_hand(flop_per_second: float, bytes_per_second: float, expected: float) -> None:
    floor = Floor(
        flop=8 * flop_per_example(made_task("mlp_mnist1d")),
        num_bytes=bytes_per_step(15_210),
        flop_per_second=flop_per_second,
        bytes_per_second=bytes_per_second,
    )
    assert floor.run_steps_per_second == pytest.approx(expected)


def test_ceilings_are_measured_and_threads_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isotherm.bench.ceilings.SIZES", {"cpu": (64,)})
    before, state = torch.get_num_threads(), torch.get_rng_state()
    assert matmul_flop_per_second("cpu", "float32") > 0
    assert copy_bytes_per_second("cpu", 1_000) > 0
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_as_networks_have_them_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:  # ones are faster
    monkeypatch.setattr("isotherm.bench.ceilings.SIZES", {"cpu": (64,)})
    seen = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *pair, out: seen.append(pair) or multiply(*pair, out=out))
    matmul_flop_per_second("cpu", "mixed")
    left, right = seen[0]
    assert left.dtype == right.dtype == torch.bfloat16
    assert left.float().std() == pytest.approx(1.0, abs=0.1)
    assert abs((left * right).float().mean()) < 0.1  # two matrices, not one
