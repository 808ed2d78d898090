"""The contract of a row: the same numbers with any number of workers and in a fleet of any size, up to rounding.

In float32, where rounding shows. The largest differences over more updates are in the report's methods,
`report/study/rounding.py`.
"""

import dataclasses
import functools
from collections.abc import Iterator

import pytest
import torch

import cases
from cases_paper import ANY_SPEC, STREAMS, ghost_task, language_task
from isotherm.core.budget import Budget
from isotherm.core.records import RunResult, RunSpec
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.running.runner import run_study
from isotherm.running.store import Store
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep

# How many runs, at which batch size, and how much a loss may differ between a fleet of one and one of all, and between
# larger fleets; 0 for not a bit.
TASKS = {
    "mlp": (cases.blobs_task, 7, 10, 1e-6, 0.0),
    "dropout": (cases.dropout_task, 7, 10, 1e-6, 0.0),
    "conv": (cases.conv_task, 7, 10, 1e-6, 0.0),
    "batch_norm": (cases.batch_norm_task, 7, 10, 1e-6, 1e-6),
    "lstm": (language_task, 3, STREAMS, 1e-6, 1e-6),
    "ghost": (ghost_task, 3, 16, 1e-2, 1e-2),  # chaotic: a bit grows to the fourth digit within 25 updates
}
SIZES = [(name, size) for name, (_, num, *_) in TASKS.items() for size in ((1, 2, 3) if num > 3 else (2,))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Let this process compute as a worker does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def specs_of(num: int, batch_size: int) -> list[RunSpec]:
    fields = {"batch_size": batch_size, "num_steps": 8, "num_evaluations": 1, "precision": "float32"}
    rates = (0.05, 0.1, 0.2)
    return [
        dataclasses.replace(ANY_SPEC, seed=index % 4, effective_learning_rate=rates[index % 3], **fields)
        for index in range(num)
    ]


@functools.cache
def results_in_fleets(name: str, size: int | None = None) -> tuple[RunResult, ...]:
    make, num, batch_size, *_ = TASKS[name]
    placed, specs = place_task(make(), precision="float32"), specs_of(num, batch_size)
    fleets = [specs[start : start + (size or num)] for start in range(0, num, size or num)]
    return tuple(result for fleet in fleets for result in run_fleet(placed, fleet))


def assert_close(found: tuple[RunResult, ...], expected: tuple[RunResult, ...], tolerance: float) -> None:
    if tolerance == 0.0:
        assert found == expected
    for mine, theirs in zip(found, expected, strict=True):
        for field in ("train_loss", "test_loss", "train_loss_running", "weight_norm_squared"):
            assert getattr(mine, field) == pytest.approx(getattr(theirs, field), rel=tolerance, abs=0), field


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_rows_do_not_depend_on_the_size_of_a_fleet(name: str, size: int) -> None:
    _, num, _, of_one, of_several = TASKS[name]
    tolerance = of_one if size == 1 or num % size == 1 else of_several  # the last fleet may be of one
    assert_close(results_in_fleets(name, size), results_in_fleets(name), tolerance)


def study() -> Study:
    sweep = Sweep(
        name="rows",
        task=cases.blobs_task(),
        batch_sizes=(8, 16),
        effective_learning_rates=(0.1, 0.2),
        budget=Budget.steps(6),
        momentum=0.9,
        num_seeds=2,
        num_kept=2,
        max_extensions=0,
    )
    return Study(name="rows", sweeps=(sweep,))


def rows(*, workers: int, fleet_size: int | None = None) -> tuple[dict[str, RunResult], list[int]]:
    with Store.in_memory() as store:
        run_study(study(), store=store, workers=workers, fleet_size=fleet_size)
        return store.results(), [run["fleet_size"] for run in store.provenance().values()]


def test_rows_do_not_depend_on_the_number_of_workers() -> None:
    expected, sizes = rows(workers=1)
    assert len(expected) >= 8
    assert min(sizes) > 1
    for workers, fleet_size in ((1, 2), (2, None), (2, 2)):
        found, _ = rows(workers=workers, fleet_size=fleet_size)
        assert found == expected, (workers, fleet_size)


def test_the_fleet_of_every_run_is_on_record() -> None:
    found, sizes = rows(workers=1, fleet_size=1)
    assert sizes == [1] * len(found)
