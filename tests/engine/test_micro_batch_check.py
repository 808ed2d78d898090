"""Which models may be computed in micro-batches, and what is said of those that may not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cases
import cases_paper
from isotherm.engine.fleet_checks import FleetChecks
from isotherm.engine.micro_batch_check import NotSeparable, micro_batches_of
from isotherm.engine.placed_task import place_task
from isotherm.tasks.task import Task


def check(task: Task, *, batch_size: int = 12, size: int = 4, precision: Any = "float32") -> Any:
    return micro_batches_of(place_task(task, precision=precision), batch_size=batch_size, size=size)


class WithLayer(nn.Module):
    """A network with a layer in its middle."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(2, 8), layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(self.first(x))))


class Centred(nn.Module):
    """Subtracts the mean over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Pairs(nn.Module):
    """Adds to every example its neighbour, two by two."""

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.view(-1, 2, x.shape[1]) if len(x) % 2 == 0 else x.view(-1, 1, x.shape[1])
        return (pairs + pairs.flip(1)).view_as(x)


class Noise(nn.Module):
    """Random numbers that are not dropout."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Counts(nn.Module):
    """Keeps how many examples it has seen."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(len(x))
        return x


class TimeMajor(nn.Module):
    """Drops out where examples and something else are one dimension, examples last."""

    def forward(self, x: Tensor) -> Tensor:
        twice = torch.stack([x, x]).flatten(0, 1)
        return functional.dropout(twice, 0.5, self.training).view(2, *x.shape).mean(dim=0)


class PickySize(nn.Module):
    """Takes no more than four examples."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 4:
            raise ValueError("too many\nexamples")
        return x


LAYERS = {
    "centred": (Centred, "a layer or a loss that mixes examples"),
    "pairs": (Pairs, "a layer or a loss that mixes examples"),
    "noise": (Noise, "random numbers other than dropout"),
    "counts": (Counts, "its buffer layer.seen depends on which examples"),
    "time major": (TimeMajor, "a layer or a loss that mixes examples"),
    "picky": (PickySize, "with 3 and 6 examples it raises ValueError: too many;"),
    "batch norm": (lambda: nn.BatchNorm1d(8), "BatchNorm1d normalises over all examples of a batch: use it.Ghost"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_mix_examples_are_refused_with_a_remedy(name: str) -> None:
    layer, reason = LAYERS[name]
    with pytest.raises(NotSeparable, match="cannot be cut into micro-batches") as refused:
        check(cases.classification("mixes", lambda: WithLayer(layer())))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "a batch size that fits into memory" in str(refused.value)


ALLOWED = {
    "layer norm": lambda: nn.LayerNorm(8),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "dropout": lambda: nn.Dropout(0.3),
    "frozen batch norm": lambda: FrozenBatchNorm(8),
}


class FrozenBatchNorm(nn.BatchNorm1d):
    """Normalises by its running statistics in training too."""

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        return super().train(False)


@pytest.mark.parametrize("name", ALLOWED)
def test_layers_that_do_not_are_allowed(name: str) -> None:
    found = check(cases.classification("separate", lambda: WithLayer(ALLOWED[name]())))
    assert (found.batch_size, found.size, len(found.parts)) == (12, 4, 3)


@pytest.mark.parametrize("precision", ["float32", "float64", "mixed"])
def test_it_is_checked_in_float64_whatever_the_precision(precision: str) -> None:
    check(cases_paper.ghost_task(), batch_size=16, size=8, precision=precision)


def test_a_loss_over_pairs_is_refused() -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) + output.var(dim=0).mean()

    with pytest.raises(NotSeparable, match="mixes examples"):
        check(cases.classification("spread", cases.build_mlp, loss=loss, metric="accuracy"))


def test_a_norm_over_more_than_a_ghost_batch_is_refused() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm = cases_paper.SmallGhostNet(), nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.body(x))

    with pytest.raises(NotSeparable, match="BatchNorm1d"):
        check(cases_paper.image_task(Both), batch_size=16, size=8)


@pytest.mark.parametrize(("batch_size", "size"), [(2, 1), (3, 1), (4, 2), (5, 1)])
def test_small_batches_can_be_cut_too(batch_size: int, size: int) -> None:
    assert len(check(cases.dropout_task(), batch_size=batch_size, size=size).parts) == batch_size // size


def test_a_check_draws_nothing_from_the_global_generators_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    placed, checks, built = place_task(cases.dropout_task(), precision="float32"), FleetChecks(), itertools.count()
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    first = checks.micro_batches(placed, 12, size=4)
    assert torch.equal(torch.rand(()), expected)
    monkeypatch.setattr(type(placed), "model", lambda *_, **__: next(built))
    assert checks.micro_batches(placed, 12, size=4) is first
    assert checks.micro_batches(placed, 12, size=None).is_whole
    assert next(built) == 0
