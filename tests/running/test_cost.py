from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers_protocol import blobs, blobs_task, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.data.augment import CropAndFlip
from isotherm.engine.evaluation import reestimated
from isotherm.engine.memory import bytes_per_run
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.stack import scoring
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.running import timing
from isotherm.running.cost import Estimate, busy_words, estimate, plan
from isotherm.running.runner import run_study
from isotherm.running.timing import own_seconds, waited_seconds
from isotherm.sweep.study import Study
from isotherm.tasks.task import Task


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 7, bias=False), nn.ReLU(), nn.Linear(7, 2, bias=False))


def test_counts_are_exact() -> None:
    sweep = tiny_sweep(task=blobs_task(model=wide), batch_sizes=[4, 8])
    found = estimate(Study.of(sweep), {})
    assert found.num_runs == 2 * 3 * 2
    assert found.num_stored == 0
    assert found.num_examples == 3 * 2 * 10 * (4 + 8)
    # forward 2 FLOP per weight, backward as much for the weights and again for the hidden layer's inputs
    assert found.flop == found.num_examples * (2 * 2 * 14 + 3 * 2 * 14)
    assert {c.batch_size: c.num_runs for c in found.costs} == {4: 6, 8: 6}
    assert all(c.fleet_size == 6 for c in found.costs)
    placed = place_task(sweep.task, precision="float64")
    assert {c.batch_size: c.memory_bytes for c in found.costs} == {b: 6 * bytes_per_run(placed, b) for b in (4, 8)}
    assert found.memory_bytes == max(c.memory_bytes for c in found.costs)


def test_time_grows_with_the_budget_and_is_positive() -> None:
    short = estimate(Study.of(tiny_sweep()), {})
    assert short.seconds > 0
    long = estimate(Study.of(tiny_sweep(budget=Budget.steps(200_000))), {})
    assert long.seconds > 20 * short.seconds  # 20,000 times the updates, with a fixed cost on both sides


def test_what_is_stored_is_not_counted_again() -> None:
    sweep = tiny_sweep()
    known = run_study(Study.of(sweep)).by_key
    found = estimate(Study.of(sweep), known)
    assert (found.num_runs, found.num_stored, found.seconds) == (0, 6, 0)
    more = estimate(Study.of(tiny_sweep(num_seeds=3)), known)
    assert (more.num_runs, more.num_stored) == (3, 6)


def test_a_plan_is_the_estimate_of_what_a_store_lacks(tmp_path: Path) -> None:
    sweep, store = tiny_sweep(), tmp_path / "runs.sqlite"
    expected = estimate(Study.of(sweep), {})
    for given in (sweep, Study.of(sweep)):
        found = plan(given, store=store)
        assert (found.num_runs, found.num_stored) == (expected.num_runs, 0)
    assert not store.exists()
    assert f"{expected.num_runs} runs to do, 0 stored" in repr(found)
    run_study(Study.of(sweep), store=store)
    later = plan(sweep, store=store)
    assert later.num_runs == 0
    assert later.num_stored >= expected.num_runs


def test_the_estimate_disturbs_no_generator() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    estimate(Study.of(tiny_sweep()), {})
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("fleet_size", [1, 4])
def test_fleets_are_those_that_would_run(fleet_size: int) -> None:
    found = estimate(Study.of(tiny_sweep()), {}, fleet_size=fleet_size)
    assert [c.fleet_size for c in found.costs] == [fleet_size]


# -- what is not a tensor of examples --------------------------------------------------------------


def test_a_sequence_is_counted_in_tokens() -> None:
    tokens = torch.arange(61) % 5
    split = (tokens[:-1], tokens[1:])
    model = partial(LSTMLanguageModel, vocabulary=5, width=4, num_layers=1)
    task = blobs_task(model=model, train=split, test=split, unroll=3, metric="perplexity")
    found = estimate(Study.of(tiny_sweep(task=task, batch_sizes=[2], budget=Budget.epochs(2))), {})
    # 61 tokens in 2 streams of 30: 9 windows, twice, of 2 · 3 tokens; 3 learning rates and 2 seeds.
    assert found.num_examples == 6 * (2 * 9) * 2 * 3
    # Of a token: 16 gates by 4 inputs, 16 by 4 recurrent values, 5 words by 4 units; 2 FLOP forward, 4 backward.
    assert found.flop == found.num_examples * 6 * (16 * 4 + 16 * 4 + 5 * 4)
    assert found.seconds > 0


