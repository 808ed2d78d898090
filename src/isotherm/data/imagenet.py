"""ImageNet, or any images in its layout, decoded on demand: class folders, or tar shards.

Folders: `train/<class>/*.JPEG` and `val/<class>/*.JPEG`; the classes in sorted order are the labels 0, 1, and so on.
Shards: `train-*.tar` and `val-*.tar`, plain tar with `KEY.jpg` (or `.jpeg`, `.png`) and `KEY.cls`, a whole number, for
every image. Shards are not unpacked: their headers are read once, and images are then read at their offsets.
"""

from __future__ import annotations

import io
import math
import os
import tarfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from isotherm.core.machine import num_cores
from isotherm.core.records import content_hash
from isotherm.data.files import require_folder
from isotherm.data.tar_headers import CarefulHeader
from isotherm.errors import UserError

NAME = "imagenet"

_SUFFIXES = (".jpeg", ".jpg", ".png")
_EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "La", "CMYK", "YCbCr", "HSV", "LAB")
_MAX_LABEL_BYTES = 6  # a million classes is enough
_MIN_AREA = 0.08  # of the image, in a random crop
_MAX_RATIO = 4 / 3  # width over height of a random crop, and its inverse the other way
_NUM_TRIES = 10


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where an image is: a file of its own, or `size` bytes at `offset` in a shard."""

    file: str  # relative to the source's folder
    label: int
    member: str | None = None
    offset: int = 0
    size: int = 0


class ImageSource:
    """Images on disk that look like a uint8 tensor (n, 3, s, s), decoded when they are fetched.

    Decoding runs in threads: Pillow releases the GIL while it decodes and resizes, so threads use all cores, start at
    once, and hand over pixels without a copy. They start with the first fetch, again in a forked or spawned process,
    and end with `close`.
    """

    def __init__(
        self,
        folder: Path,
        entries: Sequence[_Entry],
        *,
        classes: tuple[str, ...],
        image_size: int,
        num_workers: int | None = None,
    ) -> None:
        if image_size < 1:
            raise UserError(f"image_size={image_size} is not a number of pixels; use e.g. 224")
        if num_workers is not None and num_workers < 0:
            raise UserError(f"num_workers={num_workers} is negative; use 0 to decode without threads")
        self.classes = classes
        self.image_size = image_size
        self.num_workers = num_cores() if num_workers is None else num_workers
        self._folder = folder
        self._entries = tuple(entries)
        self._pool: ThreadPoolExecutor | None = None
        self._pool_process = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_pool": None}

    @property
    def shape(self) -> torch.Size:
        """(n, 3, s, s): the shape of all images together."""
        return torch.Size((len(self), 3, self.image_size, self.image_size))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the pixels, `torch.uint8`."""
        return torch.uint8

    def name(self, index: int) -> str:
        """Return the path of an image inside the data set's folder; for a shard, shard and member."""
        entry = self._entries[index]
        return entry.file if entry.member is None else f"{entry.file}/{entry.member}"

    def identity(self) -> str:
        """Return a content hash of the images' names, not of their pixels.

        It covers the sorted names, sizes in bytes and labels of all images, the list of classes, and the image size.
        An image replaced by another of the same name and size goes unnoticed: reading 140 GB for every study would cost
        more than it protects.
        """
        images = sorted([self.name(i), self._size(i), entry.label] for i, entry in enumerate(self._entries))
        return content_hash({"classes": list(self.classes), "image_size": self.image_size, "images": images})

    def fetch(self, indices: Sequence[int] | np.ndarray, *, seed: int | None = None, step: int = 0) -> Tensor:
        """Return images (len(indices), 3, s, s) in uint8.

        Args:
            indices: positions in the source; repetition is allowed.
            seed: if given, every image is cropped and mirrored at random: a rectangle of 8 to 100 % of its area and of
                ratio 3/4 to 4/3 (log-uniform; after ten rectangles that do not fit, the largest centred one), resized
                bilinearly, mirrored left to right half the time. Without a seed: the short side is resized to 256/224
                of the image size, then the centre is cropped.
            step: of the training, 0 or more. The random numbers of an image derive from (seed, step, its position in
                `indices`), so the order in which threads decode changes nothing.

        Raises:
            UserError: an image is missing, damaged or too large; the message names it.
        """
        chosen = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"indices from {chosen.min()} to {chosen.max()} into {len(self)} images")
        pixels = np.empty((len(chosen), 3, self.image_size, self.image_size), dtype=np.uint8)

        def fill(slot: int) -> None:
            generator = None if seed is None else np.random.default_rng([seed, step, slot])
            pixels[slot] = self._pixels(int(chosen[slot]), generator)

        if self.num_workers:
            for _ in self._threads().map(fill, range(len(chosen))):
                pass
        else:
            for slot in range(len(chosen)):
                fill(slot)
        return torch.from_numpy(pixels)

    def close(self) -> None:
        """Stop the threads; a later fetch starts them again."""
        if self._pool is not None and self._pool_process == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool_process != os.getpid():  # threads do not survive a fork
            self._pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="isotherm-images")
            self._pool_process = os.getpid()
        return self._pool

    def _size(self, index: int) -> int:
        entry = self._entries[index]
        return entry.size if entry.member is not None else (self._folder / entry.file).stat().st_size

    def _pixels(self, index: int, generator: np.random.Generator | None) -> np.ndarray:
        try:
            image = _decode(self._content(index))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise UserError(f"{self._location(index)} has too many pixels to be safe: {error}; remove it") from error
        except FileNotFoundError as error:
            raise UserError(f"{self._location(index)} has disappeared since the folder was read; restore it") from error
        except Exception as error:  # a damaged image can raise nearly anything
            raise UserError(
                f"{self._location(index)} cannot be decoded ({type(error).__name__}: {error}); replace or remove it"
            ) from error
        if generator is None:
            image = _centre_crop(image, self.image_size)
        else:
            image = _random_crop(image, self.image_size, generator)
        return np.asarray(image).transpose(2, 0, 1)

    def _location(self, index: int) -> str:
        entry = self._entries[index]
        path = self._folder / entry.file
        return str(path) if entry.member is None else f"image {entry.member} of the shard {path}"

    def _content(self, index: int) -> bytes:
        entry = self._entries[index]
        with (self._folder / entry.file).open("rb") as file:
            if entry.member is None:
                return file.read()
            file.seek(entry.offset)
            return file.read(entry.size)


