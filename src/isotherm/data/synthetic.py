"""Synthetic data in the shape of real data, for timing without the real data. There is nothing to learn."""

from __future__ import annotations

import torch
from torch import Tensor

from isotherm.data.ptb import Corpus

_Split = tuple[Tensor, Tensor]
_NUM_TEST = 1_000


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def vectors(*, num_features: int, num_classes: int, num_train: int = 4_000) -> tuple[_Split, _Split]:
    """Return normally distributed vectors and labels, for training and testing."""
    generator = _generator()
    sizes = (num_train, _NUM_TEST)
    train, test = (
        (
            torch.randn(num, num_features, generator=generator),
            torch.randint(0, num_classes, (num,), generator=generator),
        )
        for num in sizes
    )
    return train, test


def images(*, num_train: int, shape: tuple[int, ...], num_classes: int) -> tuple[_Split, _Split]:
    """Return random bytes of a given image shape and labels, for training and testing."""
    generator = _generator()
    train, test = (
        (
            torch.randint(0, 256, (num, *shape), generator=generator, dtype=torch.uint8),
            torch.randint(0, num_classes, (num,), generator=generator),
        )
        for num in (num_train, min(num_train, _NUM_TEST))
    )
    return train, test


def text(*, num_words: int, num_tokens: tuple[int, int, int]) -> Corpus:
    """Return random words with the word frequencies of a natural language, for training, validation and testing."""
    frequency = 1.0 / torch.arange(2, num_words + 2, dtype=torch.float64)
    drawn = torch.multinomial(frequency, sum(num_tokens), replacement=True, generator=_generator())
    train, valid, test = torch.split(drawn, list(num_tokens))
    vocabulary = tuple(f"word{index}" for index in range(num_words))
    return Corpus(train=train, valid=valid, test=test, vocabulary=vocabulary, num_unknown={})
