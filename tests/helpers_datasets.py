"""Data sets as people have them: map-style, with items of several kinds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import cases

NUM = 40
X, Y = cases.blobs(NUM, seed=3)


class Listed(Dataset[Any]):
    """Items of a list, and how often each was read."""

    def __init__(self, items: Any) -> None:
        self.items = list(items)
        self.num_reads = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.num_reads += 1
        return self.items[index]


class Noisy(Listed):
    """Adds noise to its inputs, from one of the random generators that a transform may use."""

    transform = "RandomCrop(32)"

    def __init__(self, items: Any, source: str, *, one_in: int = 1) -> None:
        super().__init__(items)
        self.source, self.one_in = source, one_in
        self.own = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        draw = {"torch": self.of_torch, "random": random.random, "numpy": np.random.rand, "own": self.own.random}
        drawn = draw[self.source]()
        return (x + drawn if drawn * self.one_in < 1 else x), y

    @staticmethod
    def of_torch() -> float:
        return float(torch.rand(()))


class Rows:
    """Rows by column, as Hugging Face's data sets give them; no `torch.utils.data.Dataset`."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.columns.items()}


def pairs(x: Tensor = X, y: Tensor = Y) -> Listed:
    return Listed(zip(x, y.tolist(), strict=True))


# -- several inputs -------------------------------------------------------------------------------------------------

TOKENS = torch.arange(NUM * 5).view(NUM, 5) ** 2 % 7
MASK = TOKENS != 3


class MaskedText(nn.Module):
    """Takes tokens, a mask and two measurements by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(7, 4), nn.Linear(6, 3)

    def forward(self, tokens: Tensor, *, point: Tensor, mask: Tensor) -> Tensor:
        assert (tokens.dtype, mask.dtype) == (torch.int64, torch.bool)
        kept = (self.embedding(tokens) * mask[..., None].to(point.dtype)).sum(dim=1)
        return self.layer(torch.cat([torch.tanh(kept), point], dim=1))


class Positional(MaskedText):
    """Takes the same by position."""

    def forward(self, tokens: Tensor, point: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens, point=point, mask=mask)


NAMED = {"tokens": TOKENS, "mask": MASK, "point": X}
