"""MNIST from its four idx files, gzipped as published or unpacked."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from isotherm.data.files import fetch_again, read_bytes, read_gzip, require_folder
from isotherm.data.mnist1d import Split
from isotherm.errors import UserError

NAME = "mnist"
IMAGE_SHAPE = (28, 28)
NUM_CLASSES = 10

# Many times MNIST's largest file; a file that unpacks to more is none of its files.
MOST_BYTES = 2**28

_UNSIGNED_BYTE = 0x08  # the idx format's type code


def load(folder: Path) -> tuple[Split, Split]:
    """Return (train, test), each a pair of images (n, 28, 28) in uint8 and labels (n,) in int64.

    Args:
        folder: the data folder; the files are in `mnist` inside it, `train-images-idx3-ubyte.gz` and so on, or the
            same without `.gz`.

    Raises:
        UserError: a file is missing, damaged or not MNIST's.
    """
    own = require_folder(folder, NAME)
    return _load_split(own, "train"), _load_split(own, "t10k")


def _load_split(own: Path, prefix: str) -> Split:
    image_path, images = _read_idx(own / f"{prefix}-images-idx3-ubyte.gz", num_dimensions=3)
    label_path, labels = _read_idx(own / f"{prefix}-labels-idx1-ubyte.gz", num_dimensions=1)
    if images.shape[1:] != IMAGE_SHAPE:
        raise UserError(
            f"{image_path} holds images of {images.shape[1]} × {images.shape[2]} pixels, expected 28 × 28; "
            f"put the MNIST files there"
        )
    if len(images) != len(labels):
        raise UserError(
            f"{image_path} has {len(images):,} images but {label_path} {len(labels):,} labels; "
            f"remove both and run `isotherm data fetch {NAME}`"
        )
    if len(images) == 0:
        raise UserError(f"{image_path} holds no images; {fetch_again(image_path, NAME)}")
    if int(labels.max()) >= NUM_CLASSES:
        index = int((labels >= NUM_CLASSES).argmax())
        raise UserError(
            f"{label_path}: the label at index {index} is {labels[index]}, expected 0 to {NUM_CLASSES - 1}; "
            f"{fetch_again(label_path, NAME)}"
        )
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype(np.int64))


def _read_idx(path: Path, *, num_dimensions: int) -> tuple[Path, np.ndarray]:
    """Return the path that was read, unpacked if there is no gzipped file, and its array of bytes."""
    plain = path.with_suffix("")
    if not path.exists() and plain.exists():
        path, content = plain, read_bytes(plain, name=NAME, at_most=MOST_BYTES)
    else:
        content = read_gzip(path, name=NAME, at_most=MOST_BYTES)
    expected = bytes([0, 0, _UNSIGNED_BYTE, num_dimensions])
    if content[:4] != expected:
        raise UserError(
            f"{path} begins with the bytes {content[:4].hex(' ') or 'of an empty file'}, expected {expected.hex(' ')} "
            f"for an idx file of {num_dimensions} dimension{'s' * (num_dimensions > 1)}; {fetch_again(path, NAME)}"
        )
    start = 4 + 4 * num_dimensions
    shape = tuple(int(n) for n in np.frombuffer(content[4:start], dtype=">u4")) if len(content) >= start else ()
    if not shape or len(content) - start != math.prod(shape):
        needed = f"{math.prod(shape):,} for the shape {shape} its header gives" if shape else "a whole header"
        raise UserError(
            f"{path} has {max(len(content) - start, 0):,} bytes of values, expected {needed}; {fetch_again(path, NAME)}"
        )
    return path, np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
