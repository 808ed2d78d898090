"""On a GPU too a fleet equals the reference: every optimiser, PyTorch's own layers, schedules and micro-batches."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cases
import cases_paper
from cases_layers import NAMES, layer_task
from cases_optimizers import KINDS, compare_unused_bias, members
from helpers_engines import assert_same, by_fleet, by_reference
from isotherm.core.optimizers import AdamW, Muon
from isotherm.core.records import Outcome, RunSpec
from isotherm.core.schedule import Schedule
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.stack import plan
from isotherm.tasks.builtin import made_task
from isotherm.tasks.task import Task

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # by PyTorch's compiler itself
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # not used on purpose
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single:UserWarning"),  # in the plain loop
]
TASKS: dict[str, Callable[[], Task]] = {
    "mlp": cases.blobs_task,
    "conv": cases.conv_task,
    "batch_norm": cases.batch_norm_task,
}
SHAPES = [*(("mlp", kind) for kind in KINDS), ("conv", "adamw"), ("conv", "muon"), ("batch_norm", "adamw")]
COMPILED = [("mlp", "nesterov"), ("mlp", "adamw"), ("conv", "muon")]
COMPILED_LAYERS = ["encoder layer", "causal attention", "GRU, dropout", "weight norm"]


def compiles(monkeypatch: pytest.MonkeyPatch, *, always: bool) -> None:
    """Compile every program, or none."""
    monkeypatch.setattr(plan, "UPDATES_WORTH_COMPILING", 1 if always else 10**9)


@functools.cache
def placed(name: str) -> PlacedTask:
    return place_task(TASKS[name](), precision="float64", device=DEVICE)


def check_optimizer(name: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    specs = members(TASKS[name](), kind, num_steps=200, num_evaluations=2)
    expected = [by_reference(placed(name), spec) for spec in specs]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = by_fleet(placed(name), specs, updates_per_window=16)
    if name == "batch_norm":
        compare_unused_bias(ours, expected)
    assert_same(ours, expected)
    assert caplog.text == ""  # it was a fleet indeed
    assert {result.outcome for result, _ in expected} == {Outcome.FINISHED}


@pytest.mark.parametrize(("name", "kind"), SHAPES)
def test_recorded_updates_of_every_optimizer(name, kind, monkeypatch, caplog) -> None:
    compiles(monkeypatch, always=False)
    check_optimizer(name, kind, caplog)


@pytest.mark.parametrize(("name", "kind"), COMPILED)
def test_compiled_updates_of_every_optimizer(name, kind, monkeypatch, caplog) -> None:
    compiles(monkeypatch, always=True)
    check_optimizer(name, kind, caplog)


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_with_every_optimizer(kind, monkeypatch) -> None:
    compiles(monkeypatch, always=False)
    specs = members(TASKS["mlp"](), kind, num_steps=200, clip_norm=0.5)
    expected = [by_reference(placed("mlp"), spec) for spec in specs]
    assert_same(by_fleet(placed("mlp"), specs), expected)
    assert all(result.clipped_fraction > 0 for result, _ in expected)


@pytest.mark.parametrize("kind", KINDS)
def test_diverged_runs_leave_with_every_optimizer(kind, monkeypatch) -> None:
    compiles(monkeypatch, always=False)
    specs = members(TASKS["mlp"](), kind, num_steps=200)
    # So large that the next loss overflows, in whatever order Adam multiplies and divides.
    lost = dataclasses.replace(specs[0], effective_learning_rate=1e308, seed=5)
    ours = by_fleet(placed("mlp"), [lost, *specs], updates_per_window=16)
    assert_same(ours[1:], [by_reference(placed("mlp"), spec) for spec in specs])
    expected = by_reference(placed("mlp"), lost)[0]
    assert {ours[0][0].outcome, expected.outcome} == {Outcome.DIVERGED}
    if kind != "adam":  # which moves a weight by its whole rate where a gradient is zero but for rounding
        assert ours[0][0].divergence_step == expected.divergence_step


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_checkpoint_continues_with_the_moments_of_an_optimizer(kind: str, tmp_path: Path, monkeypatch) -> None:
    compiles(monkeypatch, always=False)
    specs = members(TASKS["mlp"](), kind, num_steps=200)

    class Stops(Exception):
        pass

    made: list[int] = []

    def stop(num: int) -> None:
        made.append(num)
        if sum(made) >= 64 * len(specs):
            raise Stops

    def checkpoint() -> Checkpoint:
        return Checkpoint(tmp_path / "fleet", seconds=0.0, identity="these")

    with pytest.raises(Stops):
        run_fleet(placed("mlp"), specs, on_steps=stop, checkpoint=checkpoint(), updates_per_window=32)
    continued: list[int] = []
    ours = by_fleet(placed("mlp"), specs, checkpoint=checkpoint(), updates_per_window=32, on_steps=continued.append)
    assert sum(continued) < 200 * len(specs)
    assert_same(ours, [by_reference(placed("mlp"), spec) for spec in specs])


def check_layer(name: str, caplog: pytest.LogCaptureFixture, *, num_steps: int) -> None:
    task = layer_task(name)
    here = place_task(task, precision="float64", device=DEVICE)
    changes = ({"seed": 0}, {"seed": 1, "effective_learning_rate": 0.3, "momentum": 0.5})
    specs = [cases.spec(task, num_steps=num_steps, num_evaluations=1, **change) for change in changes]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = by_fleet(here, specs, updates_per_window=5)
    assert_same(ours, [by_reference(here, spec) for spec in specs])
    assert caplog.text == ""


@pytest.mark.parametrize("name", NAMES)
def test_recorded_updates_of_pytorchs_layers(name, monkeypatch, caplog) -> None:
    compiles(monkeypatch, always=False)
    check_layer(name, caplog, num_steps=12)


@pytest.mark.parametrize("name", COMPILED_LAYERS)
def test_compiled_updates_of_pytorchs_layers(name, monkeypatch, caplog) -> None:
    compiles(monkeypatch, always=True)
    check_layer(name, caplog, num_steps=25)


@pytest.mark.parametrize("precision", ["mixed", "tf32"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["recorded", "compiled"])
def test_a_transformer_in_fewer_digits_agrees_as_far_as_they_reach(precision, is_compiled, monkeypatch, caplog) -> None:
    """Losses after 30 updates differ by less than a per cent; in float32 both would have the same digits."""
    compiles(monkeypatch, always=is_compiled)
    task = made_task("gpt_text").with_options(model={"context": 16, "width": 32, "num_layers": 2, "num_heads": 2})
    here = place_task(task, precision=precision, device=DEVICE)
    specs = [
        cases.spec(task, seed=seed, num_steps=30, batch_size=16, precision=precision, num_evaluations=1)
        for seed in (0, 1, 2)
    ]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = run_fleet(here, specs)
    assert "run by run" not in caplog.text
    assert "one run at a time" not in caplog.text
    for result, spec in zip(ours, specs, strict=True):
        expected, _ = by_reference(here, spec)
        assert result.train_loss == pytest.approx(expected.train_loss, rel=0.01)
        assert result.test_loss == pytest.approx(expected.test_loss, rel=0.01)
    assert len({result.test_loss for result in ours}) == len(specs)


SCHEDULES = {
    "cosine, warm-up": Schedule.cosine(warmup_fraction=0.25),
    "wsd": Schedule.wsd(warmup_steps=10, decay_fraction=0.3),
    "a function": Schedule.of(lambda done: 0.2**done, warmup_steps=5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name, monkeypatch) -> None:
    compiles(monkeypatch, always=False)
    gamma, rest = SCHEDULES[name].of_run(num_steps=60, initial=0.1)
    task = TASKS["mlp"]()
    fields = {"gamma": gamma, "schedule": rest, "effective_learning_rate": 0.1, "num_steps": 60}
    specs = [cases.spec(task, seed=seed, **fields) for seed in (0, 1)]
    assert_same(by_fleet(placed("mlp"), specs), [by_reference(placed("mlp"), spec) for spec in specs])


def in_parts(name: str) -> tuple[PlacedTask, list[RunSpec], int]:
    """Return a task, two runs of it and the size of micro-batches."""
    make, batch_size, size = {
        "mlp": (cases.blobs_task, 12, 4),
        "dropout": (cases.dropout_task, 12, 4),
        "ghost norm": (cases_paper.ghost_task, 32, 16),
        "from disk": (cases_paper.lazy_task, 16, 8),
    }[name]
    task = make()
    specs = [
        cases_paper.spec_of(task, seed=seed, batch_size=batch_size, num_steps=40, num_evaluations=2, clip_norm=clip)
        for seed, clip in ((0, 0.05), (1, 1e6))
    ]
    return place_task(task, precision="float64", device=DEVICE), specs, size


@pytest.mark.parametrize(
    ("name", "is_compiled"),
    [
        ("mlp", False),
        ("mlp", True),
        ("dropout", False),
        ("ghost norm", False),
        ("ghost norm", True),
        ("from disk", False),
    ],
)
def test_micro_batches_give_the_numbers_of_the_whole_batch(name, is_compiled, monkeypatch, caplog) -> None:
    compiles(monkeypatch, always=is_compiled)
    here, specs, size = in_parts(name)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        parts = by_fleet(here, specs, micro_batch_size=size)
        whole = by_fleet(here, specs)
    assert caplog.text == ""
    rounded = {"tolerance": 1e-7, "smallest": 1.0} if is_compiled and here.transform is not None else {}
    assert_same(parts, whole, **rounded)


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), Muon()], ids=["adamw", "muon"])
def test_micro_batches_with_an_optimizer(optimizer, monkeypatch) -> None:
    compiles(monkeypatch, always=False)
    here, specs, size = in_parts("mlp")
    specs = [dataclasses.replace(spec, optimizer=optimizer, momentum=0.0, l2=0.0) for spec in specs]
    parts = by_fleet(here, specs, micro_batch_size=size)
    assert_same(parts, [by_reference(here, spec) for spec in specs])
