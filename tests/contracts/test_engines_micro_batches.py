"""The contract of micro-batches: an update in parts is the update of the whole batch, up to the order of its sums."""

from __future__ import annotations

import dataclasses
import functools
import logging
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cases
import cases_paper
from helpers_engines import assert_same, by_fleet, by_reference
from isotherm.core.optimizers import SGD, AdamW, Muon, Optimizer
from isotherm.core.records import Outcome, RunResult, RunSpec
from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.fleet import run_fleet
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.micro_batches import MicroBatches
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.reference import run_reference
from isotherm.tasks.task import Task


class ChannelDrop(nn.Module):
    """Ghost batch norm on crops, dropout of whole channels, and dropout where examples are not the first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.linear = cases_paper.SmallGhostNet(), nn.Linear(3, 3)
        self.channels = nn.Dropout2d(0.2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(self.channels(x))
        return self.linear(nn.functional.dropout(hidden.t(), 0.2, self.training).t())


def text_task() -> Task:
    """One layer, and few tokens: quick."""
    model = functools.partial(cases_paper.build_language_model, num_layers=1, drop_probability=0.3)
    return cases_paper.language_task(model=model, unroll=3, train=cases_paper.sequence(100, seed=0))


# A task, its batch size, the sizes of micro-batches, and how many updates.
TASKS: dict[str, tuple[Any, int, tuple[int, ...], int]] = {
    "mlp": (cases.blobs_task, 12, (6, 1), 200),
    "dropout": (cases.dropout_task, 12, (4,), 200),
    "conv": (cases.conv_task, 12, (6,), 200),
    "ghost norm": (lambda: cases_paper.image_task(ChannelDrop), 32, (8,), 100),
    "skip init": (cases_paper.skip_init_task, 4, (2,), 8),
    "lstm": (text_task, 6, (2,), 200),
    "autoencoder": (cases_paper.autoencoder_task, 12, (4,), 200),
    "from disk": (cases_paper.lazy_task, 16, (8,), 20),
}
CASES = [(name, size) for name, (_, _, sizes, _) in TASKS.items() for size in sizes]
RATE = 0.02  # at which 200 updates stay calm enough to compare


@functools.cache
def placed_of(name: str) -> PlacedTask:
    return place_task(TASKS[name][0](), precision="float64")


def specs_of(name: str, **changes: Any) -> list[RunSpec]:
    """Return a run with momentum and with clipping that bites, and one of another seed with neither."""
    task, batch_size, _, num_steps = TASKS[name]
    members = [(0, RATE, 0.9, 0.05), (1, RATE / 2, 0.0, 1e6)]
    fields = {"batch_size": batch_size, "num_steps": num_steps, "num_evaluations": 2, **changes}
    return [
        cases_paper.spec_of(
            task(), seed=seed, effective_learning_rate=eps, momentum=momentum, clip_norm=clip, l2=1e-3, **fields
        )
        for seed, eps, momentum, clip in members
    ]


@functools.cache
def whole(name: str) -> list[Any]:
    return by_fleet(placed_of(name), specs_of(name))


@pytest.mark.parametrize(("name", "size"), CASES)
def test_a_fleet_in_micro_batches_trains_what_it_trains_whole(
    name: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        parts = by_fleet(placed_of(name), specs_of(name), micro_batch_size=size)
    assert caplog.text == ""  # a fleet indeed
    assert_same(parts, whole(name))
    assert {result.outcome for result, _ in parts} == {Outcome.FINISHED}
    assert whole(name)[0][0].clipped_fraction > 0.5


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), Muon(), SGD(momentum=0.9, nesterov=True)])
def test_so_it_does_with_every_optimizer(optimizer: Optimizer) -> None:
    placed = placed_of("mlp")
    momentum = getattr(optimizer, "momentum", 0.0) if isinstance(optimizer, SGD) else 0.0
    changes = {"optimizer": optimizer, "momentum": momentum, "l2": 0.0}
    specs = [dataclasses.replace(spec, **changes) for spec in specs_of("mlp")]
    assert_same(by_fleet(placed, specs, micro_batch_size=4), by_fleet(placed, specs))
    expected = by_reference(placed, dataclasses.replace(specs[0], num_steps=20))
    assert_same(by_fleet(placed, [dataclasses.replace(specs[0], num_steps=20)], micro_batch_size=4), [expected])


@pytest.mark.parametrize(("name", "size"), [("dropout", 4), ("ghost norm", 8), ("lstm", 2)])
def test_so_does_the_plain_loop(name: str, size: int) -> None:
    placed, spec = placed_of(name), specs_of(name, num_steps=10)[0]
    cut = FleetChecks().micro_batches(placed, spec.batch_size, size=size)
    expected = by_reference(placed, spec)
    assert_same([by_reference(placed, spec, micro_batches=cut)], [expected])
    assert_same(by_fleet(placed, [spec], micro_batch_size=size), [expected])


def test_in_one_part_not_a_bit_is_different() -> None:
    spec = dataclasses.replace(specs_of("dropout", num_steps=20)[0], precision="float32")
    placed = place_task(cases.dropout_task(), precision="float32")
    assert run_fleet(placed, [spec], micro_batch_size=spec.batch_size) == run_fleet(placed, [spec])
    one = MicroBatches.whole(spec.batch_size)
    assert run_reference(placed, spec, micro_batches=one) == run_reference(placed, spec)


def test_in_single_precision_it_is_the_same_up_to_rounding() -> None:
    spec = dataclasses.replace(specs_of("mlp", num_steps=20)[0], precision="float32")
    placed = place_task(cases.blobs_task(), precision="float32")
    (ours,), (theirs,) = run_fleet(placed, [spec], micro_batch_size=3), run_fleet(placed, [spec])
    assert ours != theirs
    assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-5)


def test_runs_that_diverge_do_so_at_the_same_update_and_leave() -> None:
    rates = (0.1, 1e3, 1e20, 0.05)
    task = cases.regression_task()
    specs = [cases.spec(task, seed=s, effective_learning_rate=r, batch_size=12) for s, r in enumerate(rates)]
    placed = place_task(task, precision="float64")
    parts, expected = by_fleet(placed, specs, micro_batch_size=4), by_fleet(placed, specs)
    assert [result.outcome is Outcome.DIVERGED for result, _ in parts] == [False, True, True, False]
    assert_same(parts, expected)


class Stop(BaseException):
    """As a kill would, it passes through everything."""


@pytest.mark.parametrize("name", ["dropout", "lstm"])
def test_a_checkpoint_is_the_same_whatever_the_size(name: str, tmp_path: Path) -> None:
    """Saved in the middle of a run in micro-batches, and continued in one part or in others."""
    _, _, sizes, _ = TASKS[name]
    specs, placed = specs_of(name, num_steps=22), placed_of(name)
    expected = run_fleet(placed, specs)

    def checkpoint() -> Checkpoint:
        return Checkpoint(tmp_path / "fleet", seconds=0.0, identity="fleet")

    def stop_at_12(num: int, done: list[int] = []) -> None:  # noqa: B006 (counts over one call of run_fleet)
        done.append(num)
        if sum(done) >= 12 * len(specs):
            done.clear()
            raise Stop

    for size in (None, sizes[-1]):
        with pytest.raises(Stop):
            run_fleet(
                placed,
                specs,
                checkpoint=checkpoint(),
                updates_per_window=4,
                micro_batch_size=sizes[0],
                on_steps=stop_at_12,
            )
        steps: list[int] = []
        resumed = run_fleet(
            placed,
            specs,
            checkpoint=checkpoint(),
            updates_per_window=4,
            micro_batch_size=size,
            on_steps=steps.append,
        )
        assert sum(steps) == 11 * len(specs)  # the others were saved
        assert_results(resumed, expected)
        (tmp_path / "fleet").unlink()


def assert_results(ours: list[RunResult], expected: list[RunResult]) -> None:
    assert_same([(result, {}) for result in ours], [(result, {}) for result in expected])


def test_a_model_that_no_fleet_can_train_is_trained_in_micro_batches_too(caplog: pytest.LogCaptureFixture) -> None:
    class Unvectorisable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * float(self.layer.weight.detach().sum() > -1e9)

    task = cases.classification("unvectorisable", Unvectorisable)
    specs = [cases.spec(task, batch_size=12, num_steps=20, seed=seed) for seed in range(2)]
    placed = place_task(task, precision="float64")
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = by_fleet(placed, specs, micro_batch_size=4)
    assert "one run at a time" in caplog.text
    assert_same(ours, by_fleet(placed, specs))


# -- memory -----------------------------------------------------------------------------------------------------------

SCRIPT = """
    import pathlib, torch
    from torch import nn
    import isotherm as it
    from isotherm.core.records import RunSpec
    from isotherm.engine.fleet import run_fleet
    from isotherm.engine.placed_task import place_task

    def peak():  # not `resource.getrusage`, which a process inherits from the one that started it
        [line] = [l for l in pathlib.Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM:")]
        return int(line.split()[1]) / 2**10  # MiB

    def build():
        hidden = [part for _ in range(4) for part in (nn.Linear(256, 256), nn.Tanh())]
        return nn.Sequential(nn.Linear(8, 256), *hidden, nn.Linear(256, 3))

    torch.set_num_threads(1)
    x, y = torch.randn(4096, 8), torch.arange(4096) % 3
    task = it.Task(name="wide", model=build, train=(x, y), test=(x[:10], y[:10]))
    placed = place_task(task, precision="float32")
    fields = dict(
        task="wide", data_id="", model_id="", effective_learning_rate=0.1, momentum=0.9, gamma=1.0, l2=0.0,
        l2_scope="weights", precision="float32", num_evaluations=0, seed=0, num_steps=1
    )
    run_fleet(placed, [RunSpec(batch_size=512, **fields)])
    before = peak()
    run_fleet(placed, [RunSpec(batch_size=4096, **fields)], micro_batch_size=512)
    in_parts = peak()
    run_fleet(placed, [RunSpec(batch_size=4096, **fields)])
    print(in_parts - before, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_falls() -> None:
    """A batch of 4,096 in eight parts needs hardly more than a batch of 512."""
    script = textwrap.dedent(SCRIPT)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    in_parts, whole_batch = map(float, done.stdout.split())
    assert whole_batch > 40
    assert in_parts < 0.4 * whole_batch


def test_the_state_of_a_text_is_that_of_its_streams() -> None:
    """After an update in micro-batches, every stream has the state that it has after one of the whole batch."""
    placed, spec = placed_of("lstm"), specs_of("lstm", num_steps=3)[0]
    cut = FleetChecks().micro_batches(placed, spec.batch_size, size=2)
    states: list[Tensor] = []
    for micro_batches in (cut, MicroBatches.whole(spec.batch_size)):
        run_reference(
            placed, spec, micro_batches=micro_batches, on_trained=lambda model: states.append(model.state.clone())
        )
    torch.testing.assert_close(*states, rtol=1e-9, atol=1e-12)
    assert states[0].shape[1] == spec.batch_size
