"""Files from outside that mean harm: each is refused with a sentence, at once, and without its memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import struct
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers_data import packed_dataset, png, tar_bytes
from isotherm.data import imagenet, mnist, ptb, restricted_pickle
from isotherm.data.files import fetch, read_bytes, read_gzip
from isotherm.errors import UserError
from isotherm.studies.load import read_study

MOST_MIB, MOST_SECONDS = 400, 5.0
HEAD = 'name = "hostile"\ntask = "mlp_mnist1d"\n[[sweep]]\nname = "one"\n'


@contextmanager
def cheap(*, most_mib: int = MOST_MIB) -> Iterator[None]:
    """Allow little processor time and little more memory than there is now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + most_mib * 2**20, hard))
    start = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.process_time() - start < MOST_SECONDS


# -- pickles ----------------------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    """Return a pickle whose key is a tuple of twice the same tuple, and so on: to hash it takes 2^depth steps."""
    steps = b""
    for k in range(depth):
        steps += b"h" + bytes([k]) + b"h" + bytes([k]) + b"\x86q" + bytes([k + 1])
    return b"\x80\x02}K\x01\x85q\x00" + steps + b"Ns."


PICKLES = {
    "a key that takes for ever to hash": nested(40),
    "a place of four billion in the memo": b"\x80\x02Nr\xff\xff\xff\xff.",
    "four gigabytes of an array that is not there": b"\x80\x05\x96\x00\x00\x00\x00\x01\x00\x00\x00.",
    "as many bytes": b"\x80\x04\x8e\x00\x00\x00\x00\x01\x00\x00\x00.",
    "as long a text": b"\x80\x04\x8d\x00\x00\x00\x00\x01\x00\x00\x00.",
    "a frame of sixteen exabytes": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "a number of a billion digits": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a list of itself": b"\x80\x02]q\x00h\x00a.",
    "a mark that is never used": b"((((.",
    "a dictionary of odd length": b"\x80\x02}(K\x01u.",
    "a persistent name": b"Pname\n.",
}


@pytest.mark.parametrize("content", PICKLES.values(), ids=PICKLES.keys())
def test_a_pickle_costs_no_more_than_it_holds(content: bytes) -> None:
    with cheap(), pytest.raises(UserError, match=r"some/file (is not an intact pickle|holds a|has a dictionary key)"):
        restricted_pickle.read(content, Path("some/file"))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("is_writeable", [True, False])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_every_protocol_are_read(protocol: int, is_writeable: bool, order: Any) -> None:
    """Protocol 5 names another function, and keeps the bytes of arrays that may be written otherwise."""
    data = np.array(np.arange(6).reshape(2, 3), dtype=np.uint8, order=order)
    data.flags.writeable = is_writeable
    found = restricted_pickle.read(pickle.dumps({"data": data}, protocol=protocol), Path("some/file"))["data"]
    assert isinstance(found, np.ndarray)
    assert found.tolist() == data.tolist()


def test_a_dictionary_that_holds_itself_is_read_as_far_as_it_is_used() -> None:
    value: dict[str, object] = {"labels": [1]}
    value["self"] = value
    assert restricted_pickle.read(pickle.dumps(value), Path("some/file"))["labels"] == [1]


# -- packed files, pipes and headers that lie -------------------------------------------------------------------------


