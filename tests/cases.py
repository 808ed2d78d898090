"""Small shared problems: tasks on a few generated examples, and the spec of a run on one of them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.core.records import RunSpec
from isotherm.tasks.inputs import Split
from isotherm.tasks.task import Task

NUM_TRAIN = 64
NUM_TEST = 30
# The line behind `regression_task`: targets are inputs @ SLOPE + INTERCEPT, plus noise.
SLOPE = (1.0, -2.0, 0.5)
INTERCEPT = 0.25


def blobs(num: int, *, seed: int) -> Split:
    """Return points of the plane around three centres, and which centre: shapes (num, 2) and (num,)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    centres = torch.tensor([[0.0, 1.0], [-1.0, -0.5], [1.0, -0.5]])
    return centres[labels] + 0.7 * torch.randn(num, 2, generator=generator), labels


def images(num: int, *, seed: int) -> Split:
    """Return noisy images of a horizontal, a vertical or no bar: shapes (num, 1, 8, 8) and (num,)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    bars = torch.zeros(3, 1, 8, 8)
    bars[0, 0, 3:5], bars[1, 0, :, 3:5] = 1.0, 1.0
    return bars[labels] + 0.5 * torch.randn(num, 1, 8, 8, generator=generator), labels


def line(num: int, *, seed: int) -> Split:
    """Return inputs (num, 3) and noisy targets (num, 1) of a linear regression, in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 3, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(num, generator=generator, dtype=torch.float64)
    return x, (x @ torch.tensor(SLOPE, dtype=torch.float64) + INTERCEPT + noise).unsqueeze(1)


def classification(name: str, model: Any, **changes: Any) -> Task:
    """Return a task that tells the three blobs apart."""
    fields = {"train": blobs(NUM_TRAIN, seed=0), "test": blobs(NUM_TEST, seed=1)}
    return Task(name=name, model=model, **{**fields, **changes})


def build_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def blobs_task() -> Task:
    """A two-layer network on 64 points."""
    return classification("blobs", build_mlp)


class DropoutNet(nn.Module):
    """Drops out by module and by function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(p=0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(torch.tanh(self.first(x)))
        hidden = functional.dropout(torch.tanh(self.second(hidden)), p=0.2, training=self.training)
        return self.third(hidden)


def dropout_task() -> Task:
    return classification("dropout", DropoutNet)


def build_conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Dropout2d(p=0.25),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def conv_task() -> Task:
    return Task(name="conv", model=build_conv, train=images(NUM_TRAIN, seed=0), test=images(NUM_TEST, seed=1))


def build_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def batch_norm_task() -> Task:
    """Its running statistics are buffers, which evaluation uses."""
    return classification("batch_norm", build_batch_norm)


class TiedNet(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.first, self.second, self.leave = (
            nn.Linear(2, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.second(torch.tanh(self.first(torch.tanh(self.enter(x)))))))


def tied_task() -> Task:
    return classification("tied", TiedNet)


def build_frozen() -> nn.Module:
    module = build_mlp()
    module[0].weight.requires_grad_(False)
    return module


def frozen_task() -> Task:
    """The first layer's weight is not trained."""
    return classification("frozen", build_frozen)


class BranchingNet(nn.Module):
    """Looks at its data to choose a branch, which `vmap` refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) > 0 else self.layer(-x)


def unvectorisable_task() -> Task:
    return classification("unvectorisable", BranchingNet)


class CountingNet(nn.Module):
    """Its output depends on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return self.layer(x) * (1.0 + 1.0 / self.num_calls)


def stateful_task() -> Task:
    return classification("stateful", CountingNet)


class NoisyNet(nn.Module):
    """Adds noise that is not dropout, in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + 0.1 * torch.randn_like(x) if self.training else x)


def noisy_task() -> Task:
    return classification("noisy", NoisyNet)


def build_line() -> nn.Module:
    return nn.Linear(3, 1)


def regression_task() -> Task:
    """Linear regression; `least_squares` gives its optimum."""
    return Task(
        name="regression",
        model=build_line,
        train=line(NUM_TRAIN, seed=0),
        test=line(NUM_TEST, seed=1),
        loss="mean_squared_error",
        metric="mean_squared_error",
    )


def least_squares(task: Task) -> Tensor:
    """Return the optimum of `regression_task`, slope then intercept, shape (4,)."""
    x, y = task.train
    return torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1), y).solution[:, 0]


class Point(nn.Module):
    """Returns its parameters, whatever the input: the loss is a function of them alone."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.point.expand(len(x), 2)


CURVATURES = (1.0, 4.0)


def quadratic_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return ½ Σ λ w², noiseless: gradient descent multiplies coordinate i by 1 - ε λ_i."""
    return 0.5 * (output.square() * torch.tensor(CURVATURES, dtype=output.dtype)).sum(dim=-1).mean()


def quadratic_task() -> Task:
    """A noiseless quadratic with curvatures 1 and 4; unstable from ε = 2/4 on."""
    return Task(
        name="quadratic",
        model=Point,
        train=(torch.zeros(8, 1), torch.zeros(8, 2)),
        test=(torch.zeros(2, 1), torch.zeros(2, 2)),
        loss=quadratic_loss,
        metric="mean_squared_error",
    )


@functools.cache
def _ids(task: Task) -> tuple[str, str]:
    return task.identify().ids


def spec(task: Task, **changes: Any) -> RunSpec:
    """Return a short run in float64, changed as asked."""
    fields: dict[str, Any] = {
        "task": task.name,
        "data_id": _ids(task)[0],
        "model_id": _ids(task)[1],
        "batch_size": 10,
        "num_steps": 200,
        "effective_learning_rate": 0.1,
        "momentum": 0.9,
        "gamma": 2.0,
        "l2": 5e-4,
        "l2_scope": "weights",
        "precision": "float64",
        "num_evaluations": 0,
        "seed": 0,
    }
    return RunSpec(**{**fields, **changes})
