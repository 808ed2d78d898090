import math
import multiprocessing
import os
import pickle
import struct
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from helpers_data import encoded, link, png, tar_bytes
from isotherm.data import imagenet
from isotherm.data.imagenet import ImageSource
from isotherm.errors import UserError

CLASSES = ("n01", "n02", "n10")


def picture(seed: int, width: int = 40, height: int = 30) -> np.ndarray:
    """Return a smooth picture (height, width, 3) whose places and seeds can be told apart."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return np.stack([200 * x, 200 * y, np.full_like(x, 5 * seed)], axis=2).astype(np.uint8)


def write_folders(folder: Path, *, suffix: str = ".JPEG") -> Path:
    """Write two training images and one validation image for each of three classes, as PNG under ImageNet's names."""
    seed = 0
    for split, count in (("train", 2), ("val", 1)):
        for name in CLASSES:
            (folder / "imagenet" / split / name).mkdir(parents=True)
            for i in range(count):
                content = png(picture(seed))
                (folder / "imagenet" / split / name / f"{name}_{i}{suffix}").write_bytes(content)
                seed += 1
    return folder


def write_shards(folder: Path) -> Path:
    """Write the same images in two training shards and one validation shard."""
    own = folder / "imagenet"
    own.mkdir(parents=True)
    members = [{}, {}]
    for seed in range(6):
        members[seed // 3] |= {
            f"part.{seed // 3}/{seed:04}.png": png(picture(seed)),
            f"part.{seed // 3}/{seed:04}.cls": b"%d\n" % (seed // 2),
        }
    for i, content in enumerate(members):
        (own / f"train-{i:03}.tar").write_bytes(tar_bytes(content, mode="w"))
    val = {}
    for seed in range(6, 9):
        val |= {f"{seed}.cls": b"%d" % (seed - 6), f"{seed}.JPG": png(picture(seed)), f"{seed}.json": b"{}"}
    (own / "val-0.tar").write_bytes(tar_bytes(val, mode="w"))
    return folder


def source_of(tmp_path: Path, *contents: bytes, **options: object) -> ImageSource:
    """Return a source of images of one class; the validation set has one plain picture."""
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split / "c").mkdir(parents=True)
    (tmp_path / "imagenet" / "val" / "c" / "0.png").write_bytes(png(picture(0)))
    for i, content in enumerate(contents):
        (tmp_path / "imagenet" / "train" / "c" / f"{i}.png").write_bytes(content)
    return imagenet.load(tmp_path, num_workers=0, **options)[0][0]  # type: ignore[arg-type]