class OnDisk:
    """Images that are fetched."""

    shape, dtype = torch.Size((32, 1, 4, 4)), torch.uint8

    def __len__(self) -> int:
        return 32

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> torch.Tensor:
        return torch.full((len(indices), 1, 4, 4), 7, dtype=torch.uint8)

    def identity(self) -> str:
        return "sevens"


def test_images_are_counted_as_the_model_sees_them() -> None:
    labels = torch.arange(32) % 2
    task = blobs_task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2, bias=False)),
        train=(OnDisk(), labels),
        test=(OnDisk(), labels),
        transform=CropAndFlip(mean=(3.0,), std=(2.0,), pad=1),
    )
    found = estimate(Study.of(tiny_sweep(task=task)), {})
    assert found.flop == found.num_examples * 2 * 2 * 32  # no gradient of the inputs is needed


def test_dropout_disturbs_no_generator_either() -> None:
    task = blobs_task(model=lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2)))
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    estimate(Study.of(tiny_sweep(task=task)), {})
    assert torch.equal(torch.random.get_rng_state(), before)


# -- a short probe ---------------------------------------------------------------------------------


class Counted:
    """Points that are fetched: counts those read for evaluation, each of which takes a while."""

    def __init__(self, num: int, *, seconds: float = 0.0) -> None:
        self._x, self._seconds = blobs(num)[0].float(), seconds
        self.shape, self.dtype = self._x.shape, self._x.dtype
        self.num_evaluated = 0

    def __len__(self) -> int:
        return len(self._x)

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> torch.Tensor:
        if seed is None:
            self.num_evaluated += len(indices)
            time.sleep(self._seconds * len(indices))
        return self._x[torch.as_tensor(indices)]

    def identity(self) -> str:
        return f"{len(self)} counted"


def counted_task(num_train: int, num_test: int, *, seconds: float = 0.0, **changes: Any) -> tuple[Task, list[Counted]]:
    parts = [Counted(num, seconds=seconds) for num in (num_train, num_test, num_test)]
    train, test, validation = ((x, torch.arange(len(x)) % 2) for x in parts)
    return blobs_task(train=train, test=test, validation=validation, **changes), parts


def test_only_a_few_examples_are_evaluated_however_many_there_are() -> None:
    for num in (5_000, 50_000):
        task, parts = counted_task(num, num)
        assert estimate(Study.of(tiny_sweep(task=task)), {}).seconds > 0
        assert 0 < sum(part.num_evaluated for part in parts) < 4_900
        assert max(part.num_evaluated for part in (parts[0], parts[2])) < 100


def test_only_a_few_tokens_are_evaluated_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[int] = []
    scores = PlacedTask.stream_scores

    def counting(self: PlacedTask, call: Any, x: torch.Tensor, *rest: Any) -> Any:
        evaluated.append(x.shape[-1])
        return scores(self, call, x, *rest)

    monkeypatch.setattr(PlacedTask, "stream_scores", counting)
    tokens = torch.arange(20_001) % 5
    split = (tokens[:-1], tokens[1:])
    model = partial(LSTMLanguageModel, vocabulary=5, width=4, num_layers=1)
    task = blobs_task(model=model, train=split, test=split, unroll=3, metric="perplexity")
    assert estimate(Study.of(tiny_sweep(task=task, batch_sizes=[2])), {}).seconds > 0
    assert 0 < sum(evaluated) < 1_500


def test_every_look_and_every_split_is_in_the_estimate() -> None:
    def seconds(num_train: int, num_looks: int) -> float:
        task, _ = counted_task(num_train, 2_000, seconds=1e-4)
        return estimate(Study.of(tiny_sweep(task=task, num_evaluations=num_looks)), {}).seconds

    seconds(2_000, 0)  # the first call in a process takes longer
    none = seconds(2_000, 0)
    assert none > 0.4  # three splits of 2,000 at 0.1 ms: 0.6 s; sleeping takes longer than asked for, by turns
    assert seconds(2_000, 10) - none == pytest.approx(10 * 0.2, rel=0.5)
    assert seconds(50_000, 0) - none == pytest.approx(4.8, rel=0.5)


