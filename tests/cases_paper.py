"""The paper's tasks in small: images with augmentation, ghost batch norm, SkipInit, language, inputs from disk."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cases
from isotherm.core.records import RunSpec
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.engine.evaluation import WINDOW
from isotherm.models.autoencoder import autoencoder
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.task import Task

ANY_SPEC = cases.spec(cases.blobs_task())
PIXELS = {"mean": (120.0, 125.0, 130.0), "std": (60.0, 65.0, 70.0)}
VOCABULARY, UNROLL, STREAMS = 9, 5, 4
GHOST = 8


def spec_of(task: Task, **changes: Any) -> RunSpec:
    """Return a short run in float64, changed as asked; the engines do not look at the hashes of the task."""
    return dataclasses.replace(ANY_SPEC, task=task.name, **changes)


def photos(num: int, *, size: int = 8, seed: int) -> tuple[Tensor, Tensor]:
    """Return random images (num, 3, size, size) as bytes, brighter in the channel that is the label."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 200, (num, 3, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.arange(num) % 3
    x[torch.arange(num), labels] += 40
    return x, labels


def sequence(num: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return a random walk over the words, and the word after each."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 3, (num + 1,), generator=generator)
    tokens = steps.cumsum(0) % VOCABULARY
    return tokens[:-1], tokens[1:]


def image_task(model: Any, **changes: Any) -> Task:
    fields = {"train": photos(48, seed=0), "test": photos(12, seed=1), "transform": CropAndFlip(**PIXELS, pad=2)}
    return Task(name="images", model=model, **{**fields, **changes})


def ghost_task(**changes: Any) -> Task:
    return image_task(functools.partial(wide_resnet, depth=10, width=1, num_classes=3, ghost_size=GHOST), **changes)


def skip_init_task() -> Task:
    return image_task(
        functools.partial(
            wide_resnet, depth=10, width=1, num_classes=3, normalisation="skip_init", drop_probability=0.4
        )
    )


def wide_task() -> Task:
    """Return one of 64 channels and more, and images of 16 x 16 pixels and less."""
    model = functools.partial(wide_resnet, depth=10, width=4, num_classes=3, ghost_size=GHOST)
    return image_task(model, train=photos(48, size=16, seed=0), test=photos(12, size=16, seed=1))


class ResidualNet(nn.Module):
    """A network as users write them, of PyTorch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.first, self.first_norm = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.second, self.second_norm = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.down, self.down_norm = nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.BatchNorm2d(128)
        self.linear = nn.Linear(128, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        y = torch.relu(self.first_norm(self.first(x)))
        x = torch.relu(x + self.second_norm(self.second(y)))
        return self.linear(torch.relu(self.down_norm(self.down(x))).mean(dim=(2, 3)))


def residual_task() -> Task:
    return image_task(ResidualNet, train=photos(48, size=16, seed=0), test=photos(12, size=16, seed=1))


class SmallGhostNet(nn.Module):
    """Two convolutions, each with ghost batch norm, quick to train."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, bias=False), GhostBatchNorm2d(4, ghost_size=GHOST)
        self.conv2, self.norm2 = nn.Conv2d(4, 5, 3, bias=False), GhostBatchNorm2d(5, ghost_size=GHOST)
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        return self.linear(torch.relu(self.norm2(self.conv2(x))).mean(dim=(2, 3)))


def build_language_model(**changes: Any) -> nn.Module:
    sizes = {"vocabulary": VOCABULARY, "width": 6, "num_layers": 2, "drop_probability": 0.3, "initial_range": 0.4}
    return LSTMLanguageModel(**{**sizes, **changes})


def language_task(*, drop_probability: float = 0.3, **changes: Any) -> Task:
    """About ten updates a pass with four streams; the test sequence is two windows of evaluation and a bit."""
    fields: dict[str, Any] = {
        "train": sequence(210, seed=0),
        "validation": sequence(40, seed=1),
        "test": sequence(2 * WINDOW + 11, seed=2),
        "metric": "perplexity",
        "unroll": UNROLL,
    }
    fields["model"] = functools.partial(build_language_model, drop_probability=drop_probability)
    return Task(name="language", **{**fields, **changes})


def autoencoder_task(*, num_train: int = 40) -> Task:
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randint(0, 256, (n, 12), generator=generator, dtype=torch.uint8) for n in (num_train, 20))
    return Task(
        name="autoencoder",
        model=functools.partial(autoencoder, encoder_widths=(12, 8, 3)),
        train=(train, train),
        test=(test, test),
        loss="half_squared_error",
        transform=Scaled(),
        l2=1e-3,
        l2_scope="all",
    )


class FromDisk:
    """Images that are 'read' batch by batch; what a run sees of one depends on its seed and on the update."""

    def __init__(self, images: Tensor) -> None:
        self._images = images
        self.calls: list[tuple[tuple[int, ...], int | None, int]] = []
        self._lock = threading.Lock()

    @property
    def shape(self) -> torch.Size:
        return self._images.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._images.dtype

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
        with self._lock:  # the next batch is read ahead, in another thread
            self.calls.append((tuple(int(index) for index in indices), seed, step))
        images = self._images[torch.as_tensor(indices)]
        return images if seed is None else seen_by(images, seed, step)

    def identity(self) -> str:
        return "in memory"


def seen_by(images: Tensor, seed: int, step: int) -> Tensor:
    noise = np.random.default_rng([seed, step]).integers(0, 15, size=images.shape)
    return images + torch.from_numpy(noise).to(torch.uint8)


def lazy_task(**changes: Any) -> Task:
    (train, labels), (test, test_labels) = photos(48, seed=0), photos(20, seed=1)
    fields = {
        "train": (FromDisk(train), labels),
        "test": (FromDisk(test), test_labels),
        "transform": CropAndFlip(**PIXELS, pad=0, flip=False),
    }
    return image_task(SmallGhostNet, **{**fields, **changes})