def seeds(images: torch.Tensor) -> list[int]:
    """Return which pictures these are, from their blue plane."""
    assert bool((images[:, 2] == images[:, 2, :1, :1]).all())
    return (images[:, 2, 0, 0] // 5).tolist()


class Listing(list):
    """What `os.scandir` returns: entries one after another, and a context."""

    def __enter__(self) -> "Listing":
        return self

    def __exit__(self, *_: object) -> None: ...


class TestLayouts:
    @pytest.mark.parametrize("write", [write_folders, write_shards])
    def test_images_and_labels(self, tmp_path: Path, write: type) -> None:
        (train, train_labels), (val, val_labels) = imagenet.load(write(tmp_path), image_size=16, num_workers=2)
        assert train.shape == (6, 3, 16, 16)
        assert isinstance(train.shape, torch.Size)
        assert (len(train), len(val)) == (6, 3)
        assert train.dtype == train.fetch([0]).dtype == torch.uint8
        assert (train_labels.tolist(), val_labels.tolist()) == ([0, 0, 1, 1, 2, 2], [0, 1, 2])
        assert train_labels.dtype == torch.int64
        assert seeds(train.fetch(range(6))) == list(range(6))
        assert seeds(train.fetch(np.array([4, 0, 4]))) == [4, 0, 4]
        assert seeds(val.fetch([2, 1])) == [8, 7]
        assert train.fetch([]).shape == (0, 3, 16, 16)
        train.close()
        val.close()

    def test_names_and_classes(self, tmp_path: Path) -> None:
        (train, _), _ = imagenet.load(write_folders(tmp_path / "a"))
        assert (train.name(0), train.classes) == ("train/n01/n01_0.JPEG", CLASSES)
        (train, _), _ = imagenet.load(write_shards(tmp_path / "b"))
        assert (train.name(3), train.classes) == ("train-001.tar/part.1/0003.png", ("0", "1", "2"))

    def test_other_suffixes_and_other_files(self, tmp_path: Path) -> None:
        write_folders(tmp_path, suffix=".jpg")
        (tmp_path / "imagenet" / "train" / "n01" / "notes.txt").touch()
        (tmp_path / "imagenet" / "train" / "list.txt").touch()
        assert len(imagenet.load(tmp_path)[0][0]) == 6

    def test_the_order_of_the_file_system_does_not_matter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_folders(tmp_path)
        for order in (1, -1):

            def scandir(path: Path, order: int = order) -> Listing:
                return Listing(sorted(os.scandir(path), key=lambda entry: entry.name)[::order])

            monkeypatch.setattr(imagenet, "os", SimpleNamespace(**vars(os) | {"scandir": scandir}))
            (train, labels), _ = imagenet.load(tmp_path, image_size=8, num_workers=0)
            assert train.classes == CLASSES
            assert labels.tolist() == [0, 0, 1, 1, 2, 2]
            assert seeds(train.fetch(range(6))) == list(range(6))

    def test_indices_out_of_range(self, tmp_path: Path) -> None:
        (train, _), _ = imagenet.load(write_folders(tmp_path), num_workers=0)
        for wrong in ([6], [-1]):
            with pytest.raises(IndexError):
                train.fetch(wrong)

    def test_bad_options(self, tmp_path: Path) -> None:
        write_folders(tmp_path)
        with pytest.raises(UserError, match="image_size=0"):
            imagenet.load(tmp_path, image_size=0)
        with pytest.raises(UserError, match="num_workers=-1 is negative"):
            imagenet.load(tmp_path, num_workers=-1)


class TestMissing:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"imagenet does not exist; .*--data .*ISOTHERM_DATA"):
            imagenet.load(tmp_path)

    @pytest.mark.parametrize("split", ["train", "val"])
    def test_no_split(self, tmp_path: Path, split: str) -> None:
        write_folders(tmp_path)
        (tmp_path / "imagenet" / split).rename(tmp_path / "elsewhere")
        with pytest.raises(UserError, match=rf"{split} is missing, and there are no shards {split}-\*\.tar.*--data"):
            imagenet.load(tmp_path)

    def test_no_classes(self, tmp_path: Path) -> None:
        (tmp_path / "imagenet" / "train").mkdir(parents=True)
        (tmp_path / "imagenet" / "train" / "0.JPEG").touch()
        with pytest.raises(UserError, match="train has no class folders"):
            imagenet.load(tmp_path)

    def test_empty_classes(self, tmp_path: Path) -> None:
        write_folders(tmp_path)
        for path in (tmp_path / "imagenet" / "val").glob("*/*"):
            path.unlink()
        with pytest.raises(UserError, match=r"val have no images"):
            imagenet.load(tmp_path)
        for path in (tmp_path / "imagenet" / "train" / "n02").iterdir():
            path.unlink()
        with pytest.raises(UserError, match=r"train/n02 has no images"):
            imagenet.load(tmp_path)

    def test_a_class_may_lack_validation_images(self, tmp_path: Path) -> None:
        write_folders(tmp_path)
        (tmp_path / "imagenet" / "val" / "n01" / "n01_0.JPEG").unlink()
        assert imagenet.load(tmp_path)[1][1].tolist() == [1, 2]

    def test_classes_must_agree(self, tmp_path: Path) -> None:
        write_folders(tmp_path)
        (tmp_path / "imagenet" / "val" / "n99").mkdir()
        with pytest.raises(UserError, match=r"class n99 has a folder in .*val but none in .*train"):
            imagenet.load(tmp_path)
        (tmp_path / "imagenet" / "val" / "n99").rename(tmp_path / "imagenet" / "train" / "n00")
        (tmp_path / "imagenet" / "train" / "n00" / "x.png").write_bytes(png(picture(0)))
        with pytest.raises(UserError, match=r"class n00 has a folder in .*train but none in .*val"):
            imagenet.load(tmp_path)

    def test_two_layouts(self, tmp_path: Path) -> None:
        write_folders(tmp_path / "a")
        write_shards(tmp_path / "b")
        shard = tmp_path / "a" / "imagenet" / "val-0.tar"
        (tmp_path / "b" / "imagenet" / "val-0.tar").rename(shard)
        with pytest.raises(UserError, match=r"val and .*val-0\.tar are both there"):
            imagenet.load(tmp_path / "a")
        (tmp_path / "a" / "imagenet" / "val").rename(tmp_path / "elsewhere")
        with pytest.raises(UserError, match="class folders for one split and shards for the other"):
            imagenet.load(tmp_path / "a")


