"""Files for the readers, as Hypothesis makes them: valid ones of each format, and damage done to their structure.

Every strategy draws a file of the format first and remembers what is in it, then what is wrong with it: a field of a
header, a count, a place where the file is cut, or nothing. What is read from an undamaged file is compared with what
was put there.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import io
import lzma
import pickle
import string
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

Damage = Callable[[bytes], bytes]
_COUNTS = st.sampled_from([0, 1, 2, 3, 27, 29, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1])
_ABSURD = st.sampled_from([b"\x00" * 4, b"\xff" * 4, b"\x7f" + b"\xff" * 3, b"\xff" * 8, b"\x80" + b"\x00" * 7])


# -- damage ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One change of a file's bytes; `place` and `length` are parts of its length."""

    kind: str
    place: float
    length: float
    content: bytes
    times: int

    def __call__(self, whole: bytes) -> bytes:
        """Return the changed content."""
        start = round(self.place * len(whole))
        end = start + round(self.length * (len(whole) - start))
        head, part, tail = whole[:start], whole[start:end], whole[end:]
        match self.kind:
            case "cut off":
                return head
            case "cut out":
                return head + tail
            case "insert":
                return head + self.content + whole[start:]
            case "repeat":
                return head + part * self.times + tail
            case "overwrite":
                return head + self.content + whole[start + len(self.content) :]
        assert self.kind == "flip"
        return head + bytes([whole[start] ^ (1 << self.times % 8)]) + whole[start + 1 :] if whole[start:] else whole


_SHARES = st.floats(0, 1) | st.floats(0, 0.02) | st.floats(0.98, 1)
_CHANGES = st.builds(
    Change,
    kind=st.sampled_from(["cut off", "cut out", "insert", "repeat", "overwrite", "flip"]),
    place=_SHARES,
    length=st.floats(0, 0.1) | st.floats(0, 1),
    content=_ABSURD | st.binary(min_size=1, max_size=12),
    times=st.integers(0, 20),
)


def damages(*, at_most: int = 3) -> st.SearchStrategy[list[Change]]:
    """Return lists of changes, often empty ones."""
    return st.just([]) | st.lists(_CHANGES, max_size=at_most)


def damaged(content: bytes, changes: list[Change]) -> bytes:
    """Return the content after the changes, one after another."""
    for change in changes:
        content = change(content)
    return content


# -- idx --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Idx:
    """Four idx files by name, and the images and labels in them if nothing is wrong."""

    files: dict[str, bytes] = field(repr=False)
    expected: list[tuple[np.ndarray, np.ndarray]] | None


def _header(magic: bytes, counts: list[int]) -> bytes:
    return magic + struct.pack(f">{len(counts)}I", *counts)


@st.composite
def idx(draw: st.DrawFn) -> Idx:
    """Draw MNIST's four files: a header or a packed file may lie."""
    files: dict[str, bytes] = {}
    expected, is_whole = [], True
    wrong = draw(st.none() | st.sampled_from(["train-images", "train-labels", "t10k-images", "t10k-labels"]))
    for prefix in ("train", "t10k"):
        num = draw(st.integers(1, 3))
        random = np.random.default_rng(draw(st.integers(0, 3)))
        images = random.integers(0, 256, (num, 28, 28), dtype=np.uint8)
        labels = np.array(draw(st.lists(st.integers(0, 9), min_size=num, max_size=num)), dtype=np.uint8)
        expected.append((images, labels))
        for kind, array in (("images", images), ("labels", labels)):
            content = _header(bytes([0, 0, 8, array.ndim]), list(array.shape)) + array.tobytes()
            is_packed = draw(st.booleans())
            if wrong == f"{prefix}-{kind}":
                content, packed = draw(_wrong_idx(array))
                is_whole = False
            else:
                packed = gzip.compress(content, mtime=0)
            name = f"{prefix}-{kind}-idx{array.ndim}-ubyte"
            files[f"{name}.gz" if is_packed else name] = packed if is_packed else content
    return Idx(files=files, expected=expected if is_whole else None)


