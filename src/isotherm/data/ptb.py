"""A corpus of words in three text files: Mikolov's Penn Treebank, or any other in that layout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isotherm.data.files import read_bytes, require_folder
from isotherm.errors import UserError

NAME = "ptb"
END_OF_SENTENCE = "<eos>"
UNKNOWN = "<unk>"

_SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Three streams of tokens, each an index into the vocabulary, of shape (n,) in int64.

    `num_unknown` counts, for each split, the words that are not in the vocabulary and were read as `<unk>`; an `<unk>`
    that is already in the files is not counted.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]
    num_unknown: dict[str, int]


def load(folder: Path) -> Corpus:
    """Read `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`: words separated by blanks, `<eos>` at every line end.

    The vocabulary is that of the training file, by falling frequency, ties in code-point order.

    Args:
        folder: the data folder; the files are in `ptb` inside it.

    Raises:
        UserError: a file is missing, empty or not UTF-8, or a word is not in the vocabulary and there is no `<unk>`.
    """
    own = require_folder(folder, NAME)
    paths = {split: own / f"ptb.{split}.txt" for split in _SPLITS}
    words = {split: _read_words(path) for split, path in paths.items()}
    counts = Counter(words["train"])
    vocabulary = tuple(sorted(counts, key=lambda word: (-counts[word], word)))
    position = {word: index for index, word in enumerate(vocabulary)}
    num_unknown = {split: sum(word not in position for word in words[split]) for split in _SPLITS}
    if UNKNOWN not in position:
        for split in _SPLITS:
            if num_unknown[split]:
                raise UserError(_no_unknown(paths[split], words[split], position, paths["train"]))
    unknown = position.get(UNKNOWN, -1)
    tokens = {split: torch.tensor([position.get(w, unknown) for w in words[split]]) for split in _SPLITS}
    return Corpus(**tokens, vocabulary=vocabulary, num_unknown=num_unknown)


def _read_words(path: Path) -> list[str]:
    try:
        text = read_bytes(path, name=NAME).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text at byte {error.start:,}; save it as UTF-8") from error
    words = text.replace("\n", f" {END_OF_SENTENCE} ").split()
    if not words:
        raise UserError(f"{path} is empty; put a text there, one sentence per line")
    return words


def _no_unknown(path: Path, words: list[str], position: dict[str, int], train: Path) -> str:
    index = next(i for i, word in enumerate(words) if word not in position)
    line = words[:index].count(END_OF_SENTENCE) + 1
    return (
        f"{path}, line {line}: the word {words[index]!r} does not occur in {train.name}, which has no {UNKNOWN} to "
        f"stand for it; replace rare words in {train.name} by {UNKNOWN}, or new ones in {path.name}"
    )