class TestShards:
    def load(self, tmp_path: Path, members: dict[str, object], *, mode: str = "w") -> imagenet.ImageSplit:
        write_shards(tmp_path)
        (tmp_path / "imagenet" / "val-0.tar").write_bytes(tar_bytes(members, mode=mode))  # type: ignore[arg-type]
        return imagenet.load(tmp_path, num_workers=0)[1]

    def test_image_without_label_and_label_without_image(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"val-0\.tar: the key a has no label"):
            self.load(tmp_path / "1", {"a.jpg": b"", "b.jpg": b"", "b.cls": b"0"})
        with pytest.raises(UserError, match=r"val-0\.tar: the key c has no image"):
            self.load(tmp_path / "2", {"c.cls": b"0"})

    @pytest.mark.parametrize("text", [b"", b"-1", b"1.5", b"cat", b"1" * 8])
    def test_labels_that_are_no_class_number(self, tmp_path: Path, text: bytes) -> None:
        with pytest.raises(UserError, match=r"val-0\.tar: a\.cls holds .*, expected a class number"):
            self.load(tmp_path, {"a.jpg": b"", "a.cls": text})

    def test_labels_beyond_training(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"val-0\.tar: a\.jpg has label 3, but the training shards end at 2"):
            self.load(tmp_path, {"a.jpg": b"", "a.cls": b"3"})

    def test_two_images_of_one_key(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"val-0\.tar: the key a has two images"):
            self.load(tmp_path, {"a.jpg": b"", "a.png": b"", "a.cls": b"0"})

    def test_the_first_dot_ends_the_key(self, tmp_path: Path) -> None:
        val, _ = self.load(tmp_path, {"a.png": png(picture(3)), "a.mask.png": b"another kind", "a.cls": b"0"})
        assert (len(val), seeds(val.fetch([0]))) == (1, [3])

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"the key a has no image"):
            self.load(tmp_path, {"a.cls": b"0", "a.jpg": link("a.jpg", "/etc/hostname")})

    def test_no_images(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"val-0\.tar has no images"):
            self.load(tmp_path, {"readme": b""})

    def test_compressed(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"val-0\.tar is not an intact, uncompressed tar file"):
            self.load(tmp_path, {"a.png": png(picture(0)), "a.cls": b"0"}, mode="w:gz")

    def test_broken_off(self, tmp_path: Path) -> None:
        write_shards(tmp_path)
        path = tmp_path / "imagenet" / "train-001.tar"
        path.write_bytes(path.read_bytes()[:700])  # within the first image
        with pytest.raises(UserError, match=r"train-001\.tar"):
            imagenet.load(tmp_path)

    def test_no_tar_at_all(self, tmp_path: Path) -> None:
        write_shards(tmp_path)
        (tmp_path / "imagenet" / "train-001.tar").write_bytes(b"?" * 2000)
        with pytest.raises(UserError, match=r"train-001\.tar is not an intact"):
            imagenet.load(tmp_path)

    def test_damaged_image_names_member_and_shard(self, tmp_path: Path) -> None:
        val, _ = self.load(tmp_path, {"a.jpg": b"no image", "a.cls": b"0"})
        with pytest.raises(UserError, match=r"image a\.jpg of the shard .*val-0\.tar cannot be decoded"):
            val.fetch([0])


