"""Programs and windows of updates, by themselves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import cases
from cases_paper import autoencoder_task, language_task, lazy_task, spec_of
from isotherm.engine.micro_batch_check import micro_batches_of
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import updates as updates_module
from isotherm.engine.stack.feed import Feed
from isotherm.engine.stack.parts import StackParts
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.updates import Updates
from isotherm.tasks.task import Task


def parts_of(num_runs: int = 3, *, size: int = 4, num_steps: int = 10) -> StackParts:
    task = cases.dropout_task()
    specs = [cases.spec(task, seed=seed, num_steps=num_steps) for seed in range(num_runs)]
    plan = StackPlan.of(place_task(task, precision="float64"), specs, convolves=False, updates_per_window=size)
    return StackParts.of(plan)


def test_a_window_gives_the_losses_of_its_updates_and_changes_the_state() -> None:
    parts, whole = parts_of(size=4), parts_of(size=10)
    found = []
    for first in (0, 4, 8):
        parts.updates.start(first)
        found.append(parts.updates.finish().clone())
    whole.updates.start(0)
    losses_KM = whole.updates.finish()
    assert losses_KM.dtype == torch.float64
    assert torch.equal(torch.cat(found), losses_KM)
    for ours, theirs in zip(parts.state.updated, whole.state.updated, strict=True):
        assert torch.equal(ours, theirs)


def test_gradients_change_nothing() -> None:
    parts = parts_of()
    before = [tensor.clone() for tensor in parts.state.updated]
    losses, gradients, _ = parts.updates.gradients(*parts.feed.batch_of(0), step=0)
    assert all(torch.equal(old, new) for old, new in zip(before, parts.state.updated, strict=True))
    assert any(gradient.any() for gradient in gradients)
    parts.updates.start(0)
    assert torch.equal(parts.updates.finish()[0], losses.double())


def test_a_program_is_made_once_for_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = updates_module.trace

    def watch(function, *arguments, **options):  # type: ignore[no-untyped-def]
        sizes.append(len(arguments[0]))
        return plain(function, *arguments, **options)

    monkeypatch.setattr(updates_module, "trace", watch)
    parts = parts_of()
    assert not parts.updates.is_prepared
    for first in (0, 4):
        parts.updates.start(first)
    assert parts.updates.is_prepared
    assert sizes == [3]
    parts.select([0, 2])
    assert not parts.updates.is_prepared
    parts.updates.start(8)
    assert sizes == [3, 2]
    assert parts.updates.finish().shape == (2, 2)


def test_what_is_left_trains_on_as_it_would_have() -> None:
    parts, whole = parts_of(), parts_of()
    for each in (parts, whole):
        each.updates.start(0)
    parts.select([0, 2])
    for each in (parts, whole):
        each.updates.start(4)
    torch.testing.assert_close(parts.updates.finish(), whole.updates.finish()[:, [0, 2]], rtol=1e-12, atol=0.0)


def test_on_a_cpu_updates_are_made_when_start_returns() -> None:
    parts = parts_of()
    assert not parts.updates.is_asynchronous
    assert not parts.updates.bfloat16_copies


# -- as on a GPU ------------------------------------------------------------------------------------------------------


class FakeStream:
    """Stands in for a stream; everything is done when it is asked for."""

    def wait_stream(self, _other: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


class FakeRecording:
    """Replays a function by calling it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def play(self, times: int = 1) -> None:
        for _ in range(times):
            self._function()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let updates be recorded and replayed without a GPU; return whether each recording was made of several too."""
    made: list[bool] = []

    def capture(
        function: Callable[[], None], *, keep: Sequence[Tensor], stream: object, also_several: bool
    ) -> FakeRecording:
        before = [tensor.clone() for tensor in keep]
        for _ in range(2):
            function()
        for tensor, value in zip(keep, before, strict=True):
            tensor.copy_(value)
        made.append(also_several)
        return FakeRecording(function)

    monkeypatch.setattr(updates_module, "capture", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "default_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
    monkeypatch.setattr(Tensor, "record_stream", lambda _tensor, _stream: None)
    return made


GPU = {"reads_bfloat16": True, "binds_batch": False, "returns_factors": True}


def parts_on_stream(
    task: Task,
    num_runs: int,
    stream: FakeStream | None,
    *,
    batch_size: int = 8,
    micro_batch_size: int = 8,
    **changes: bool,
) -> StackParts:
    """Return parts of a stack by the program of a GPU, with updates made one by one or, on a stream, replayed."""
    placed = place_task(task, precision="mixed" if changes.get("reads_bfloat16") else "float64")
    specs = [spec_of(task, batch_size=batch_size, seed=seed, num_steps=10) for seed in range(num_runs)]
    cut = micro_batches_of(placed, batch_size=batch_size, size=micro_batch_size)
    plan = StackPlan.of(placed, specs, convolves=False, updates_per_window=4, micro_batches=cut)
    parts = StackParts.of(dataclasses.replace(plan, **changes))
    if stream is not None:
        feed = Feed(parts.plan, stream=stream)  # type: ignore[arg-type]
        updates = Updates(parts.plan, parts.model, parts.state, feed, stream=stream)  # type: ignore[arg-type]
        parts = dataclasses.replace(parts, feed=feed, updates=updates)
    return parts


@pytest.mark.parametrize(
    ("make", "changes"),
    [(autoencoder_task, GPU), (cases.batch_norm_task, {"binds_batch": False}), (lazy_task, {"binds_batch": False})],
    ids=["bfloat16 and factors", "buffers", "from disk"],
)
def test_replayed_updates_are_those_that_are_made_one_by_one(
    make: Callable[[], Task], changes: dict[str, bool], recorded: list[bool]
) -> None:
    task = make()
    ours, plain = (parts_on_stream(task, 3, stream, **changes) for stream in (FakeStream(), None))
    assert ours.updates.is_asynchronous
    for first in (0, 4):
        for parts in (ours, plain):
            parts.updates.start(first)
        assert torch.equal(ours.updates.finish(), plain.updates.finish())
    for mine, theirs in zip(ours.state.updated, plain.state.updated, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(ours.updates.bfloat16_copies, plain.updates.bfloat16_copies, strict=True):
        assert torch.equal(mine, theirs)
    assert recorded == [task.name != "images"]  # once; batches from disk come one by one


@pytest.mark.parametrize(("make", "batch_size"), [(autoencoder_task, 8), (lazy_task, 16), (language_task, 8)])
def test_micro_batches_are_replayed_as_one_update(
    make: Callable[[], Task], batch_size: int, recorded: list[bool]
) -> None:
    """The programs of a GPU, computed on the CPU; a recording holds all micro-batches of one update."""
    task = make()
    whole, parts = (
        parts_on_stream(task, 3, FakeStream(), batch_size=batch_size, micro_batch_size=size, binds_batch=False)
        for size in (batch_size, batch_size // 2)
    )
    for first in (0, 4):
        for each in (whole, parts):
            each.updates.start(first)
        torch.testing.assert_close(parts.updates.finish(), whole.updates.finish(), rtol=1e-9, atol=0.0)
    for mine, theirs in zip(parts.state.updated, whole.state.updated, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    assert recorded == [task.name != "images", False]


def test_micro_batches_read_bfloat16_copies_that_an_update_renews(recorded: list[bool]) -> None:
    own = {"reads_bfloat16": True, "binds_batch": False}
    parts = parts_on_stream(autoencoder_task(), 3, FakeStream(), micro_batch_size=4, **own)
    parts.updates.start(0)
    assert parts.updates.finish().isfinite().all()
    assert parts.updates.bfloat16_copies
    halves = {copy.shape: copy for copy in parts.updates.bfloat16_copies}
    for value in parts.state.weights.values:
        if value.shape in halves:
            assert any(torch.equal(value.to(torch.bfloat16), copy) for copy in parts.updates.bfloat16_copies)


def test_after_some_runs_left_updates_are_recorded_again(recorded: list[bool]) -> None:
    task = autoencoder_task()
    ours, plain = (parts_on_stream(task, 3, stream, **GPU) for stream in (FakeStream(), None))
    for parts in (ours, plain):
        parts.updates.start(0)
        parts.select([0, 2])
        parts.updates.start(4)
    assert torch.equal(ours.updates.finish(), plain.updates.finish())
    assert len(recorded) == 2
