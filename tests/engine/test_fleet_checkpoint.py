"""A fleet that is stopped and goes on from its checkpoint gives the very bits of one that was not."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cases
import cases_paper
from isotherm.core.records import CurvePoint, Outcome, Precision, RunResult, RunSpec
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.task import Task

WINDOW = 4
NUM_STEPS = 22  # not a multiple of a window; an evaluation falls between


class Stop(BaseException):
    """As a kill would, it passes through everything."""


class OneGhost(nn.Module):
    """A convolution with ghost batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 4, 3), GhostBatchNorm2d(4, ghost_size=4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))


def text_task() -> Task:
    """The state of a language model is carried from one update to the next."""
    model = functools.partial(cases_paper.build_language_model, num_layers=1, drop_probability=0.3)
    return cases_paper.language_task(model=model, unroll=2, train=cases_paper.sequence(60, seed=0))


TASKS: dict[str, tuple[Callable[[], Task], Precision]] = {
    "dropout": (cases.dropout_task, "float32"),
    "batch norm": (cases.batch_norm_task, "float64"),
    "frozen": (cases.frozen_task, "float32"),
    "ghosts and crops": (lambda: cases_paper.image_task(OneGhost), "float32"),
    "from disk": (lambda: dataclasses.replace(cases_paper.lazy_task(), model=OneGhost), "float64"),
    "text": (text_task, "float32"),
}


def members(task: Task, *, precision: Precision = "float64", diverges: bool = True) -> list[RunSpec]:
    """Return two seeds at two learning rates, with clipping and other momenta, and at one that diverges."""
    settings = [(0.1, 0.9, 5.0), (0.05, 0.0, 0.2)] + diverges * [(1e300, 0.5, 1e300)]
    return [
        cases_paper.spec_of(
            task,
            batch_size=4 if task.unroll else 8,
            num_steps=NUM_STEPS,
            num_evaluations=2,
            seed=seed,
            effective_learning_rate=rate,
            momentum=momentum,
            clip_norm=clip,
            precision=precision,
        )
        for seed in range(2)
        for rate, momentum, clip in settings
    ]


def checkpoint_at(path: Path, *, identity: str = "fleet") -> Checkpoint:
    return Checkpoint(path, seconds=0.0, identity=identity)  # due after every window


