"""One run by the reference and many as a fleet, with what they trained, and how the two are compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor, nn

from isotherm.core.records import RunResult, RunSpec
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import PlacedTask
from isotherm.engine.reference import run_reference

TOLERANCE = 1e-9

Trained = tuple[RunResult, dict[str, Tensor]]


def by_reference(placed: PlacedTask, spec: RunSpec, **options: Any) -> Trained:
    """Return the result and the trained parameters of one run; none if it diverged before its last update."""
    parameters: dict[str, Tensor] = {}

    def keep(model: nn.Module) -> None:
        parameters.update({n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad})

    result = run_reference(placed, spec, on_trained=keep, **options)
    return result, parameters


def by_fleet(placed: PlacedTask, specs: Sequence[RunSpec], **options: Any) -> list[Trained]:
    """Return the results and the trained parameters of a fleet's runs."""
    parameters: list[dict[str, Tensor]] = [{} for _ in specs]

    def keep(index: int, trained: dict[str, Tensor]) -> None:
        parameters[index].update({name: p.clone() for name, p in trained.items()})

    results = run_fleet(placed, specs, on_trained=keep, **options)
    return list(zip(results, parameters, strict=True))


def distance(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the distance of two networks' parameters."""
    assert ours.keys() == expected.keys()
    return math.sqrt(sum(float((ours[name] - p).square().sum()) for name, p in expected.items()))


def assert_same_parameters(
    ours: dict[str, Tensor], expected: dict[str, Tensor], *, tolerance: float = TOLERANCE, smallest: float = 0.0
) -> None:
    """Compare parameter by parameter, relative to its norm, or to `smallest` where that is more."""
    assert ours.keys() == expected.keys()
    for name, parameter in expected.items():
        assert ours[name].shape == parameter.shape
        difference = float((ours[name] - parameter).norm())
        assert difference <= tolerance * max(smallest, float(parameter.norm())), name


def assert_same_result(ours: RunResult, expected: RunResult, *, tolerance: float = TOLERANCE) -> None:
    """Compare every field, the curve's points included."""
    for field in dataclasses.fields(RunResult):
        mine, theirs = getattr(ours, field.name), getattr(expected, field.name)
        if field.name == "curve":
            assert [point.step for point in mine] == [point.step for point in theirs]
            mine = [value for point in mine for value in (point.test_loss, point.test_metric)]
            theirs = [value for point in theirs for value in (point.test_loss, point.test_metric)]
        if isinstance(theirs, float | list):
            assert mine == pytest.approx(theirs, rel=tolerance, abs=1e-14), field.name
        else:
            assert mine == theirs, field.name


def assert_same(
    ours: Sequence[Trained], expected: Sequence[Trained], *, tolerance: float = TOLERANCE, smallest: float = 0.0
) -> None:
    for (result, parameters), (expected_result, expected_parameters) in zip(ours, expected, strict=True):
        assert_same_result(result, expected_result, tolerance=tolerance)
        assert_same_parameters(parameters, expected_parameters, tolerance=tolerance, smallest=smallest)