class TestDecoding:
    def test_exact_without_resizing(self, tmp_path: Path) -> None:
        """With a short side that is 256/224 of the size already, the centre is cut out and nothing else."""
        generator = np.random.default_rng(0)
        pixels = generator.integers(256, size=(64, 80, 3), dtype=np.uint8)
        image = source_of(tmp_path, png(pixels), image_size=56).fetch([0])[0]
        np.testing.assert_array_equal(image.permute(1, 2, 0), pixels[4:60, 12:68])

    @pytest.mark.parametrize(("width", "height"), [(100, 73), (61, 190), (30, 31), (500, 333)])
    def test_one_step_equals_resize_then_crop(self, tmp_path: Path, width: int, height: int) -> None:
        pixels = np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)
        image = source_of(tmp_path, png(pixels), image_size=56).fetch([0])[0]
        scale = 64 / min(width, height)
        wide, high = round(width * scale), round(height * scale)
        resized = np.asarray(Image.fromarray(pixels).resize((wide, high), Image.Resampling.BILINEAR))
        left, top = (wide - 56) // 2, (high - 56) // 2
        expected = resized[top : top + 56, left : left + 56].astype(int)
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1

    def test_a_very_long_image_needs_no_huge_intermediate(self, tmp_path: Path) -> None:
        pixels = np.zeros((1, 200_000, 3), dtype=np.uint8)
        assert source_of(tmp_path, png(pixels), image_size=56).fetch([0]).shape == (1, 3, 56, 56)

    def test_jpeg(self, tmp_path: Path) -> None:
        pixels = picture(20, 64, 64)
        image = source_of(tmp_path, encoded(Image.fromarray(pixels), "JPEG"), image_size=56).fetch([0])[0]
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - pixels[4:60, 4:60]).max() <= 6

    def test_other_colour_models_become_rgb(self, tmp_path: Path) -> None:
        grey = Image.fromarray(np.full((64, 64), 90, dtype=np.uint8))
        red = Image.fromarray(np.full((64, 64, 3), (200, 10, 10), dtype=np.uint8))
        half = red.copy()
        half.putalpha(128)
        palette = red.convert("P", palette=Image.Palette.ADAPTIVE)
        transparent = encoded_with_transparency(palette)
        contents = [
            encoded(grey, "JPEG"),
            encoded(red.convert("CMYK"), "JPEG"),
            encoded(half, "PNG"),
            encoded(palette, "PNG"),
            transparent,
            encoded(grey.convert("LA"), "PNG"),
            encoded(grey.point(lambda _: 255).convert("1"), "PNG"),
        ]
        images = source_of(tmp_path, *contents, image_size=56).fetch(range(len(contents)))
        assert images.shape == (7, 3, 56, 56)
        colours = images.float().mean(dim=(2, 3)).round().int().tolist()
        for found, expected in zip(colours, [[90] * 3, *[[200, 10, 10]] * 4, [90] * 3, [255] * 3], strict=True):
            np.testing.assert_allclose(found, expected, atol=4)

    def test_sixteen_bits_are_refused(self, tmp_path: Path) -> None:
        deep = Image.fromarray(np.full((64, 64), 40_000, dtype=np.uint16))
        with pytest.raises(UserError, match=r"0\.png cannot be decoded .*mode I;16 has more than 8 bits"):
            source_of(tmp_path, encoded(deep, "PNG")).fetch([0])

    @pytest.mark.parametrize("content", [b"", b"no image", png(picture(0))[:90], b"GIF89a" + bytes(100)])
    def test_damaged_images_are_named(self, tmp_path: Path, content: bytes) -> None:
        source = source_of(tmp_path, png(picture(0)), content)
        with pytest.raises(UserError, match=r"train/c/1\.png cannot be decoded \(.*\); replace or remove it"):
            source.fetch([0, 1])

    def test_truncated_jpeg(self, tmp_path: Path) -> None:
        content = encoded(Image.fromarray(picture(0, 200, 200)), "JPEG")
        with pytest.raises(UserError, match=r"0\.png cannot be decoded .*truncated"):
            source_of(tmp_path, content[: len(content) // 2]).fetch([0])

    def test_formats_other_than_jpeg_and_png_are_not_tried(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be decoded"):
            source_of(tmp_path, encoded(Image.fromarray(picture(0)), "BMP")).fetch([0])

    def test_an_image_that_is_gone(self, tmp_path: Path) -> None:
        source = source_of(tmp_path, png(picture(0)))
        (tmp_path / "imagenet" / "train" / "c" / "0.png").unlink()
        with pytest.raises(UserError, match=r"0\.png has disappeared"):
            source.fetch([0])

    @pytest.mark.parametrize("side", [10_000, 20_000])
    def test_decompression_bombs(self, tmp_path: Path, side: int) -> None:
        """A small file that announces more pixels than Pillow's limit, below and above the double of it."""
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        chunk = b"IHDR" + header
        content = png(picture(0))
        start = content.index(b"IHDR")
        bomb = content[:start] + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[start + len(chunk) + 4 :]
        with pytest.raises(UserError, match=r"0\.png has too many pixels to be safe"):
            source_of(tmp_path, bomb).fetch([0])

    @pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
    def test_the_limit_holds_also_where_pillow_only_warns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        with pytest.raises(UserError, match=r"too many pixels to be safe: 40 × 30, the limit is 1,000"):
            source_of(tmp_path, png(picture(0))).fetch([0])


def encoded_with_transparency(image: Image.Image) -> bytes:
    import io

    file = io.BytesIO()
    image.save(file, format="PNG", transparency=bytes([255] * 4))
    return file.getvalue()


class TestRandomCrops:
    def test_the_same_for_any_number_of_threads(self, tmp_path: Path) -> None:
        write_folders(tmp_path)
        indices = [0, 3, 3, 5, 1, 2, 4, 0] * 4
        results = []
        for num_workers in (0, 1, 4):
            (train, _), _ = imagenet.load(tmp_path, image_size=24, num_workers=num_workers)
            results.append(train.fetch(indices, seed=7, step=11))
            train.close()
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])

    def test_seed_step_and_slot_each_matter(self, tmp_path: Path) -> None:
        (train, _), _ = imagenet.load(write_folders(tmp_path), image_size=24, num_workers=0)
        one = train.fetch([0, 0, 0], seed=1, step=2)
        assert torch.equal(one, train.fetch([0, 0, 0], seed=1, step=2))
        assert not torch.equal(one[0], one[1])
        assert not torch.equal(one[0], train.fetch([0], seed=2, step=2)[0])
        assert not torch.equal(one[0], train.fetch([0], seed=1, step=3)[0])
        assert not torch.equal(one[0], train.fetch([0], seed=2, step=1)[0])
        assert torch.equal(one[1], train.fetch([4, 0], seed=1, step=2)[1])  # its neighbours do not matter
        plain = train.fetch([0, 0])
        assert torch.equal(plain[0], plain[1])

    def test_pixels_against_the_boxes(self, tmp_path: Path) -> None:
        """The pixels are those of the rectangle that the generator of this slot gives, mirrored as it says."""
        (train, _), _ = imagenet.load(write_folders(tmp_path), image_size=24, num_workers=0)
        images = train.fetch([2] * 20, seed=5, step=3)
        mirrored = 0
        for slot in range(20):
            generator = np.random.default_rng([5, 3, slot])
            box = imagenet._random_box(40, 30, generator)
            expected = np.asarray(Image.fromarray(picture(2)).crop(box).resize((24, 24), Image.Resampling.BILINEAR))
            if generator.random() < 0.5:
                expected = expected[:, ::-1]
                mirrored += 1
            np.testing.assert_array_equal(images[slot].permute(1, 2, 0), expected)
        assert 4 <= mirrored <= 16

    def test_distribution_of_the_boxes(self) -> None:
        """On a large square nearly every try fits: area uniform in [0.08, 1], ratio log-uniform, places uniform.

        The seed is fixed; the tolerances are about five standard errors of 4,000 draws.
        """
        side, n = 10_000, 4000
        boxes = np.array([imagenet._random_box(side, side, np.random.default_rng([0, 0, i])) for i in range(n)])
        left, top, right, bottom = boxes.T
        assert left.min() >= 0
        assert top.min() >= 0
        assert right.max() <= side
        assert bottom.max() <= side
        width, height = right - left, bottom - top
        area, ratio = width * height / side**2, np.log(width / height)
        assert area.min() >= 0.0799
        assert np.abs(ratio).max() <= math.log(4 / 3) + 1e-3
        assert abs(ratio.mean()) < 0.014
        small = area < 0.5  # these always fit: uniform there
        assert abs(area[small].mean() - 0.29) < 0.012
        assert abs(ratio[small].std() - 2 * math.log(4 / 3) / math.sqrt(12)) < 0.01
        free = width < side
        assert abs((left[free] / (side - width[free])).mean() - 0.5) < 0.025
        assert abs((top[height < side] / (side - height[height < side])).mean() - 0.5) < 0.025

    @pytest.mark.parametrize(
        ("width", "height", "box"),
        [(1000, 10, (493, 0, 506, 10)), (10, 1000, (0, 493, 10, 506))],
    )
    def test_the_largest_centred_box_where_none_fits(
        self, width: int, height: int, box: tuple[int, int, int, int]
    ) -> None:
        assert imagenet._random_box(width, height, np.random.default_rng(0)) == box

    def test_a_single_pixel(self) -> None:
        for seed in range(50):
            assert imagenet._random_box(1, 1, np.random.default_rng(seed)) == (0, 0, 1, 1)


class TestIdentity:
    def test_covers_names_sizes_classes_and_image_size(self, tmp_path: Path) -> None:
        def identity(**options: int) -> str:
            return imagenet.load(tmp_path, num_workers=0, **options)[0][0].identity()  # type: ignore[arg-type]

        write_folders(tmp_path)
        first = identity()
        assert first == identity()
        assert first != identity(image_size=112)
        assert first != imagenet.load(tmp_path)[1][0].identity()
        path = tmp_path / "imagenet" / "train" / "n02" / "n02_1.JPEG"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?")  # same name, same size: not seen, as the docstring says
        assert identity() == first
        path.write_bytes(content + b"?")
        assert identity() != first
        path.write_bytes(content)
        assert identity() == first
        path.rename(path.with_name("n02_9.JPEG"))
        assert identity() != first

    def test_does_not_depend_on_where_the_folder_is(self, tmp_path: Path) -> None:
        ids = [imagenet.load(write_folders(tmp_path / name))[0][0].identity() for name in ("a", "b")]
        assert ids[0] == ids[1]

    def test_labels_of_shards_matter(self, tmp_path: Path) -> None:
        first = imagenet.load(write_shards(tmp_path))[0][0].identity()
        path = tmp_path / "imagenet" / "train-000.tar"
        content = path.read_bytes()
        assert content.count(b"1\n" + bytes(510)) == 1
        path.write_bytes(content.replace(b"1\n" + bytes(510), b"2\n" + bytes(510)))
        assert imagenet.load(tmp_path)[0][0].identity() != first


class TestThreads:
    def count(self) -> int:
        return sum(thread.name.startswith("isotherm-images") for thread in threading.enumerate())

    def test_start_late_and_end_with_close(self, tmp_path: Path) -> None:
        (train, _), _ = imagenet.load(write_folders(tmp_path), image_size=8, num_workers=2)
        assert self.count() == 0
        first = train.fetch(range(6))
        assert 1 <= self.count() <= 2
        train.close()
        assert self.count() == 0
        train.close()  # twice does no harm
        assert torch.equal(train.fetch(range(6)), first)
        train.close()

    def test_no_threads_where_none_are_wanted(self, tmp_path: Path) -> None:
        (train, _), _ = imagenet.load(write_folders(tmp_path), image_size=8, num_workers=0)
        train.fetch(range(6))
        assert self.count() == 0

    def test_as_many_as_cores_by_default(self, tmp_path: Path) -> None:
        assert imagenet.load(write_folders(tmp_path))[0][0].num_workers == len(os.sched_getaffinity(0))

    def test_a_copy_for_another_process(self, tmp_path: Path) -> None:
        (train, _), _ = imagenet.load(write_folders(tmp_path), image_size=8, num_workers=1)
        first = train.fetch([3])
        copy = pickle.loads(pickle.dumps(train))
        assert torch.equal(copy.fetch([3]), first)
        assert copy.identity() == train.identity()
        copy.close()
        train.close()

    def test_after_a_fork(self, tmp_path: Path) -> None:
        """The threads of the parent do not exist in the child; it starts its own."""
        (train, _), _ = imagenet.load(write_folders(tmp_path), image_size=8, num_workers=1)
        first = train.fetch([3])
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=lambda: sender.send_bytes(train.fetch([3]).numpy().tobytes()), daemon=True)
        child.start()
        assert receiver.poll(30)
        assert receiver.recv_bytes() == first.numpy().tobytes()
        child.join(30)
        assert child.exitcode == 0
        train.close()
