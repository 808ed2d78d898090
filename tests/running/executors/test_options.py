"""The options of fleets."""

from __future__ import annotations

import pytest

import cases
from isotherm.core.records import CurvePoint
from isotherm.errors import UserError
from isotherm.running.executors.options import FleetOptions


@pytest.mark.parametrize("size", [0, -3])
def test_a_fleet_has_at_least_one_run(size: int) -> None:
    with pytest.raises(UserError, match=rf"fleet_size={size} is not a positive whole number; leave it out"):
        FleetOptions(fleet_size=size)


def test_nobody_has_to_listen() -> None:
    options = FleetOptions()
    options.on_steps(8, 100)
    options.on_evaluation(cases.spec(cases.blobs_task()), CurvePoint(step=1, test_loss=0.5, test_metric=0.5))
    assert (options.fleet_size, options.checkpoints) == (None, None)