@st.composite
def _wrong_idx(draw: st.DrawFn, array: np.ndarray) -> tuple[bytes, bytes]:
    magic = bytes([0, 0, draw(st.sampled_from([8, 8, 8, 9, 0x0D])), draw(st.sampled_from([array.ndim] * 3 + [0, 255]))])
    counts = [draw(st.just(size) | _COUNTS) for size in array.shape]
    counts = draw(st.just(counts) | st.lists(_COUNTS, max_size=5))
    content = damaged(_header(magic, counts) + array.tobytes(), draw(damages()))
    packed = damaged(gzip.compress(content, mtime=0) * draw(st.sampled_from([1, 1, 2])), draw(damages()))
    return content, packed


# -- CIFAR ------------------------------------------------------------------------------------------------------------

CIFAR_TRAIN, CIFAR_TEST = 10, 2  # images of a split here, in place of 50,000 and 10,000
_RECORD = 1 + 3_072


@dataclass(frozen=True)
class Files:
    """Files by name, and what they hold if nothing is wrong with them."""

    files: dict[str, bytes] = field(repr=False)
    expected: Any


@st.composite
def cifar_binary(draw: st.DrawFn) -> Files:
    """Draw CIFAR-10's six files: one may have other labels, another length, or damage."""
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    wrong = draw(st.none() | st.sampled_from(names))
    files, labels = {}, []
    for name in names:
        own = draw(st.lists(st.integers(0, 9), min_size=2, max_size=2))
        labels += own
        files[name] = b"".join(bytes([label]) + bytes([label]) * (_RECORD - 1) for label in own)
        if name == wrong:
            extra = draw(st.sampled_from([-_RECORD, -1, 0, 1, _RECORD, 50 * _RECORD]))
            resized = files[name][:extra] if extra < 0 else files[name] + bytes([draw(st.integers(0, 255))]) * extra
            files[name] = damaged(resized, draw(damages()))
    return Files(files=files, expected=labels if wrong is None else None)


_KEYS = st.sampled_from(["data", "labels", "fine_labels"])
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from([2**31, 2**63, 2**2_000, -1])
    | st.sampled_from(["u1", "f8", "i4", "O", "U3"]).map(lambda kind: np.zeros((2, 3), dtype=kind))
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.binary(max_size=3) | st.integers() | st.floats(), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def cifar_pickle(draw: st.DrawFn) -> Files:
    """Draw CIFAR-100's two pickles: other values, damage, or instructions in any order."""
    wrong = draw(st.none() | st.sampled_from(["train", "test"]))
    files, labels = {}, []
    for name, num in (("train", CIFAR_TRAIN), ("test", CIFAR_TEST)):
        own = draw(st.lists(st.integers(0, 99), min_size=num, max_size=num))
        labels += own
        data = np.repeat(np.array(own, dtype=np.uint8)[:, None], 3_072, axis=1)
        content: dict[Any, Any] = {"data": data, "fine_labels": own, "filenames": ["a"] * num}
        if draw(st.booleans()):
            content = {key.encode(): value for key, value in content.items()}
        protocol = draw(st.integers(0, 5))
        files[name] = pickle.dumps(content, protocol=protocol)
        if name == wrong:
            content |= draw(st.dictionaries(_KEYS | st.binary(max_size=3) | st.integers(), _VALUES, max_size=2))
            whole = pickle.dumps(draw(st.just(content) | _VALUES), protocol=protocol)
            files[name] = draw(st.just(damaged(whole, draw(damages()))) | _instructions())
    return Files(files=files, expected=labels if wrong is None else None)


@st.composite
def _instructions(draw: st.DrawFn) -> bytes:
    """Draw a pickle instruction by instruction, with lengths and places that need not fit."""
    one = st.builds(
        lambda code, argument: code + argument,
        st.sampled_from([bytes([code]) for code in b"(.012NIKMJLGhjrpq]}tldeasubR\x85\x86\x87\x88\x8a\x8bVUXTcRiBC"])
        | st.sampled_from([bytes([code]) for code in b"\x80\x8c\x8d\x8e\x93\x94\x95\x96\x81\x82\x97"]),
        _ABSURD
        | st.sampled_from([b"", b"", b"\x00", b"\x01", b"1\n", b"builtins\neval\n", b"numpy\ndtype\n", b"\x04data"]),
    )
    return b"\x80\x04" + b"".join(draw(st.lists(one, max_size=25))) + draw(st.sampled_from([b".", b""]))


# -- PTB --------------------------------------------------------------------------------------------------------------

_WORDS = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=4)