def test_a_gzip_bomb_is_stopped(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        for _ in range(48):
            file.write(bytes(2**20))
    with cheap(), pytest.raises(UserError, match=r"bomb\.gz unpacks to more than 1,048,576 bytes; remove bomb\.gz"):
        read_gzip(bomb, name="mnist", at_most=2**20)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_an_archive_that_unpacks_to_much_costs_no_memory(tmp_path: Path, mode: str) -> None:
    """What comes before the file that is wanted is passed over piece by piece."""
    large = tarfile.TarInfo("large")
    large.size = 256 * 2**20
    packed = io.BytesIO()
    options: dict[str, Any] = {"preset": 0} if mode == "w:xz" else {"compresslevel": 1}
    with tarfile.open(fileobj=packed, mode=mode, **options) as tar, open("/dev/zero", "rb") as zeros:
        tar.addfile(large, zeros)
        wanted = tarfile.TarInfo("inner/a")
        wanted.size = 4
        tar.addfile(wanted, io.BytesIO(b"four"))
    dataset = packed_dataset({"a": b"four"}, packed.getvalue())
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.tar.gz").write_bytes(packed.getvalue())
    assert len(packed.getvalue()) < 2 * 2**20
    with cheap(most_mib=100):
        (status,) = fetch(dataset, tmp_path)
    assert status.ok
    assert [path.name for path in (tmp_path / "toy").iterdir() if not path.name.startswith("toy")] == ["out"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_bomb_in_an_archive_is_refused_by_its_header(tmp_path: Path, mode: str) -> None:
    bomb = tarfile.TarInfo("inner/a")
    bomb.size = 2**40
    archive = tar_bytes({"inner/a": bomb}, mode=mode)
    dataset = packed_dataset({"a": b"four"}, archive)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.tar.gz").write_bytes(archive)
    with cheap(), pytest.raises(UserError, match=r"inner/a has 1,099,511,627,776 bytes, expected 4; do not use"):
        fetch(dataset, tmp_path)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("fault", ["cut off", "damaged"])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_damaged_archive_is_named_however_it_is_packed(tmp_path: Path, mode: str, fault: str, keep: float) -> None:
    content = np.random.default_rng(0).bytes(2_000_000)  # some blocks of bzip2
    archive = bytearray(tar_bytes({"inner/a": content}, mode=mode))
    place = int(keep * len(archive))
    if fault == "cut off":
        del archive[place:]
    else:
        archive[place : place + 50] = bytes(byte ^ 0x55 for byte in archive[place : place + 50])
    dataset = packed_dataset({"a": content}, bytes(archive))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.tar.gz").write_bytes(archive)
    with (
        cheap(),
        pytest.raises(UserError, match=r"toy\.tar\.gz( is not an intact tar archive|: inner/a does not have)"),
    ):
        fetch(dataset, tmp_path)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["toy.tar.gz"]


def test_what_mnist_unpacks_to_has_a_limit() -> None:
    largest = 16 + 60_000 * 28 * 28
    assert largest < mnist.MOST_BYTES <= 2**28


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with cheap(), pytest.raises(UserError, match="is a pipe or a device, not a file; put a regular file there"):
        read_bytes(path, name="mnist")


def test_a_pipe_among_texts_and_studies(tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()
    for path in (tmp_path / "ptb" / "ptb.train.txt", tmp_path / "study.toml"):
        os.mkfifo(path)
    with pytest.raises(UserError, match="is a pipe or a device"):
        ptb.load(tmp_path)
    with pytest.raises(UserError, match="is a pipe or a device"):
        read_study(tmp_path / "study.toml")


def test_a_sparse_file_of_terabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    with cheap(), pytest.raises(UserError, match=r"has 1,099,511,627,776 bytes, more than the"):
        read_bytes(path, name="ptb")


@pytest.mark.parametrize("shape", [(2**32 - 1, 28, 28), (2**32 - 1,) * 3, (60_000, 28, 28), (0, 28, 28)])
def test_an_idx_header_claims_what_it_likes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "mnist").mkdir()
    content = struct.pack(">BBBB3I", 0, 0, 8, 3, *shape) + b"xx"
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    with cheap(), pytest.raises(UserError, match="has 2 bytes of values, expected"):
        mnist.load(tmp_path)


def shard(folder: Path, split: str, image: bytes, *, keep: int | None = None) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in (("1.cls", b"0"), ("1.png", image)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    (folder / "imagenet").mkdir(exist_ok=True)
    (folder / "imagenet" / f"{split}-0.tar").write_bytes(packed.getvalue()[:keep])


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_packed_shard_is_refused(tmp_path: Path, mode: str) -> None:
    large = tar_bytes({"1.cls": b"0", "1.png": bytes(16 * 2**20)}, mode=mode)
    (tmp_path / "imagenet").mkdir()
    for split in ("train", "val"):
        (tmp_path / "imagenet" / f"{split}-0.tar").write_bytes(large)
    with cheap(), pytest.raises(UserError, match=r"is not an intact, uncompressed tar file .* unpack its compression"):
        imagenet.load(tmp_path)


def picture(size: int = 64) -> bytes:
    return png(np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8))


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.9, 0.999])
def test_a_png_that_is_cut_off_is_no_black_picture(tmp_path: Path, keep: float) -> None:
    whole = picture()
    for split, content in (("train", whole[: int(keep * len(whole))]), ("val", whole)):
        shard(tmp_path, split, content)
    (train, _), (val, _) = imagenet.load(tmp_path, image_size=8, num_workers=0)
    assert val.fetch([0]).float().mean() > 50
    with pytest.raises(UserError, match=r"1\.png of the shard .*cannot be decoded .*(cut off|damaged).*; replace or"):
        train.fetch([0])


