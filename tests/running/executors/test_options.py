"""The options of fleets."""

from __future__ import annotations

import pytest

import cases
from isotherm.core.records import CurvePoint
from isotherm.errors import UserError
from isotherm.running.executors.options import FleetOptions


@pytest.mark.parametrize("name", ["fleet_size", "micro_batch_size"])
@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_sizes_are_positive_whole_numbers(name: str, size: float) -> None:
    with pytest.raises(UserError, match=rf"{name}={size} is not a positive whole number; leave it out"):
        FleetOptions(**{name: size})  # type: ignore[arg-type]


def test_nobody_has_to_listen() -> None:
    options = FleetOptions()
    options.on_steps(8, 100)
    options.on_evaluation(cases.spec(cases.blobs_task()), CurvePoint(step=1, test_loss=0.5, test_metric=0.5))
    assert (options.fleet_size, options.checkpoints) == (None, None)
