"""Texts as windows of characters: nothing is lost, nothing of the test part is trained on, errors say what helps."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

from isotherm.data import text
from isotherm.errors import UserError


def test_the_packages_own_text_is_always_the_same() -> None:
    generated = text.generated()
    assert len(generated) == text.NUM_CHARACTERS
    digest = hashlib.sha256(generated.encode()).hexdigest()
    assert digest == "a85fe19e55f96b0dfdae28a83947c558f315c8187a128839c89398c110ca7310"
    assert len(set(generated)) == 40
    assert text.generated(500) == generated[:500]
    assert text.generated(500, seed=1) != generated[:500]


def test_its_subjects_and_verbs_agree() -> None:
    clauses = text.generated(50_000).replace("\n", " ").split(".")
    assert not [c for c in clauses if " rivers follows " in c or " river follow " in c or " a empty " in c]
    assert any(" rivers follow " in c for c in clauses)


def test_characters_become_tokens_and_back(tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    written = "Grün ist der Baum, 木 auch.\n" * 10
    path.write_text(written, encoding="utf-8")
    loaded = text.load(path)
    assert "".join(loaded.vocabulary[t] for t in torch.cat([loaded.train, loaded.test])) == written
    assert len(loaded.test) == round(0.1 * len(written))
    assert list(loaded.vocabulary) == sorted(set(written))


def test_windows_hold_every_token_once_and_its_follower() -> None:
    tokens = torch.arange(23)
    x, y = text.windows(tokens, 5, part="training")
    assert x.flatten().tolist() == list(range(20))
    assert torch.equal(y, x + 1)


@pytest.mark.parametrize("context", [2, 4, 10])
def test_windows_of_another_length_hold_the_same_text(context: int) -> None:
    split = text.windows(torch.arange(23), 5, part="training")
    x, y = text.rewindowed(split, context, part="training")
    assert x.flatten().tolist() == list(range(20 // context * context))
    assert torch.equal(y, x + 1)


@pytest.mark.parametrize("context", [1, 7, 32, 33, 64, 100])
def test_the_shortest_text_is_just_long_enough(context: int) -> None:
    num = text.shortest(context)
    for length, is_enough in ((num, True), (num - 1, False)):
        test = text.of_string("ab" * length, name="it")
        part = test.test[: round(text.TEST_FRACTION * length)]
        if is_enough:
            text.windows(part, context, part="test")
        else:
            with pytest.raises(UserError, match=f"a text of {num:,} characters or more, or a smaller context"):
                text.windows(part, context, part="test")


def test_a_text_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: it takes no room on the disk
    with pytest.raises(UserError, match=r"large\.txt has 1,099,511,627,776 bytes, more than the 268,435,456"):
        text.load(path)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content, words in [
        (b"", "holds 0 different characters"),
        (b"aaaa", "holds 1 different characters"),
        (b"ab\xff", "is not UTF-8 text at byte 2"),
    ]:
        path.write_bytes(content)
        with pytest.raises(UserError, match=words):
            text.load(path)
    with pytest.raises(UserError, match=r"cannot be read: .* give --data a text file"):
        text.load(tmp_path / "missing.txt")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe or a device, not a file"):
        text.load(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"context=0\.5 is not a positive whole number"):
        text.windows(torch.arange(9), 0.5, part="test")