ImageSplit = tuple[ImageSource, Tensor]


def load(folder: Path, *, image_size: int = 224, num_workers: int | None = None) -> tuple[ImageSplit, ImageSplit]:
    """Return (train, validation), each a pair of an image source and labels (n,) in int64.

    Args:
        folder: the data folder; `train` and `val`, or the shards, are in `imagenet` inside it.
        image_size: height and width of the returned images, in pixels.
        num_workers: decoding threads, by default one per core; 0 for none.

    Raises:
        UserError: a split is missing, empty or in both layouts, the classes of the two differ, or a shard is damaged.
    """
    own = require_folder(folder, NAME)
    (train, train_classes), (val, val_classes) = _scan(own, "train"), _scan(own, "val")
    if (train_classes is None) != (val_classes is None):
        raise UserError(f"{own} has class folders for one split and shards for the other; use one layout for both")
    if train_classes is None:
        num_classes = 1 + max(entry.label for entry in train)
        _check_shard_labels(own, val, num_classes)
        classes = tuple(str(label) for label in range(num_classes))
    else:
        _check_same_classes(own, train_classes, val_classes or ())
        classes = train_classes
    first, second = (
        (
            ImageSource(own, entries, classes=classes, image_size=image_size, num_workers=num_workers),
            torch.tensor([entry.label for entry in entries]),
        )
        for entries in (train, val)
    )
    return first, second


def _scan(own: Path, split: str) -> tuple[list[_Entry], tuple[str, ...] | None]:
    """Return the images of a split, and its classes if it has class folders."""
    shards = sorted(own.glob(f"{split}-*.tar"))
    path = own / split
    if path.is_dir() and shards:
        raise UserError(f"{path} and {shards[0]} are both there; keep one of the two")
    if shards:
        return [entry for shard in shards for entry in _scan_shard(shard)], None
    if not path.is_dir():
        raise UserError(
            f"{path} is missing, and there are no shards {split}-*.tar in {own}; put ImageNet there yourself "
            f"(`isotherm data fetch {NAME}` says from where), or name the folder that has {NAME}/ with --data or the "
            "environment variable ISOTHERM_DATA"
        )
    return _scan_classes(path)


def _scan_classes(path: Path) -> tuple[list[_Entry], tuple[str, ...]]:
    classes = tuple(sorted(entry.name for entry in os.scandir(path) if entry.is_dir()))
    if not classes:
        raise UserError(f"{path} has no class folders; put one folder for every class there, with its images inside")
    entries = []
    for label, name in enumerate(classes):
        with os.scandir(path / name) as files:
            images = sorted(file.name for file in files if _is_image(file))
        if not images and path.name == "train":
            raise UserError(f"{path / name} has no images ({', '.join(_SUFFIXES)}); add some or remove the folder")
        entries += [_Entry(file=f"{path.name}/{name}/{image}", label=label) for image in images]
    if not entries:
        raise UserError(f"the class folders in {path} have no images ({', '.join(_SUFFIXES)}); add some")
    return entries, classes


def _is_image(file: os.DirEntry[str]) -> bool:
    if not file.name.lower().endswith(_SUFFIXES):
        return False
    if not file.is_file():
        raise UserError(f"{file.path} is a pipe, a device or a broken link, not an image; remove it")
    return True


def _check_same_classes(own: Path, train: tuple[str, ...], val: tuple[str, ...]) -> None:
    if different := sorted(set(train) ^ set(val)):
        there, absent = ("train", "val") if different[0] in train else ("val", "train")
        raise UserError(
            f"the class {different[0]} has a folder in {own / there} but none in {own / absent}; both splits need the "
            "same class folders, since their order gives the labels"
        )


