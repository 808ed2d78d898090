"""A text file as windows of characters, and a text of our own for where there is none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isotherm.core.checks import is_whole
from isotherm.data.files import require_regular
from isotherm.errors import UserError

Split = tuple[Tensor, Tensor]

NAME = "text"
# The last part of a text is its test set.
TEST_FRACTION = 0.1
NUM_CHARACTERS = 200_000
MOST_BYTES = 2**28  # as tokens they take some twenty times as much memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """The characters of a text as indices into its vocabulary: training and test part, of shape (n,) in int64."""

    train: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]


def load(path: Path | None) -> Text:
    """Read a text file, or make the text that comes with the package.

    Raises:
        UserError: the file is missing, a pipe or a device, too large, empty, no text in UTF-8, or one character
            throughout.
    """
    return of_string(generated() if path is None else _read(path), name="the text" if path is None else str(path))


def of_string(text: str, *, name: str) -> Text:
    """Return a string as tokens; the vocabulary is in code-point order."""
    codes, tokens = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), return_inverse=True)
    if len(codes) < 2:
        raise UserError(f"{name} holds {len(codes)} different characters; nothing can be learnt from fewer than two")
    num_test = round(TEST_FRACTION * len(text))
    train, test = torch.split(torch.from_numpy(tokens.astype(np.int64)), [len(text) - num_test, num_test])
    return Text(train=train, test=test, vocabulary=tuple(map(chr, codes)))


def windows(tokens: Tensor, context: Any, *, part: str) -> Split:
    """Return tokens one window after another, and the token after each: both (n, context).

    Args:
        tokens: of one part of a text.
        context: tokens of a window.
        part: what the tokens are, for the error.
    """
    if not is_whole(context) or context < 1:
        raise UserError(f"context={context!r} is not a positive whole number of characters")
    num = (len(tokens) - 1) // context
    if num < 1:
        raise UserError(
            f"the {part} part of the text has {len(tokens):,} characters, too few for one window of context={context} "
            f"and the character after it; give a text of {shortest(context):,} characters or more, or a smaller context"
        )
    return tokens[: num * context].view(num, context), tokens[1 : num * context + 1].view(num, context)


def shortest(context: int) -> int:
    """Return how many characters a text must have for a window of its test part.

    >>> shortest(32)
    326
    """
    num = round((context + 1) / TEST_FRACTION)
    return next(n for n in range(num - round(1 / TEST_FRACTION), num + 2) if round(TEST_FRACTION * n) > context)


def rewindowed(split: Split, context: Any, *, part: str) -> Split:
    """Return the same tokens in windows of another length."""
    inputs, following = split
    return windows(torch.cat([inputs.flatten(), following[-1, -1:]]), context, part=part)


def _read(path: Path) -> str:
    try:
        require_regular(path, at_most=MOST_BYTES)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text at byte {error.start:,}; save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"the text {path} cannot be read: {error.strerror}; give --data a text file") from error


# -- a text of our own ------------------------------------------------------------------------------------------------

_NAMES = ("Ada", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo")
_NOUNS = (
    "baker",
    "boat",
    "clock",
    "door",
    "fox",
    "garden",
    "hill",
    "lamp",
    "letter",
    "miller",
    "river",
    "stone",
    "tree",
)
_ADJECTIVES = ("bright", "cold", "empty", "green", "heavy", "little", "old", "quiet", "round", "warm", "wooden")
_VERBS = ("carry", "count", "draw", "follow", "hear", "lift", "paint", "reach", "see", "turn", "watch")
_PLACES = ("behind the hill", "by the river", "in the garden", "near the old mill", "under the bridge", "on the stairs")
_TIMES = ("in the morning", "at noon", "every evening", "before the rain", "after supper", "all winter")
_LINKS = ("and", "but", "so", "while", "because")


class _Writer:
    """Writes sentences in which subject and verb agree and a paragraph stays with its people."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random  # noqa: S311 - the one method whose numbers no release of Python changes

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, words: Sequence[str]) -> str:
        return words[int(self._random() * len(words))]

    def paragraph(self) -> str:
        people = [self.pick(_NAMES), self.pick(_NAMES)]
        sentences = [self.sentence(people) for _ in range(3 + int(4 * self._random()))]
        return " ".join(sentences)

    def sentence(self, people: Sequence[str]) -> str:
        text = self.clause(people)
        if self.chance(0.35):
            text = f"{text}, {self.pick(_LINKS)} {self.clause(people)}"
        if self.chance(0.15):
            return f'"{text[0].upper()}{text[1:]}," said {self.pick(people)}.'
        return f"{text[0].upper()}{text[1:]}{self.pick(('.', '.', '.', '!', '?'))}"

    def clause(self, people: Sequence[str]) -> str:
        is_plural = self.chance(0.3)
        subject = self.pick(people) if not is_plural and self.chance(0.6) else f"the {self.noun(is_plural=is_plural)}"
        verb = self.pick(_VERBS)
        if not is_plural:
            verb = f"{verb[:-1]}ies" if verb == "carry" else f"{verb}es" if verb.endswith("ch") else f"{verb}s"
        number = self.pick(("the", "a", "two", "three"))
        noun = self.noun(is_plural=number in ("two", "three"))
        number = "an" if number == "a" and noun[0] in "aeiou" else number
        return f"{subject} {verb} {number} {noun}" + self.ending()

    def noun(self, *, is_plural: bool) -> str:
        noun = self.pick(_NOUNS)
        noun = (f"{noun}es" if noun == "fox" else f"{noun}s") if is_plural else noun
        return f"{self.pick(_ADJECTIVES)} {noun}" if self.chance(0.5) else noun

    def ending(self) -> str:
        place = f" {self.pick(_PLACES)}" if self.chance(0.4) else ""
        return place + (f" {self.pick(_TIMES)}" if self.chance(0.25) else "")


def generated(num_characters: int = NUM_CHARACTERS, *, seed: int = 0) -> str:
    """Return plain English sentences from a small grammar, always the same.

    >>> generated(31)
    'The round hills follow a lamp. '
    """
    writer, paragraphs, length = _Writer(seed), [], 0
    while length < num_characters:
        paragraphs.append(writer.paragraph())
        length += len(paragraphs[-1]) + 1
    return "\n".join(paragraphs)[:num_characters]
