import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers_data import idx, write_mnist
from isotherm.data import mnist
from isotherm.errors import UserError

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def replace(folder: Path, name: str, array: np.ndarray) -> None:
    (folder / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx(array)))


def check(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for (images, labels), prefix in zip(mnist.load(folder), ("train", "t10k"), strict=True):
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert images.shape == (len(labels), 28, 28)
        np.testing.assert_array_equal(images.numpy(), arrays[f"{prefix}-images-idx3-ubyte"])
        np.testing.assert_array_equal(labels.numpy(), arrays[f"{prefix}-labels-idx1-ubyte"])


def test_reads_what_was_written(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path)
    check(tmp_path, arrays)
    mnist.load(tmp_path)[0][0][0, 0, 0] = 0  # a tensor of its own, that may be written to


def test_unpacked_files(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path)
    for path in list((tmp_path / "mnist").iterdir())[:2]:
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    check(tmp_path, arrays)


def test_the_gzipped_file_is_read_where_both_are_there(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path)
    (tmp_path / "mnist" / TRAIN_IMAGES).write_bytes(b"something else")
    check(tmp_path, arrays)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data folder .* does not exist; run `isotherm data fetch mnist`"):
        mnist.load(tmp_path / "none")
    with pytest.raises(UserError, match=r"mnist does not exist; .*--data .*ISOTHERM_DATA"):
        mnist.load(tmp_path)


@pytest.mark.parametrize("prefix", ["train", "t10k"])
@pytest.mark.parametrize("part", ["images-idx3", "labels-idx1"])
def test_one_file_missing(tmp_path: Path, prefix: str, part: str) -> None:
    write_mnist(tmp_path)
    (tmp_path / "mnist" / f"{prefix}-{part}-ubyte.gz").unlink()
    with pytest.raises(UserError, match=rf"{prefix}-{part}-ubyte\.gz is missing; run `isotherm data fetch mnist`"):
        mnist.load(tmp_path)


def test_truncated_gzip(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=rf"{TRAIN_IMAGES}\.gz is truncated"):
        mnist.load(tmp_path)


def test_images_and_labels_exchanged(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path)
    replace(tmp_path, TRAIN_IMAGES, arrays[TRAIN_LABELS])
    with pytest.raises(UserError, match=r"begins with the bytes 00 00 08 01, expected 00 00 08 03"):
        mnist.load(tmp_path)
    write_mnist(tmp_path)
    replace(tmp_path, TRAIN_LABELS, arrays[TRAIN_IMAGES])
    with pytest.raises(UserError, match=r"begins with the bytes 00 00 08 03, expected 00 00 08 01"):
        mnist.load(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "mnist" / f"{TRAIN_IMAGES}.gz").unlink()
    (tmp_path / "mnist" / TRAIN_IMAGES).touch()
    with pytest.raises(UserError, match="begins with the bytes of an empty file"):
        mnist.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], r"has 5,487 bytes of values, expected 5,488 for the shape \(7, 28, 28\)"),
        (lambda content: content + b"x", "has 5,489 bytes of values, expected 5,488"),
        (lambda content: content[:10], "has 0 bytes of values, expected a whole header"),
    ],
)
def test_length_against_the_header(tmp_path: Path, change: object, message: str) -> None:
    arrays = write_mnist(tmp_path)
    content = change(idx(arrays[TRAIN_IMAGES]))  # type: ignore[operator]
    (tmp_path / "mnist" / f"{TRAIN_IMAGES}.gz").write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=message):
        mnist.load(tmp_path)


def test_images_of_another_size(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    replace(tmp_path, TRAIN_IMAGES, np.zeros((7, 32, 30), dtype=np.uint8))
    with pytest.raises(UserError, match=r"train-images.*holds images of 32 × 30 pixels, expected 28 × 28"):
        mnist.load(tmp_path)


def test_counts_must_agree(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    replace(tmp_path, TRAIN_LABELS, np.zeros(6, dtype=np.uint8))
    with pytest.raises(UserError, match=r"has 7 images but .*train-labels-idx1-ubyte\.gz 6 labels"):
        mnist.load(tmp_path)


def test_no_images_at_all(tmp_path: Path) -> None:
    write_mnist(tmp_path, num_test=0)
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte\.gz holds no images"):
        mnist.load(tmp_path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    replace(tmp_path, TRAIN_LABELS, np.array([0, 9, 3, 10, 1, 8, 2], dtype=np.uint8))
    with pytest.raises(UserError, match=r"train-labels.*the label at index 3 is 10, expected 0 to 9"):
        mnist.load(tmp_path)