def _check_shard_labels(own: Path, entries: list[_Entry], num_classes: int) -> None:
    for entry in entries:
        if entry.label >= num_classes:
            raise UserError(
                f"{own / entry.file}: {entry.member} has label {entry.label}, but the training shards end at "
                f"{num_classes - 1}; use the same class numbers in both splits"
            )


def _scan_shard(shard: Path) -> list[_Entry]:
    """Return the images of a shard with their labels, from its headers alone."""
    if not shard.is_file():
        raise UserError(f"{shard} is not a regular file; put a tar file there")
    num_bytes = shard.stat().st_size
    images: dict[str, tarfile.TarInfo] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:", tarinfo=CarefulHeader) as tar:
            for member in tar:
                if not member.isfile() or member.issparse():
                    continue
                if not (member.size >= 0 and member.offset_data + member.size <= num_bytes):
                    raise UserError(
                        f"{shard} has {num_bytes:,} bytes, and its header of {member.name!r} claims {member.size:,} "
                        f"from byte {member.offset_data:,} on; the shard was cut off: replace it"
                    )
                key, extension = _key_and_extension(member.name)
                if extension in _SUFFIXES:
                    if key in images:
                        raise UserError(f"{shard}: the key {key} has two images; give every image its own key")
                    images[key] = member
                elif extension == ".cls":
                    labels[key] = _read_label(tar, member, shard)
    except UserError:
        raise
    except Exception as error:  # damaged headers raise many kinds
        raise UserError(
            f"{shard} is not an intact, uncompressed tar file ({error}); replace it, or unpack its compression"
        ) from error
    if odd := sorted(images.keys() ^ labels.keys()):
        lacks = "label (.cls)" if odd[0] in images else "image (.jpg, .jpeg or .png)"
        raise UserError(f"{shard}: the key {odd[0]} has no {lacks}; every image needs its label beside it")
    if not images:
        raise UserError(f"{shard} has no images; replace or remove it")
    return [
        _Entry(file=shard.name, label=labels[key], member=member.name, offset=member.offset_data, size=member.size)
        for key, member in images.items()
    ]


def _key_and_extension(name: str) -> tuple[str, str]:
    """Return what precedes the first dot of a file name, with its folders, and the rest in lower case.

    >>> _key_and_extension("a.b/0001.JPEG")
    ('a.b/0001', '.jpeg')
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{extension.lower()}"


def _read_label(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> int:
    file = tar.extractfile(member)
    assert file is not None  # a regular file
    text = file.read(_MAX_LABEL_BYTES + 1).strip()
    if not text.isdigit() or len(text) > _MAX_LABEL_BYTES:
        raise UserError(f"{shard}: {member.name} holds {text!r}, expected a class number, 0 or more")
    return int(text)


_PNG = b"\x89PNG\r\n\x1a\n"


def _require_whole_png(content: bytes) -> None:
    """Refuse a PNG that is cut off or damaged, which Pillow may fill up with black."""
    place = len(_PNG)
    while place + 12 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        kind, end = content[place + 4 : place + 8], place + 8 + length
        if zlib.crc32(content[place + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            raise ValueError(f"its part at byte {place:,} is damaged or cut off")
        if kind == b"IEND":
            return
        place = end + 4
    raise ValueError(f"it is cut off after {len(content):,} bytes")


def _decode(content: bytes) -> Image.Image:
    if content.startswith(_PNG):
        _require_whole_png(content)
    with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise Image.DecompressionBombError(f"{image.width} × {image.height}, the limit is {limit:,}")
        if image.mode not in _EIGHT_BIT_MODES:
            raise ValueError(f"mode {image.mode} has more than 8 bits a channel")
        if "transparency" in image.info:  # else Pillow warns
            return image.convert("RGBA").convert("RGB")
        return image.convert("RGB")


def _centre_crop(image: Image.Image, size: int) -> Image.Image:
    """Return the image with its short side resized to 256/224 of `size` and cropped, in one step."""
    short = round(size * 256 / 224)
    width, height = (round(side * short / min(image.size)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    across, down = image.width / width, image.height / height  # pixels of the image per pixel of the result
    box = (left * across, top * down, (left + size) * across, (top + size) * down)
    return image.resize((size, size), Image.Resampling.BILINEAR, box=box)


def _random_crop(image: Image.Image, size: int, generator: np.random.Generator) -> Image.Image:
    box = _random_box(*image.size, generator)
    image = image.crop(box).resize((size, size), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if generator.random() < 0.5 else image


def _random_box(width: int, height: int, generator: np.random.Generator) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a random rectangle of at least 8 % of the area, ratio 3/4 to 4/3."""
    limit = math.log(_MAX_RATIO)
    for _ in range(_NUM_TRIES):
        area = generator.uniform(_MIN_AREA, 1) * width * height
        ratio = math.exp(generator.uniform(-limit, limit))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = int(generator.integers(width - across, endpoint=True))
            top = int(generator.integers(height - down, endpoint=True))
            return left, top, left + across, top + down
    across, down = min(width, round(height * _MAX_RATIO)), min(height, round(width * _MAX_RATIO))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down
