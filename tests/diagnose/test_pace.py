"""How fast fleets train."""

from __future__ import annotations

from dataclasses import replace

import torch

from cases import build_mlp, classification
from isotherm.diagnose.pace import Pace, measure_pace
from isotherm.diagnose.short_runs import ShortGridSpec, ShortRuns


def test_a_pace_adds_its_overhead_once() -> None:
    assert Pace(overhead=2.0, speed=100.0).seconds(500) == 7.0


def test_a_pace_is_that_of_the_fleet() -> None:
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    task = classification("points", build_mlp, train=(x, torch.arange(400) % 3)).with_validation(0.1)
    grid_spec = ShortGridSpec(batch_size=8, momentum=0.9, num_steps=1, rates=(), num_seeds=1)
    with ShortRuns((task,), judged_by="validation", first_seed=0, device="cpu", workers=1) as runs:
        one = measure_pace(runs, grid_spec, num_runs=1, seconds=0.03)
        four = measure_pace(runs, replace(grid_spec, batch_size=32), num_runs=4, seconds=0.03)
    assert one.overhead > 0
    assert one.speed > 100
    assert four.speed > one.speed
    assert runs.num_runs == 0