@pytest.mark.parametrize("place", [40, 60, 2_000])
def test_a_png_with_a_flipped_bit_is_damaged(tmp_path: Path, place: int) -> None:
    content = bytearray(picture())
    content[place] ^= 4
    for split in ("train", "val"):
        shard(tmp_path, split, bytes(content))
    (train, _), _ = imagenet.load(tmp_path, image_size=8, num_workers=0)
    with pytest.raises(UserError, match="cannot be decoded"):
        train.fetch([0])


def test_a_png_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    small = bytearray(png(np.zeros((1, 1, 3), dtype=np.uint8)))
    small[16:24] = struct.pack(">2I", 100_000, 100_000)
    small[29:33] = struct.pack(">I", zlib.crc32(small[12:29]))
    for split in ("train", "val"):
        shard(tmp_path, split, bytes(small))
    (train, _), _ = imagenet.load(tmp_path, image_size=8, num_workers=0)
    with cheap(), pytest.raises(UserError, match="has too many pixels to be safe"):
        train.fetch([0])


def test_a_shard_that_ends_before_its_image(tmp_path: Path) -> None:
    for split in ("train", "val"):
        shard(tmp_path, split, picture(), keep=3_000)
    with pytest.raises(UserError, match=r"claims 1\d,\d{3} from byte 1,536 on; the shard was cut off: replace it"):
        imagenet.load(tmp_path)


def whole_shard(num: int = 3) -> bytearray:
    """Return a shard of so many pictures, each with its label in the block of 1,024 bytes after it."""
    members: dict[str, bytes | tarfile.TarInfo] = {}
    for key in range(num):
        members |= {f"{key}.png": picture(8), f"{key}.cls": b"0"}
    return bytearray(tar_bytes(members, mode="w"))


def read_shards(folder: Path, train: bytes, val: bytes) -> list[int]:
    (folder / "imagenet").mkdir()
    for split, content in (("train", train), ("val", val)):
        (folder / "imagenet" / f"{split}-0.tar").write_bytes(content)
    return [len(source) for source, _ in imagenet.load(folder, image_size=8, num_workers=0)]


def test_a_shard_with_a_damaged_header_is_no_shorter_shard(tmp_path: Path) -> None:
    whole = whole_shard()
    damaged = bytearray(whole)
    second = whole.index(b"1.png")
    damaged[second] ^= 1
    with pytest.raises(UserError, match=r"train-0\.tar is not an intact, .* \(a header is damaged: bad checksum\)"):
        read_shards(tmp_path, bytes(damaged), bytes(whole))