@st.composite
def ptb(draw: st.DrawFn) -> Files:
    """Draw three texts: words that are known or not, line ends of any kind, other encodings, damage."""
    known = draw(st.lists(_WORDS, min_size=1, max_size=6))
    wrong = draw(st.none() | st.sampled_from(["train", "valid", "test"]))
    files, expected = {}, {}
    for split in ("train", "valid", "test"):
        words = known if split == "train" else draw(st.lists(st.sampled_from(known), min_size=1, max_size=9))
        expected[split] = [*words, "<eos>"]
        text = " ".join(words) + "\n"
        if split == wrong:
            text = draw(st.text(max_size=30)) + text + draw(st.text(max_size=30) | st.just("\x00\r\x1c\u2028\ufeff"))
            encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
            files[split] = damaged(text.encode(encoding, "replace"), draw(damages()))
        else:
            files[split] = text.encode()
    return Files(files=files, expected=expected if wrong is None else None)


# -- tar --------------------------------------------------------------------------------------------------------------

_TYPES = st.sampled_from(
    [tarfile.REGTYPE] * 6
    + [tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
    + [tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"Z"]
)
_NAMES = (
    st.sampled_from(["1.png", "2.jpeg", "1.cls", "2.cls", "../1.png", "/1.cls", "a/../1.png", ".png", "1", ""])
    | st.builds(lambda text, kind: text + kind, st.text(max_size=8), st.sampled_from([".png", ".cls", ".JPG", ""]))
    | st.just("x" * 300 + ".png")
)
_SIZES = st.sampled_from([0, 1, 511, 512, 513, 2**20, 2**33 - 1])
_PAX = st.dictionaries(
    st.sampled_from(["size", "path", "mtime", "GNU.sparse.map", "GNU.sparse.major", "GNU.sparse.size", "linkpath"]),
    st.sampled_from(["-1", "0", "1e999", "nan", "9" * 30, "x", "", "1,2,3", "../../x", "\u202e"]),
    max_size=2,
)
_HEADER_FIELDS = {
    "mode": 100,
    "uid": 108,
    "size": 124,
    "mtime": 136,
    "type": 156,
    "magic": 257,
    "prefix": 345,
    "sparse": 386,
    "more": 482,
}


@st.composite
def picture(draw: st.DrawFn) -> bytes:
    """Draw a small PNG or JPEG of any mode."""
    kind, mode = draw(
        st.sampled_from([("PNG", m) for m in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")] + [("JPEG", "RGB")])
    )
    size = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind)
    return file.getvalue()


@dataclass(frozen=True)
class Member:
    """A member of a tar archive whose header may say other things than its content."""

    name: str
    content: bytes
    kind: bytes = tarfile.REGTYPE
    claimed: int | None = None
    pax: dict[str, str] | None = None


_MEMBERS = st.builds(
    Member,
    name=_NAMES,
    content=picture()
    | st.binary(max_size=8)
    | st.sampled_from([b"0", b"1", b"999999", "²".encode(), b"-1", b"1" * 99]),
    kind=_TYPES,
    claimed=st.none() | _SIZES,
    pax=st.none() | _PAX,
)


@st.composite
def _whole_shard(draw: st.DrawFn) -> list[Member]:
    members = []
    for key in range(draw(st.integers(1, 3))):
        content = draw(picture().filter(_has_eight_bits))
        suffix = "png" if content.startswith(b"\x89PNG") else "jpg"
        members += [Member(f"{key}.{suffix}", content), Member(f"{key}.cls", str(draw(st.integers(0, 1))).encode())]
    return members


def _has_eight_bits(content: bytes) -> bool:
    with Image.open(io.BytesIO(content)) as image:
        return not image.mode.startswith("I")


@st.composite
def tar(draw: st.DrawFn, members: list[Member]) -> bytes:
    """Draw a tar file of some members and others, with fields of headers replaced under a right checksum."""
    chosen = draw(st.permutations([*members, *draw(st.just([]) | st.lists(_MEMBERS, max_size=3))]))
    if draw(st.booleans()):
        chosen[0] = dataclasses.replace(chosen[0], content=damaged(chosen[0].content, draw(damages())))
    formats = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    whole = bytearray(packed(chosen, kind=draw(formats)))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        place = 512 * draw(st.integers(0, len(whole) // 512 - 1))
        offset = draw(st.sampled_from(sorted(_HEADER_FIELDS.values())))
        value = draw(
            _ABSURD
            | st.sampled_from([b"77777777777", b"-1", b"L", b"K", b"S", b"x", b"g", b"1", b"\x80" + b"\xff" * 11])
        )
        whole[place + offset : place + offset + len(value)] = value
        whole[place + 148 : place + 156] = b" " * 8
        whole[place + 148 : place + 156] = b"%06o\x00 " % sum(whole[place : place + 512])
    return damaged(bytes(whole), draw(damages(at_most=2)))


def packed(members: list[Member], *, kind: int = tarfile.GNU_FORMAT) -> bytes:
    """Return a tar file; a member that the format cannot hold is left out."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind, errors="surrogateescape"):
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname, info.pax_headers = member.kind, "../target", member.pax or {}
            info.size = len(member.content) if member.claimed is None else member.claimed
            with contextlib.suppress(ValueError, UnicodeError):  # too long, or not to be encoded
                header = info.tobuf(kind, "utf-8", "surrogateescape")
                file.write(header + member.content + bytes(-len(member.content) % 512))
    return file.getvalue()


@st.composite
def shards(draw: st.DrawFn) -> Files:
    """Draw a shard for each split, of which one may be wrong."""
    wrong = draw(st.none() | st.sampled_from(["train", "val"]))
    files, labels = {}, {}
    for split in ("train", "val"):
        members = draw(_whole_shard())
        labels[split] = [int(member.content) for member in members if member.name.endswith(".cls")]
        files[split] = draw(tar(members)) if split == wrong else packed(members)
    is_whole = wrong is None and max(labels["val"]) <= max(labels["train"])
    return Files(files=files, expected=labels if is_whole else None)


_PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": lambda content: gzip.compress(content, mtime=0),
    "bz2": bz2.compress,
    "xz": lambda content: lzma.compress(content, preset=0),
}


@st.composite
def archive(draw: st.DrawFn) -> Files:
    """Draw a packed archive that should hold two files."""
    contents = {"inner/a": draw(st.binary(max_size=20)), "inner/b": draw(st.binary(max_size=700))}
    members = [Member(name, content) for name, content in contents.items()]
    pack = _PACKERS[draw(st.sampled_from(sorted(_PACKERS)))]
    is_whole = draw(st.booleans())
    whole = pack(packed(members) if is_whole else draw(tar(members)))
    content = whole if is_whole else damaged(whole, draw(damages()))
    return Files(files={**contents, "archive": content}, expected=contents if is_whole else None)


# -- TOML -------------------------------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


def written(value: Any) -> str:
    """Return a value as TOML: a text that is in quotes stays as it is, others get them."""
    match value:
        case Raw(text):
            return text
        case bool():
            return str(value).lower()
        case dict():
            return "{ " + ", ".join(f"{_quoted(key)} = {written(inner)}" for key, inner in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(written, value)) + "]"
        case str():
            return _quoted(value)
    return "nan" if value != value else repr(value)


@dataclass(frozen=True)
class Raw:
    """Text that goes into a file as it is."""

    text: str


_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_SPECIAL = [
    *(
        "9" * 5_000,
        "-" + "9" * 400,
        "0x" + "f" * 400,
        "0x" + "f" * 5_000,
        "1e400",
        "-nan",
        "inf",
        "-inf",
        "1e-320",
        "1e300",
        "0.1e-9",
    ),
    *("1979-05-27T07:32:00Z", "07:32:00", "9999-12-31", "[" * 3_000, "{a=" * 500, "[" * 300 + "]" * 300, "'\x1b[31m'"),
    *(
        '"\\ud800"',
        '"""',
        "''",
        "",
        "2",
        "true",
        "[[]]",
        "{}",
        '"mlp_mnist1d"',
        '"a:b"',
        '":"',
        '"x.toml"',
        '"../x.py"',
    ),
]
_HOSTILE = st.sampled_from(_SPECIAL).map(Raw) | st.recursive(
    st.integers() | st.floats() | st.booleans() | _TEXTS | st.sampled_from([-1, 0, 1, 2**31, 2**63, 10**12, 10**20]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_RATES = st.lists(st.floats(1e-4, 64), min_size=1, max_size=3) | st.sampled_from([[0.0], [1e-30, 1e30], [5e-324], []])
_PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "momentum": st.sampled_from([0.0, 0.9, [0.0, 0.9], 1.0, [0.5, 0.5]]),
    "l2": st.floats(0, 1e-2),
    "l2_scope": st.sampled_from(["all", "weights"]),
    "clip_norm": st.floats(1e-3, 10),
    "num_seeds": st.integers(1, 6),
    "num_kept": st.integers(1, 6),
    "num_confirm": st.integers(0, 6),
    "first_seed": st.integers(0, 2**40),
    "tune_on": st.sampled_from(["validation", "test", "train"]),
    "tune_quantity": st.sampled_from(["loss", "metric"]),
    "validation_fraction": st.floats(0, 1),
    "num_evaluations": st.integers(1, 12),
    "max_extensions": st.integers(0, 5),
    "extend_for": st.sampled_from(["tuned", "tuned_and_train"]),
    "resolution": st.sampled_from(["adaptive", "paper"]),
    "smallest_ratio": st.floats(1, 4),
    "precision": st.sampled_from(["float32", "tf32", "float64", "mixed"]),
    "estimate_at": st.sampled_from([{"epochs": 1.0}, {"steps": 20}, {}]),
    "optimizer": st.sampled_from(["adamw", [{"name": "muon", "momentum": 0.9}], {"name": "sgd", "nesterov": True}]),
    "schedule": st.sampled_from(
        [
            *("cosine", {"shape": "wsd", "decay_fraction": 0.2}, {"shape": "linear", "warmup_steps": 3}),
            *({"shape": "piecewise", "points": [[0.5, 0.1]]}, {"shape": "cosine", "warmup_fraction": 1.0}),
        ]
    ),
    "gamma": st.floats(0, 2),
    "final_effective_learning_rate": st.floats(0, 1),
    "final_learning_rates": _RATES,
}


@st.composite
def _sweep_table(draw: st.DrawFn, name: str) -> dict[str, Any]:
    table: dict[str, Any] = {"name": name, "batch_sizes": draw(st.lists(st.integers(1, 300), min_size=1, max_size=3))}
    isotherm = {"temperature": draw(st.floats(1e-4, 10)), "num_below": draw(st.integers(0, 3))}
    rates = st.sampled_from(["effective_learning_rates"] * 3 + ["learning_rates", "isotherm"])
    table |= {(kind := draw(rates)): isotherm if kind == "isotherm" else draw(_RATES)}
    table |= draw(
        st.sampled_from(
            [{"epochs": 1.5}, {"steps": [10, 100]}, {"epochs": [1, 2]}, {"until": {"first": 1, "at_most": 8}}]
        )
    )
    for key in draw(st.lists(st.sampled_from(sorted(_PLAUSIBLE)), max_size=3, unique=True)):
        table[key] = draw(_PLAUSIBLE[key])
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        keys = st.sampled_from(sorted({*_PLAUSIBLE, *table}))
        table[draw(st.sampled_from([keys] * 9 + [_TEXTS]).flatmap(lambda chosen: chosen))] = draw(_HOSTILE)
    if draw(st.sampled_from([False] * 11 + [True])):
        del table[draw(st.sampled_from(sorted(table)))]
    return table


@st.composite
def toml(draw: st.DrawFn) -> Files:
    """Draw a study as TOML, with values, tables and keys that no study has."""
    odd = st.sampled_from([False] * 11 + [True])
    head: dict[str, Any] = {"name": draw(_TEXTS) if draw(odd) else "fuzz", "task": "mlp_mnist1d"}
    if draw(odd):
        head[draw(st.sampled_from(["name", "task", "question", "sweep"]) | _TEXTS)] = draw(_HOSTILE)
    names = draw(st.lists(_TEXTS if draw(odd) else st.sampled_from(string.ascii_letters), min_size=1, max_size=2))
    parts = [_lines(head)]
    for name in names:
        parts += ["[sweep]" if draw(odd) else "[[sweep]]", _lines(draw(_sweep_table(name)))]
    if draw(odd):
        parts.append("".join(f"{_quoted(key)} = 1\n" for key in draw(st.lists(_TEXTS, unique=True, max_size=40))))
    content = "\n".join(parts).encode()
    return Files(files={"study.toml": damaged(content, draw(damages(at_most=2)) if draw(odd) else [])}, expected=None)


def _lines(table: dict[str, Any]) -> str:
    return "\n".join(f"{_quoted(key)} = {written(value)}" for key, value in table.items())
