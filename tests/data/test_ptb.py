from pathlib import Path

import pytest
import torch

from isotherm.data import ptb
from isotherm.errors import UserError

TRAIN = " the cat <unk> \n the dog sees the cat \n"


def write(folder: Path, *, train: str = TRAIN, valid: str = " the cat \n", test: str = " a dog \n") -> Path:
    (folder / "ptb").mkdir(exist_ok=True)
    for split, text in (("train", train), ("valid", valid), ("test", test)):
        (folder / "ptb" / f"ptb.{split}.txt").write_text(text, encoding="utf-8", newline="")
    return folder


def words(corpus: ptb.Corpus, split: str) -> list[str]:
    return [corpus.vocabulary[i] for i in getattr(corpus, split)]


def test_tokens_and_vocabulary(tmp_path: Path) -> None:
    corpus = ptb.load(write(tmp_path))
    assert corpus.vocabulary == ("the", "<eos>", "cat", "<unk>", "dog", "sees")  # by frequency, then by word
    assert words(corpus, "train") == ["the", "cat", "<unk>", "<eos>", "the", "dog", "sees", "the", "cat", "<eos>"]
    assert words(corpus, "valid") == ["the", "cat", "<eos>"]
    assert words(corpus, "test") == ["<unk>", "dog", "<eos>"]
    assert corpus.num_unknown == {"train": 0, "valid": 0, "test": 1}
    for split in ("train", "valid", "test"):
        tokens = getattr(corpus, split)
        assert tokens.dtype == torch.int64
        assert tokens.ndim == 1


def test_the_vocabulary_comes_from_training_alone(tmp_path: Path) -> None:
    corpus = ptb.load(write(tmp_path, valid="bird bird bird cat\n", test="bird\n"))
    assert "bird" not in corpus.vocabulary
    assert corpus.num_unknown == {"train": 0, "valid": 3, "test": 1}


def test_written_unknowns_are_not_counted(tmp_path: Path) -> None:
    assert ptb.load(write(tmp_path, valid="<unk> cat\n")).num_unknown["valid"] == 0


def test_one_end_for_every_newline(tmp_path: Path) -> None:
    corpus = ptb.load(write(tmp_path, train="a b\n\na\n<unk>", valid="a\r\nb\r\n", test="a"))
    assert words(corpus, "train") == ["a", "b", "<eos>", "<eos>", "a", "<eos>", "<unk>"]
    assert words(corpus, "valid") == ["a", "<eos>", "b", "<eos>"]
    assert words(corpus, "test") == ["a"]


def test_no_unknown_is_needed_where_no_word_is_new(tmp_path: Path) -> None:
    corpus = ptb.load(write(tmp_path, train="a b\n", valid="b\n", test="a a\n"))
    assert corpus.vocabulary == ("<eos>", "a", "b")
    assert corpus.test.tolist() == [1, 1, 0]


def test_a_new_word_without_unknown_is_refused(tmp_path: Path) -> None:
    write(tmp_path, train="a b\n", valid="b\n", test="a\na zebra\n")
    message = r"ptb\.test\.txt, line 2: the word 'zebra' does not occur in ptb\.train\.txt, which has no <unk>"
    with pytest.raises(UserError, match=message):
        ptb.load(tmp_path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data folder .* does not exist; run `isotherm data fetch ptb`"):
        ptb.load(tmp_path / "none")
    write(tmp_path)
    (tmp_path / "ptb" / "ptb.valid.txt").unlink()
    with pytest.raises(UserError, match=r"ptb\.valid\.txt is missing; run `isotherm data fetch ptb`.*ISOTHERM_DATA"):
        ptb.load(tmp_path)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_empty(tmp_path: Path, split: str) -> None:
    write(tmp_path, **{split: "  "})
    with pytest.raises(UserError, match=rf"ptb\.{split}\.txt is empty"):
        ptb.load(tmp_path)


def test_not_utf8(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "ptb" / "ptb.test.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match=r"ptb\.test\.txt is not UTF-8 text at byte 3"):
        ptb.load(tmp_path)


def test_utf8_is_read(tmp_path: Path) -> None:
    assert "café" in ptb.load(write(tmp_path, train="café <unk>\n")).vocabulary