@pytest.mark.parametrize("end", ["1.png", "1.cls"])
def test_a_shard_that_was_cut_off_between_members_is_no_shorter_shard(tmp_path: Path, end: str) -> None:
    whole = whole_shard()
    cut = whole[: whole.index(end.encode())]
    with pytest.raises(UserError, match=r"\(it was cut off: the blocks of zeros at its end are missing\)"):
        read_shards(tmp_path, bytes(cut), bytes(whole))


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_announces_gigabytes_of_remarks_reserves_none(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 2**33 - 1
    lying = header.tobuf(tarfile.GNU_FORMAT) + whole_shard()
    with (
        cheap(),
        pytest.raises(UserError, match="a header announces 8,589,934,591 bytes of a name or of other remarks"),
    ):
        read_shards(tmp_path, bytes(lying), bytes(whole_shard()))


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_shards_of_every_format_are_read_long_names_too(tmp_path: Path, kind: int) -> None:
    packed = io.BytesIO()
    name = "x" * (90 if kind == tarfile.USTAR_FORMAT else 300)
    with tarfile.open(fileobj=packed, mode="w", format=kind) as tar:
        for member, content in ((f"{name}.cls", b"0"), (f"{name}.png", picture(8))):
            info = tarfile.TarInfo(member)
            info.size, info.mtime = len(content), 1.5  # as a part of a second, a remark of pax
            tar.addfile(info, io.BytesIO(content))
    assert read_shards(tmp_path, packed.getvalue(), packed.getvalue()) == [1, 1]


def test_links_in_a_shard_lead_nowhere(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("1.png", "../../1.cls"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
    (tmp_path / "imagenet").mkdir()
    for split in ("train", "val"):
        (tmp_path / "imagenet" / f"{split}-0.tar").write_bytes(packed.getvalue())
    with pytest.raises(UserError, match="has no images; replace or remove it"):
        imagenet.load(tmp_path)


def test_a_pipe_among_pictures(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split / "cat").mkdir(parents=True)
        os.mkfifo(tmp_path / "imagenet" / split / "cat" / "1.png")
    with pytest.raises(UserError, match=r"1\.png is a pipe, a device or a broken link, not an image; remove it"):
        imagenet.load(tmp_path)


# -- studies as TOML --------------------------------------------------------------------------------------------------

GRID = "batch_sizes = [32]\neffective_learning_rates = [0.5]\n"
STUDIES = {
    "ten megabytes": (HEAD + "# " + "x" * 10_000_000, "has 10,000,0.. bytes, more than the 1,048,576"),
    "nested lists": (HEAD + GRID + "epochs = " + "[" * 5_000 + "]" * 5_000, "nested too deeply"),
    "nested tables": (HEAD + GRID + "epochs = " + "{a=" * 3_000 + "1" + "}" * 3_000, "nested too deeply"),
    "5,000 digits": (HEAD + GRID + "steps = " + "9" * 5_000, "a value that cannot be read"),
    "3,000 digits": (
        HEAD + GRID + "num_seeds = " + "9" * 3_000 + "\nepochs = 1",
        "num_seeds must be at most 10,000, not 9999",
    ),
    "5,000 digits in hexadecimal": (
        HEAD + GRID + "num_seeds = 0x" + "f" * 5_000 + "\nepochs = 1",
        r"a value that cannot be read \(a number of 20,000 bits\); write a shorter number",
    ),
    "updates that no float holds": (
        HEAD + GRID + "steps = " + "9" * 400,
        "a budget of more than 1e308 steps would never end; use at most 1,000,000,000,000",
    ),
    "a rate that no float holds": (
        HEAD + "batch_sizes = [32]\neffective_learning_rates = [" + "9" * 400 + "]\nepochs = 1",
        "effective learning rate must be a positive number|effective_learning_rates.1 = ",
    ),
    "no end": (HEAD + GRID + "epochs = 1e300", "a budget of 1e.300 epochs would never end; use at most 1,000,000"),
    "no end in updates": (HEAD + GRID + "epochs = 1e11", "updates, which would never end; use fewer epochs"),
    "no end of doubling": (HEAD + GRID + "until = { first = 1, at_most = 1e300 }", "would never end"),
    "an absurd rate": (
        HEAD + "batch_sizes = [32]\neffective_learning_rates = [1e300]\nepochs = 1",
        r"an effective learning rate of 1e.300 is none that trains; use one between 1e-30 and 1e.30",
    ),
    "a batch of everything": (
        HEAD + "batch_sizes = [99999999999999999999]\neffective_learning_rates = [1.0]\nepochs = 1",
        "batch size 99999999999999999999 is larger than the training set",
    ),
    "no number": (HEAD + GRID + "epochs = nan", "not positive"),
    "a bell": (HEAD.replace("hostile", "a\\u0007") + GRID + "epochs = 1", r"study name 'a.x07': use letters, digits"),
    "an escape in a sweep": (HEAD.replace("one", "\\u001b[31m") + GRID + "epochs = 1", "control character"),
    "a name of 300 bytes": (HEAD.replace("one", "x" * 300) + GRID + "epochs = 1", "has 300 bytes.* use at most 150"),
    "a task of 5,000 characters": (
        HEAD.replace('"mlp_mnist1d"', f'"{"9" * 5_000}"') + GRID + "epochs = 1",
        "unknown task '999.*known: ",
    ),
    "a study of 300 bytes": (HEAD.replace("hostile", "x" * 300) + GRID + "epochs = 1", "has 300 bytes"),
}


@pytest.mark.parametrize(("text", "message"), STUDIES.values(), ids=STUDIES.keys())
def test_a_study_is_refused_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as refused:
        read_study(path).plan()
    assert len(str(refused.value)) < 10_000


def test_a_hundred_thousand_unknown_keys_are_not_all_named(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(HEAD + GRID + "epochs = 1\n" + "".join(f"unknown_{k} = 1\n" for k in range(50_000)))
    with pytest.raises(UserError, match=r"unknown key 'sweep\.1\.unknown_0'.*and 49,990 more mistakes") as refused:
        read_study(path)
    assert len(str(refused.value)) < 20_000


def test_a_long_key_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(HEAD + GRID + "epochs = 1\n" + "k" * 500_000 + " = 1\n")
    with pytest.raises(UserError, match="unknown key") as refused:
        read_study(path)
    assert len(str(refused.value)) < 2_000