class Counter:
    """Counts updates and can stop at the n-th window."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.steps: list[int] = []
        self.looks: list[tuple[int, CurvePoint]] = []
        self._stop_after = stop_after

    def on_steps(self, num: int) -> None:
        self.steps.append(num)
        if len(self.steps) == self._stop_after:
            raise Stop

    def on_evaluation(self, index: int, point: CurvePoint) -> None:
        self.looks.append((index, point))

    def listeners(self) -> dict[str, Any]:
        return {"on_steps": self.on_steps, "on_evaluation": self.on_evaluation, "updates_per_window": WINDOW}


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_fleet_goes_on_with_the_same_bits(tmp_path: Path, name: str) -> None:
    build, precision = TASKS[name]
    task = build()
    diverges = name in ("dropout", "batch norm")  # fleets that shrink are traced again
    placed, specs = place_task(task, precision=precision), members(task, precision=precision, diverges=diverges)
    whole = Counter()
    expected = run_fleet(placed, specs, **whole.listeners())
    assert {Outcome.DIVERGED} & {result.outcome for result in expected} == ({Outcome.DIVERGED} if diverges else set())
    path = tmp_path / "folder" / "fleet.checkpoint"
    stops = [Counter(stop_after=n) for n in ((2, 3) if name == "dropout" else (4,))]
    for counter in stops:  # the last window of each is lost
        with pytest.raises(Stop):
            run_fleet(
                place_task(task, precision=precision), specs, checkpoint=checkpoint_at(path), **counter.listeners()
            )
    last = Counter()
    fresh = place_task(task, precision=precision)
    assert run_fleet(fresh, specs, checkpoint=checkpoint_at(path), **last.listeners()) == expected
    assert len(last.steps) < len(whole.steps)
    assert whole.steps[-len(last.steps) :] == last.steps
    looks = [look for counter in (*stops, last) for look in counter.looks]
    assert looks == whole.looks  # none is told twice


@dataclasses.dataclass(frozen=True)
class Plain:
    """A fleet that was never stopped."""

    placed: PlacedTask
    specs: list[RunSpec]
    results: list[RunResult]
    counter: Counter


@pytest.fixture(scope="module")
def plain() -> Plain:
    task, counter = cases.dropout_task(), Counter()
    placed, specs = place_task(task, precision="float64"), members(task, diverges=False)
    return Plain(placed, specs, run_fleet(placed, specs, **counter.listeners()), counter)


def test_saving_changes_no_bit_and_removing_is_left_to_whoever_stores_the_results(tmp_path: Path, plain: Plain) -> None:
    path = tmp_path / "fleet.checkpoint"
    first, again = Counter(), Counter()
    for counter in (first, again):
        found = run_fleet(plain.placed, plain.specs, checkpoint=checkpoint_at(path), **counter.listeners())
        assert found == plain.results
        assert path.exists()
    assert first.steps == plain.counter.steps
    assert again.steps == []  # all updates had been made


def test_a_fleet_that_is_quick_writes_nothing(tmp_path: Path) -> None:
    task, path = cases.blobs_task(), tmp_path / "folder" / "fleet.checkpoint"
    specs = members(task)[:2]
    run_fleet(place_task(task, precision="float64"), specs, checkpoint=Checkpoint(path, identity="fleet"))
    assert not path.parent.exists()


def test_a_damaged_checkpoint_starts_the_fleet_over(
    tmp_path: Path, plain: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fleet.checkpoint"
    checkpoint_at(path).save({"stacks": []})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    counter = Counter()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        found = run_fleet(plain.placed, plain.specs, checkpoint=checkpoint_at(path), **counter.listeners())
    assert found == plain.results
    assert counter.steps == plain.counter.steps
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("num_stacks", [0, 2])
def test_a_checkpoint_of_other_programs_starts_the_fleet_over(
    tmp_path: Path, plain: Plain, caplog: pytest.LogCaptureFixture, num_stacks: int
) -> None:
    """As when kernels for many runs at once were turned on or off in between."""
    path = tmp_path / "fleet.checkpoint"
    run_fleet(plain.placed, plain.specs, checkpoint=checkpoint_at(path), updates_per_window=WINDOW)
    saved = checkpoint_at(path).load("cpu")
    assert saved is not None
    checkpoint_at(path).save({"stacks": saved["stacks"] * num_stacks})
    counter = Counter()
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        found = run_fleet(plain.placed, plain.specs, checkpoint=checkpoint_at(path), **counter.listeners())
    assert found == plain.results
    assert counter.steps == plain.counter.steps
    assert "not trained as they would be now" in caplog.text


def test_a_checkpoint_of_other_shapes_starts_the_fleet_over(
    tmp_path: Path, plain: Plain, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fleet.checkpoint"
    run_fleet(plain.placed, plain.specs, checkpoint=checkpoint_at(path), updates_per_window=WINDOW)
    saved = checkpoint_at(path).load("cpu")
    assert saved is not None
    (state,) = saved["stacks"]
    wider = [torch.cat([value, value], dim=1) for value in state["values"]]
    checkpoint_at(path).save({"stacks": [{**state, "values": wider}]})
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert (
            run_fleet(plain.placed, plain.specs, checkpoint=checkpoint_at(path), updates_per_window=WINDOW)
            == plain.results
        )
    assert "not trained as they would be now" in caplog.text


def test_a_module_that_is_trained_one_run_at_a_time_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task, path = cases.unvectorisable_task(), tmp_path / "folder" / "fleet.checkpoint"
    specs = members(task)[:2]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        results = run_fleet(place_task(task, precision="float64"), specs, checkpoint=checkpoint_at(path))
    assert len(results) == 2
    assert not path.parent.exists()
