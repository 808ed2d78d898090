"""The networks that the paper's objects train: the paper's own, and small embedded ones for a laptop.

The embedded networks need no data but MNIST-1D, which is generated. An MLP stands for the residual networks and the
LSTM, one with ghost batch norm for those with batch norm where both are compared, an autoencoder for the autoencoder.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from isotherm.data import mnist1d
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.builtin import get_task
from isotherm.tasks.task import Task

# The networks that train on MNIST-1D.
EMBEDDED = "mlp_mnist1d"
EMBEDDED_NORM = "mlp_norm_mnist1d"
EMBEDDED_AUTOENCODER = "autoencoder_mnist1d"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A network on its data, and how long an update takes in a full fleet.

    Args:
        name: a built-in task, or one of the embedded ones here.
        title: in words.
        dataset: of the catalogue.
        num_train: training examples; tokens to predict where it unrolls.
        per_update: seconds of one update of one run, however small the batch.
        per_example: seconds that every example adds; both on an H200, for embedded networks on two cores.
        unroll: tokens per update.
    """

    name: str
    title: str
    dataset: str
    num_train: int
    per_update: float
    per_example: float
    unroll: int | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether it trains on two cores, on data that are generated."""
        return self.dataset == "mnist1d"

    def seconds(self, *, batch_size: int, num_steps: int) -> float:
        """Return the time of one run in a full fleet."""
        return num_steps * (self.per_update + batch_size * self.per_example)


# Speeds: docs/performance.md, from the rows of `isotherm bench`; ResNet-50's from its FLOP at WRN-16-4's rate.
NETWORKS: dict[str, Network] = {
    network.name: network
    for network in (
        Network(
            name="wrn16x4_cifar10",
            title="WRN-16-4 with ghost batch norm, CIFAR-10",
            dataset="cifar10",
            num_train=50_000,
            per_update=1e-4,
            per_example=1 / 140_000,
        ),
        Network(
            name="wrn16x4_skipinit_cifar10",
            title="WRN-16-4 with SkipInit, CIFAR-10",
            dataset="cifar10",
            num_train=50_000,
            per_update=1e-4,
            per_example=1 / 138_000,
        ),
        Network(
            name="wrn28x10_cifar100",
            title="WRN-28-10 with ghost batch norm, CIFAR-100",
            dataset="cifar100",
            num_train=50_000,
            per_update=2e-4,
            per_example=1 / 13_300,
        ),
        Network(
            name="wrn28x10_skipinit_cifar100",
            title="WRN-28-10 with SkipInit, CIFAR-100",
            dataset="cifar100",
            num_train=50_000,
            per_update=2e-4,
            per_example=1 / 13_300,
        ),
        Network(
            name="resnet50_imagenet",
            title="ResNet-50, ImageNet",
            dataset="imagenet",
            num_train=1_281_167,
            per_update=2e-4,
            per_example=1 / 13_500,
        ),
        Network(
            name="lstm_ptb",
            title="LSTM of 2 × 650 units, Penn TreeBank",
            dataset="ptb",
            num_train=929_588,
            per_update=1e-4,
            per_example=1.06e-5,
            unroll=35,
        ),
        Network(
            name="autoencoder_mnist",
            title="autoencoder, MNIST",
            dataset="mnist",
            num_train=60_000,
            per_update=2.1e-5,
            per_example=4.07e-8,
        ),
        Network(
            name=EMBEDDED,
            title="MLP 40-100-100-10, MNIST-1D",
            dataset="mnist1d",
            num_train=4_000,
            per_update=1.7e-5,
            per_example=9e-7,
        ),
        Network(
            name=EMBEDDED_NORM,
            title="MLP 40-100-100-10 with ghost batch norm, MNIST-1D",
            dataset="mnist1d",
            num_train=4_000,
            per_update=4e-5,
            per_example=4e-6,
        ),
        Network(
            name=EMBEDDED_AUTOENCODER,
            title="autoencoder 40-100-50-8-50-100-40, MNIST-1D",
            dataset="mnist1d",
            num_train=4_000,
            per_update=2.5e-5,
            per_example=1.5e-6,
        ),
    )
}


def network_task(network: Network, *, data: Path | None = None) -> Task:
    """Return the task that trains a network; its data are loaded."""
    if network.name == EMBEDDED_NORM:
        train, test = mnist1d.load()
        return Task(name=network.name, model=_norm_mlp, train=train, test=test, l2=5e-4)
    if network.name == EMBEDDED_AUTOENCODER:
        (train_x, _), (test_x, _) = mnist1d.load()
        return Task(
            name=network.name,
            model=_autoencoder,
            train=(train_x, train_x),
            test=(test_x, test_x),
            loss="half_squared_error",
            metric="squared_error",
            l2=1e-5,
        )
    task = get_task(network.name, data=data)
    return dataclasses.replace(task, l2=5e-4) if network.name == EMBEDDED else task


def _norm_mlp() -> nn.Module:
    return nn.Sequential(*_normalised(40, 100), *_normalised(100, 100), nn.Linear(100, 10))


def _normalised(num_in: int, num_out: int) -> list[nn.Module]:
    """Return a layer with ghost batch norm, which normalises images: here of one pixel."""
    return [
        nn.Linear(num_in, num_out, bias=False),
        nn.Unflatten(1, (num_out, 1, 1)),
        GhostBatchNorm2d(num_out),
        nn.Flatten(),
        nn.ReLU(),
    ]


def _autoencoder() -> nn.Module:
    encoder = [nn.Linear(40, 100), nn.Tanh(), nn.Linear(100, 50), nn.Tanh(), nn.Linear(50, 8)]
    decoder = [nn.Linear(8, 50), nn.Tanh(), nn.Linear(50, 100), nn.Tanh(), nn.Linear(100, 40)]
    return nn.Sequential(*encoder, *decoder)
