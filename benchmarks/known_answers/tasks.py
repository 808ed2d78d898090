"""The tasks of the suite: a few hundred to a few thousand generated examples each, and tiny networks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import isotherm as it
from isotherm.models.mlp import mlp
from isotherm.tasks.inputs import Split
from isotherm.tasks.task import Task

NUM_DIMENSIONS = 64
CURVATURES = tuple(k**-0.5 for k in range(1, NUM_DIMENSIONS + 1))
# Standard deviation of the quadratic's noise in every dimension, and the distance of the start from the minimum.
SPREAD, DISTANCE = 5.0, 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A task and the length of the training that is asked about.

    Args:
        name: of the case.
        build: returns the task.
        epochs: of the intended training.
        is_answerable: False where nothing can be learned, so that no answer is right.
    """

    name: str
    build: Callable[[], Task]
    epochs: float
    is_answerable: bool = True


class Quadratic(nn.Module):
    """Parameters θ; the output for an example is √h (θ + x)."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((NUM_DIMENSIONS,), DISTANCE))
        self.register_buffer("roots", torch.tensor(CURVATURES).sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """Return √h (θ + x)."""
        return self.roots * (self.theta + x)


def quadratic() -> Task:
    """The noisy quadratic ½ Σ h θ²: targets are √h (x + noise), so gradients are h (θ - noise).

    One epoch shows every example once, so batches are independent, as in the closed form. Held-out targets have no
    noise, so that their loss is ½ Σ h θ² itself.
    """
    roots = torch.tensor(CURVATURES).sqrt()

    def split(num: int, seed: int, spread: float) -> Split:
        generator = torch.Generator().manual_seed(seed)
        x, noise = (torch.randn(num, NUM_DIMENSIONS, generator=generator) for _ in range(2))
        return 4 * x, roots * (4 * x + spread * noise)

    return Task(
        name="noisy quadratic",
        model=Quadratic,
        train=split(16_000, 0, SPREAD),
        validation=split(100, 1, 0.0),
        test=split(100, 2, 0.0),
        loss="half_squared_error",
    )


def linear_regression() -> Task:
    """Targets are a noisy line in 100 inputs whose variances fall as 1/k; 1,000 examples are few enough to overfit."""
    truth = torch.randn(100, 1, generator=torch.Generator().manual_seed(7))
    scales = torch.arange(1, 101).rsqrt()

    def split(num: int, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        x = scales * torch.randn(num, 100, generator=generator)
        return x, x @ truth + 3 * torch.randn(num, 1, generator=generator)

    return Task(
        name="linear regression",
        model=lambda: nn.Linear(100, 1),
        train=split(1000, 0),
        test=split(8000, 1),
        loss="mean_squared_error",
    )


def teacher(num: int, *, seed: int, flipped: float = 0.0, num_inputs: int = 20, num_classes: int = 4) -> Split:
    """Labels of a random two-layer network, a fraction of which is replaced by random other ones."""
    weights = torch.Generator().manual_seed(11)
    first = torch.randn(num_inputs, 8, generator=weights)
    second = torch.randn(8, num_classes, generator=weights)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, num_inputs, generator=generator)
    y = (torch.tanh(x @ first / math.sqrt(num_inputs) * 1.5) @ second).argmax(dim=1)
    other = (y + 1 + torch.randint(num_classes - 1, (num,), generator=generator)) % num_classes
    return x, torch.where(torch.rand(num, generator=generator) < flipped, other, y)


def label_noise() -> Task:
    """A network of 64 units on 2,000 examples, 15 % of them with a wrong label; the test set is clean."""
    return Task(
        name="label noise 15 %",
        model=lambda: mlp((20, 64, 4)),
        train=teacher(2000, seed=0, flipped=0.15),
        test=teacher(2000, seed=1),
    )


def clipped() -> Task:
    """The gradient is clipped at every update, so that the best learning rate rises as the root of the batch size."""
    return Task(
        name="clipped MLP",
        model=lambda: mlp((20, 32, 4)),
        train=teacher(2000, seed=0, flipped=0.1),
        test=teacher(2000, seed=1),
        clip_norm=0.05,
    )


def quickstart() -> Task:
    """The quickstart's task."""
    return dataclasses.replace(it.get_task("mlp_mnist1d"), l2=5e-4)


def cnn() -> Task:
    """A small convolutional network on noisy images of bars."""
    return Task(name="small CNN", model=_build_cnn, train=bars(1500, seed=0), test=bars(4000, seed=1))


def _build_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def bars(num: int, *, seed: int) -> Split:
    """Return 8 x 8 images of a bar in one of four directions at a random place, in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (num,), generator=generator)
    shifts = torch.randint(-2, 3, (num,), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(8) - 3.5, torch.arange(8) - 3.5, indexing="ij")
    normals = torch.stack([rows, columns, (rows + columns) / 2**0.5, (rows - columns) / 2**0.5])
    distance = (normals[labels] - shifts[:, None, None]).abs()
    x = (distance < 1.0).float() + 0.8 * torch.randn(num, 8, 8, generator=generator)
    return x[:, None], labels


def saturated() -> Task:
    """Classes far apart: every sensible learning rate reaches an accuracy of one."""

    def split(num: int, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(num) % 4
        centres = 4.0 * torch.eye(4, 10)
        return centres[labels] + 0.5 * torch.randn(num, 10, generator=generator), labels

    return Task(name="saturated", model=lambda: mlp((10, 16, 4)), train=split(1000, 0), test=split(1000, 1))


def random_labels() -> Task:
    """Labels that have nothing to do with the inputs."""

    def split(num: int, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(num, 20, generator=generator), torch.randint(4, (num,), generator=generator)

    return Task(name="random labels", model=lambda: mlp((20, 64, 4)), train=split(2000, 0), test=split(2000, 1))


CASES = (
    Known(name="noisy quadratic", build=quadratic, epochs=1),
    Known(name="linear regression", build=linear_regression, epochs=10),
    Known(name="clipped MLP", build=clipped, epochs=10),
    Known(name="label noise, 3 epochs", build=label_noise, epochs=3),
    Known(name="label noise, 10 epochs", build=label_noise, epochs=10),
    Known(name="label noise, 30 epochs", build=label_noise, epochs=30),
    Known(name="quickstart", build=quickstart, epochs=20),
    Known(name="small CNN", build=cnn, epochs=10),
    Known(name="saturated", build=saturated, epochs=10),
    Known(name="random labels", build=random_labels, epochs=10, is_answerable=False),
)
