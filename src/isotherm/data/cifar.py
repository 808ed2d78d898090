"""CIFAR-10 and CIFAR-100 from the binary layout, or from the python layout if only that is present."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from isotherm.data import restricted_pickle
from isotherm.data.files import fetch_again, read_bytes, remedy, require_folder
from isotherm.data.mnist1d import Split
from isotherm.errors import UserError

# Examples in all files of a split; any other number means that a file is not the published one.
NUM_EXAMPLES = {"train": 50_000, "test": 10_000}

# CIFAR-100's training file has 154 MB.
MOST_BYTES = 2**28

_PIXELS = 3 * 32 * 32

_Arrays = tuple[np.ndarray, np.ndarray]

_BINARY = {
    10: {
        "train": [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)],
        "test": ["cifar-10-batches-bin/test_batch.bin"],
    },
    100: {"train": ["cifar-100-binary/train.bin"], "test": ["cifar-100-binary/test.bin"]},
}
_PYTHON = {
    10: {
        "train": [f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)],
        "test": ["cifar-10-batches-py/test_batch"],
    },
    100: {"train": ["cifar-100-python/train"], "test": ["cifar-100-python/test"]},
}


def load(folder: Path, *, num_classes: Literal[10, 100]) -> tuple[Split, Split]:
    """Return (train, test), each a pair of images (n, 3, 32, 32) in uint8 and labels (n,) in int64.

    The labels of CIFAR-100 are the 100 fine ones.

    Args:
        folder: the data folder; the files are in `cifar10` or `cifar100` inside it, in the layout of the archive
            `cifar-10-binary.tar.gz` or `cifar-100-binary.tar.gz`, or else of the python archives.
        num_classes: 10 or 100, for the data set of that name.

    Raises:
        UserError: a file is missing, damaged or not CIFAR's.
    """
    name = f"cifar{num_classes}"
    own = require_folder(folder, name)
    train, test = (_load_split(own, name, num_classes, split) for split in ("train", "test"))
    return train, test


def _load_split(own: Path, name: str, num_classes: int, split: str) -> Split:
    files = [own / path for path in _BINARY[num_classes][split]]
    pickles = [own / path for path in _PYTHON[num_classes][split]]
    if files[0].parent.is_dir() or not pickles[0].parent.is_dir():
        parts = [_read_binary(path, name, num_classes) for path in files]
    else:
        parts = [_read_pickle(path, name, num_classes) for path in pickles]
        files = pickles
    expected = NUM_EXAMPLES[split] // len(files)
    for path, (images, labels) in zip(files, parts, strict=True):
        if len(images) != expected:
            raise UserError(f"{path} holds {len(images):,} images, expected {expected:,}; {fetch_again(path, name)}")
        if int(labels.max()) >= num_classes:
            index = int((labels >= num_classes).argmax())
            raise UserError(
                f"{path}: the label at index {index} is {labels[index]}, expected 0 to {num_classes - 1}; "
                f"{fetch_again(path, name)}"
            )
    images = np.concatenate([images for images, _ in parts]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(np.concatenate([labels for _, labels in parts]).astype(np.int64))


def _read_binary(path: Path, name: str, num_classes: int) -> _Arrays:
    """Return pixels (n, 3072) and labels (n,) of a file of records: label bytes, then red, green and blue planes."""
    content = read_bytes(path, name=name, at_most=MOST_BYTES)
    num_labels = 1 if num_classes == 10 else 2  # CIFAR-100 has the coarse label first, then the fine one
    record = num_labels + _PIXELS
    if not content or len(content) % record:
        raise UserError(
            f"{path} has {len(content):,} bytes, expected a multiple of {record:,}, the size of a record; "
            f"{fetch_again(path, name)}"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return records[:, num_labels:], records[:, num_labels - 1]


def _read_pickle(path: Path, name: str, num_classes: int) -> _Arrays:
    """Return pixels (n, 3072) and labels (n,) of a file in the python layout."""
    if not path.is_file():
        raise UserError(f"{path} is missing; {remedy(name)}")
    content = restricted_pickle.read(read_bytes(path, name=name, at_most=MOST_BYTES), path)
    key = "labels" if num_classes == 10 else "fine_labels"
    pixels, labels = content.get("data"), content.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise UserError(
            f"{path} has no array 'data' of {_PIXELS:,} bytes an image; use the binary layout of the data set instead"
        )
    if (
        not isinstance(labels, list)
        or len(labels) != len(pixels)
        or not all(type(label) is int and 0 <= label < 256 for label in labels)
    ):
        raise UserError(
            f"{path} has no list {key!r} of one class number for each of its {len(pixels):,} images; "
            "use the binary layout of the data set instead"
        )
    return pixels, np.array(labels, dtype=np.uint8)
