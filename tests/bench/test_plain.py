"""The plain loop is SGD, with nothing added and nothing left out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from helpers_bench import MLP, FakeClock, fake_turn, hand_written_updates
from isotherm.bench.library import why_no_library_layers, with_library_layers
from isotherm.bench.plain import PlainLoop, plain_loop
from isotherm.bench.workloads import MOMENTUM
from isotherm.data.augment import Scaled
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.builtin import made_task
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

NUM_UPDATES = 5


def batches_of(task: Task, *, batch_size: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = task.train
    assert isinstance(x, torch.Tensor)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [(x[i], y[i]) for i in order.split(batch_size)[:NUM_UPDATES]]


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_its_weights_are_those_of_sgd_written_out(l2: float) -> None:
    task, workload = made_task("mlp_mnist1d"), dataclasses.replace(MLP, l2=l2)
    loop = PlainLoop(task, workload, seed=3)
    model = initial_model(task.model, seed=3)
    hand_written_updates(
        model,
        batches_of(task, batch_size=8, seed=3),
        task=task,
        rate=MLP.rate * (1 - MOMENTUM),
        momentum=MOMENTUM,
        l2=l2,
    )
    for _ in range(NUM_UPDATES):
        loop.step()
    for ours, plain in zip(model.parameters(), loop.model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain)


def test_an_epoch_is_a_fresh_permutation_of_whole_batches() -> None:
    x = torch.arange(10.0)[:, None]
    task = Task(name="tiny", model=lambda: nn.Linear(1, 1), train=(x, x), test=(x, x), loss="mean_squared_error")
    loop = PlainLoop(task, dataclasses.replace(MLP, batch_size=4, rate=1e-3))
    epochs = [[batch for batch, _ in loop._batches()] for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [2, 2]
    first, second = (torch.cat(epoch).flatten() for epoch in epochs)
    assert len(set(first.tolist())) == 8
    assert not torch.equal(first, second)


def test_transform_and_clipping() -> None:
    x = torch.randint(0, 256, (16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    task = Task(
        name="bytes",
        model=lambda: nn.Linear(3, 3),
        train=(x, x),
        test=(x, x),
        loss="half_squared_error",
        transform=Scaled(),
        clip_norm=1e-3,
    )
    loop = PlainLoop(task, dataclasses.replace(MLP, batch_size=16, rate=1.0))
    before = [p.detach().clone() for p in loop.model.parameters()]
    loop.step()
    moved = torch.cat([(a - b.detach()).flatten() for a, b in zip(before, loop.model.parameters(), strict=True)])
    assert float(moved.norm()) == pytest.approx((1 - MOMENTUM) * 1e-3, rel=1e-2)


def text_task() -> Task:
    tokens = torch.randint(0, 20, (2 * 11 + 1,), generator=torch.Generator().manual_seed(0))

    def model() -> LSTMLanguageModel:
        return LSTMLanguageModel(vocabulary=20, width=8, num_layers=2, drop_probability=0.0)

    split = (tokens[:-1], tokens[1:])
    return Task(name="text", model=model, train=split, test=split, metric="perplexity", unroll=5, clip_norm=5.0)


def test_a_text_is_read_in_streams_with_the_state_carried() -> None:
    task = text_task()
    loop = PlainLoop(task, dataclasses.replace(MLP, batch_size=2, rate=0.1))
    (first_x, first_y), (second_x, _) = list(loop._stream_windows(5))
    tokens = task.train[0]
    assert isinstance(tokens, torch.Tensor)
    assert torch.equal(first_x, torch.stack((tokens[0:5], tokens[11:16])))
    assert torch.equal(second_x[0], tokens[5:10])
    assert torch.equal(first_y[0], task.train[1][0:5])
    states = []
    for _ in range(3):
        loop.step()
        assert loop.state is not None
        states.append(loop.state.clone())
    assert not torch.equal(states[0], states[1])


def test_speed_by_a_fake_clock() -> None:
    clock = FakeClock()
    loop = PlainLoop(made_task("mlp_mnist1d"), MLP)
    update = loop._update
    loop._update = lambda x, y: (clock.moves(0.125), update(x, y))[1]  # type: ignore[method-assign]
    assert loop.speed(1.0, clock=clock) == 8.0


def test_windows_are_handed_over_one_by_one() -> None:
    found: list[float] = []
    plain_loop(MLP, fake_turn(2, 0.01, found))
    assert len(found) == 2
    assert min(found) > 0


class TestLibraryLayers:
    def test_the_lstm_gives_the_same(self) -> None:
        ours = text_task().model()
        theirs = with_library_layers(ours, batch_size=2)
        tokens = torch.arange(6).view(2, 3)
        state = torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(1))
        for a, b in zip(ours(tokens, state), theirs(tokens, state), strict=True):
            torch.testing.assert_close(a, b)
        loop = PlainLoop(text_task(), dataclasses.replace(MLP, batch_size=2), module=theirs)
        loop.step()

    def test_one_ghost_is_batch_norm(self) -> None:
        ours = initial_model(lambda: wide_resnet(depth=10, width=1), seed=0).train()
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        expected = ours(x)
        theirs = with_library_layers(initial_model(lambda: wide_resnet(depth=10, width=1), seed=0), batch_size=4)
        assert any(isinstance(part, nn.BatchNorm2d) for part in theirs.modules())
        torch.testing.assert_close(theirs.train()(x), expected, rtol=1e-4, atol=1e-5)

    def test_what_cannot_be_replaced(self) -> None:
        assert "already" in str(why_no_library_layers(nn.Linear(2, 2), batch_size=8))
        reason = why_no_library_layers(wide_resnet(depth=10, width=1), batch_size=1024)
        assert reason == "PyTorch has no layer for ghost batches of 64 in a batch of 1024"
