"""Small tasks, and how to assert that one is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

import cases
from isotherm.data import text
from isotherm.data.augment import CropAndFlip
from isotherm.errors import UserError
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.builtin import built_in
from isotherm.tasks.inputs import Split
from isotherm.tasks.task import Task

X, Y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


REAL = torch.zeros(6, 1)


def task(**changes) -> Task:
    fields = {"name": "mine", "model": cases.build_mlp, "train": (X, Y), "test": (X, Y)}
    return Task(**{**fields, **changes})


def refused(words: list[str], **changes) -> None:
    """Assert that the task is refused, and that the message holds every one of the words."""
    with pytest.raises(UserError) as caught:
        task(**changes)
    assert [word for word in words if word not in str(caught.value)] == []


TOKENS = torch.arange(30) % 4


SEQUENCE = (TOKENS[:-1], TOKENS[1:])


class Recurrent(nn.Module):
    """Its state is the last token seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(1, batch_size, 1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.cat([state[0], x[:, :-1].to(state.dtype)], dim=1)
        return self.layer(torch.stack([x.to(state.dtype), before], dim=-1)), x[:, -1:].to(state.dtype).unsqueeze(0)


def sequence_task(**changes) -> Task:
    fields = {"train": SEQUENCE, "test": SEQUENCE, "model": Recurrent, "unroll": 5, "metric": "perplexity"}
    return task(**{**fields, **changes})


class OnDisk:
    """Zeros that are fetched."""

    shape, dtype = torch.Size((6, 2)), torch.float32

    def __len__(self) -> int:
        return 6

    def fetch(self, indices, *, seed=None, step=0) -> Tensor:
        return torch.zeros(len(indices), 2)

    def identity(self) -> str:
        return "zeros"


def images_task() -> Task:
    x = torch.zeros(8, 3, 8, 8, dtype=torch.uint8)
    y = torch.arange(8) % 3
    build = functools.partial(wide_resnet, depth=10, width=1, num_classes=3)
    transform = CropAndFlip(mean=(0.0,) * 3, std=(1.0,) * 3)
    return Task(name="images", model=build, train=(x, y), test=(x, y), transform=transform)


# -- built-in tasks ---------------------------------------------------------------------------------------------

NUM_TRAIN, NUM_TEST = 6, 5


def vectors(num: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, 40, generator=generator), torch.arange(num)


def images(num: int, seed: int, *shape: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, *shape), generator=generator, dtype=torch.uint8), torch.arange(num)


def small_built_in(name: str) -> Task:
    """Return a built-in task on data of the smallest shape it takes."""
    if name == "lstm_ptb":
        tokens = [torch.arange(num) ** 2 % 11 for num in (2 * 36, 40, 38)]
        train, validation, test = ((t[:-1], t[1:]) for t in tokens)
        return built_in(name, train=train, validation=validation, test=test, vocabulary=11)
    if name == "gpt_text":
        train, test = (text.windows(torch.arange(num) ** 2 % 11, 5, part="whole") for num in (36, 26))
        return built_in(name, train=train, test=test, vocabulary=11, context=5, width=8, num_heads=2)
    sizes = ((NUM_TRAIN, 1), (NUM_TEST, 2))
    if name == "mlp_mnist1d":
        train, test = (vectors(*size) for size in sizes)
    elif name == "autoencoder_mnist":
        train, test = ((pixels, pixels) for pixels, _ in (images(*size, 784) for size in sizes))
    else:
        assert name.startswith(("wrn", "resnet")), f"say in {__file__} what data the task {name} takes"
        side = 32 if name == "resnet50_imagenet" else 8
        train, test = (images(*size, 3, side, side) for size in sizes)
    return built_in(name, train=train, test=test)
