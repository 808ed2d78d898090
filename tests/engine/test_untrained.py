"""The scale against which a final loss is held."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import cases
from isotherm.engine import untrained
from isotherm.engine.dropout import run_keys
from isotherm.engine.micro_batches import MicroBatches
from isotherm.engine.placed_task import place_task
from isotherm.engine.untrained import beats_constant, loss_at_start
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.metrics import Metric
from isotherm.tasks.task import Task


def start_of(task: Task, *, seed: int = 0, batch_size: int = 8) -> float:
    return loss_at_start(
        place_task(task, precision="float64"), seed=seed, micro_batches=MicroBatches.whole(batch_size), num_steps=100
    )


@pytest.mark.parametrize("task", [cases.blobs_task(), cases.conv_task(), cases.batch_norm_task()], ids=lambda t: t.name)
@pytest.mark.parametrize("batch_size", [4, 64, 600])
def test_of_a_classifier_it_is_near_that_of_guessing(task: Task, batch_size: int) -> None:
    assert 0.8 < start_of(task, batch_size=batch_size) < 2.5


def test_it_is_the_loss_of_the_first_batches() -> None:
    task = cases.blobs_task()
    placed = place_task(task, precision="float64")
    order, model = placed.order(seed=3, batch_size=100), placed.model(seed=3, batch_size=100)
    losses = [
        placed.training_loss(model, *placed.batch(index, seed=3, step=0), run_keys(3), torch.tensor(0))
        for index in order.block(0, 5)
    ]
    plain = float(torch.stack(losses).mean().detach())
    assert plain <= start_of(task, seed=3, batch_size=100) < 1.5 * plain


def test_a_loss_near_zero_at_the_start_is_held_against_other_examples_targets() -> None:
    class Solved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 1)
            with torch.no_grad():
                self.line.weight.copy_(torch.tensor([cases.SLOPE]))
                self.line.bias.fill_(cases.INTERCEPT)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(x)

    task = dataclasses.replace(cases.regression_task(), model=Solved)
    variance = float(task.train[1].var())
    assert start_of(task) == pytest.approx(2 * variance, rel=0.3)  # its own loss is 0.01


def test_the_sign_of_the_loss_does_not_matter() -> None:
    plain = cases.blobs_task()
    cross_entropy = plain.loss_function
    task = dataclasses.replace(plain, loss=lambda o, t: cross_entropy(o, t) - 10.0, metric="accuracy")
    assert 7.0 < start_of(task) < 10.0


@pytest.mark.parametrize(
    ("batch_size", "num_steps", "num_calls"),
    [(1, 99, 16), (16, 99, 16), (64, 99, 8), (512, 99, 1), (1000, 9, 1), (4, 3, 3)],
)
def test_few_batches_are_enough(
    batch_size: int, num_steps: int, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = place_task(cases.blobs_task(), precision="float64")
    seen: list[int] = []
    plain = type(placed).training_output

    def watch(self, call, x, *rest, **options):
        seen.append(len(x))
        return plain(self, call, x, *rest, **options)

    monkeypatch.setattr(type(placed), "training_output", watch)
    loss_at_start(placed, seed=0, micro_batches=MicroBatches.whole(batch_size), num_steps=num_steps)
    assert seen == [batch_size] * num_calls
    assert untrained.MOST_BATCHES == 16


def test_it_is_the_same_every_time_and_leaves_the_generators_alone() -> None:
    task = cases.dropout_task()
    before = torch.get_rng_state()
    assert start_of(task) == start_of(task)
    assert start_of(task, seed=1) != start_of(task)
    assert torch.equal(before, torch.get_rng_state())


def beats(task: Task, metric: float) -> bool:
    return beats_constant(place_task(task, precision="float64"), metric)


def labels_task(*counts: int, **changes: object) -> Task:
    y = torch.cat([torch.full((num,), label) for label, num in enumerate(counts)])
    split = torch.zeros(len(y), 2, dtype=torch.float64), y
    return cases.classification("labels", cases.build_mlp, train=split, test=split, **changes)


def test_accuracy_beats_a_constant_beyond_the_most_frequent_label_and_chance() -> None:
    task = labels_task(600, 300, 100)
    limit = 0.6 + 3 * (0.6 * 0.4 / 1000) ** 0.5
    assert not any(beats(task, value) for value in (0.0, 0.1, 0.6, limit - 1e-6))
    assert beats(task, limit + 1e-6)
    assert beats(labels_task(6000, 3000, 1000), limit)  # more examples, less chance


def test_r2_beats_a_constant_above_zero() -> None:
    task = dataclasses.replace(cases.regression_task(), metric="r2")
    assert [beats(task, value) for value in (-3.0, 0.0, 0.01)] == [False, False, True]


@pytest.mark.parametrize("metric", ["perplexity", "cross_entropy"])
def test_a_metric_that_is_a_loss_says_no_more_than_the_loss(metric: str) -> None:
    assert not beats(labels_task(5, 5, metric=metric), 1e-9)
    assert not beats(cases.regression_task(), 1e-9)


def test_where_nothing_is_known_a_run_has_the_benefit_of_the_doubt() -> None:
    own = Metric(name="own", function=lambda output, target: output.mean(), direction="maximise")
    assert beats(labels_task(5, 5, metric="f1"), 0.0)
    assert beats(labels_task(5, 5, metric=own), 0.0)
    assert beats(labels_task(5, 5, loss=lambda o, t: cross_entropy(o, t) - 1.0, metric="accuracy"), 0.0)
    assert beats(labels_task(5, 5), float("nan"))