def test_the_estimate_is_close_to_the_time_it_takes() -> None:
    task, _ = counted_task(20_000, 5_000, seconds=2e-5)
    study = Study.of(tiny_sweep(task=task, budget=Budget.steps(400), num_evaluations=5))
    estimate(study, {})  # the first call in a process takes longer
    found = estimate(study, {}).seconds
    start = own_seconds()  # an estimate leaves out what other programs take, too
    run_study(study)
    assert found == pytest.approx(own_seconds() - start, rel=0.5)


_BESIDE_OTHERS = """
import json, os, subprocess, sys, torch
from helpers_protocol import blobs_task, tiny_sweep
from isotherm.core.budget import Budget
from isotherm.running.cost import busy_words, estimate
from isotherm.sweep.study import Study
from torch import nn

def wide():
    return nn.Sequential(nn.Linear(2, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 2))

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(1)
study = Study.of(tiny_sweep(task=blobs_task(model=wide), budget=Budget.steps(1_000)))
estimate(study, {})  # the first call in a process takes longer
alone = estimate(study, {})
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
try:
    beside = estimate(study, {})
finally:
    for other in others:
        other.kill()
        other.wait()
print(json.dumps([alone.seconds, beside.seconds, beside.busy, busy_words(beside), repr(beside)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(waited_seconds() is None, reason="needs Linux, which tells how long a thread waited")
def test_a_busy_machine_does_not_lengthen_the_estimate_and_is_told() -> None:
    """Three programs without end share the one core that is left to the process: four times the time, by the wall."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _BESIDE_OTHERS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alone, beside, busy, (words,), shown = json.loads(done.stdout)
    assert 0.5 < beside / alone < 2  # about four without what the thread waited
    assert busy > 0.5
    assert "This machine was busy: other programs had the processor for " in words
    assert words[:60] in shown


def test_what_the_system_does_not_tell_is_said() -> None:
    cost = Estimate(costs=(), num_stored=0, busy=None)
    assert busy_words(cost) == ["Whether other programs slowed the timing down is not known on this system."]
    assert busy_words(Estimate(costs=(), num_stored=0, busy=0.1)) == []


def test_waiting_is_told_apart_from_sleeping() -> None:
    before, start = own_seconds(), time.perf_counter()
    time.sleep(0.05)
    slept = own_seconds() - before
    assert 0.04 < slept <= time.perf_counter() - start + 1e-3


def test_losing_the_processor_between_two_readings_makes_no_time_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([1.0, 1.5, 1.5, 1.5])  # half a second is lost after the clock was read first
    times = iter([10.0, 10.6])
    monkeypatch.setattr(timing, "waited_seconds", lambda: next(waits))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(times))
    assert own_seconds() == pytest.approx(10.6 - 1.5)


class OneByOne(nn.Module):
    """Cannot be vectorised, and takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        output: torch.Tensor = self.layer(x)
        return output * (1.0 if float(output.detach().sum()) < math.inf else 2.0)


def test_runs_that_are_trained_one_by_one_are_all_counted() -> None:
    task = blobs_task(model=OneByOne)
    found = estimate(Study.of(tiny_sweep(task=task, budget=Budget.steps(100))), {})
    assert 1 < found.seconds / (6 * 100 * 0.005) < 4


def test_a_learning_rate_that_diverges_at_once_does_not_lengthen_the_probe() -> None:
    task, parts = counted_task(20_000, 5_000)
    sweep = tiny_sweep(task=task, effective_learning_rates=[1e-3, 1e30], budget=Budget.steps(100))
    assert estimate(Study.of(sweep), {}).seconds > 0
    assert parts[0].num_evaluated < 100


def ghosts() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), GhostBatchNorm2d(2, ghost_size=8), nn.Flatten(), nn.Linear(8, 2))


def test_with_ghosts_the_probe_reestimates_over_a_few_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(placed: PlacedTask, *rest: Any, num_examples: int, **options: Any) -> Any:
        seen.append(min(num_examples, placed.num_train))
        return reestimated(placed, *rest, num_examples=num_examples, **options)

    monkeypatch.setattr(scoring, "reestimated", counting)
    images = torch.randn(9_000, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9_000) % 2
    task = blobs_task(model=ghosts, train=images, test=images)
    assert estimate(Study.of(tiny_sweep(task=task)), {}).seconds > 0
    assert seen
    assert max(seen) == 512
