"""Fuzz what reads files from outside: the TOML loader and the idx, CIFAR, PTB and tar readers.

Run:     python benchmarks/fuzz/readers.py --minutes 10 --seed 0 [--json benchmarks/results/fuzz.json]
Cost:    the minutes, of processor time: as many files on a busy machine
Expect:  every input is read or refused with a UserError; none takes more than 5 s or 1 GiB

Inputs are small valid files of each format, mutated: bytes flipped, parts cut, repeated and exchanged, numbers made
huge, and now and then a file of noise. Whatever else comes out than a value or a `UserError` is kept in `--keep` and
printed; add it to tests/faults/test_hostile_files.py as a case.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import pickle
import random
import resource
import struct
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from isotherm.bench.machine import commit
from isotherm.data import cifar, imagenet, mnist, ptb
from isotherm.errors import UserError
from isotherm.studies.load import read_study

MOST_SECONDS, MOST_BYTES = 5.0, 2**30
Mutate = Callable[[bytes], bytes]
Reader = Callable[[Path], object]

_TOML = b"""name = "fuzz"
task = "mlp_mnist1d"
[[sweep]]
name = "one"
batch_sizes = [32, 128]
effective_learning_rates = [0.5, 1.0]
epochs = 5
momentum = [0.0, 0.9]
num_seeds = 3
tune_on = "validation"
schedule = { shape = "cosine", warmup_steps = 3 }
[[sweep]]
name = "two"
batch_sizes = [32]
isotherm = { temperature = 0.03125, ceiling = 8.0, num_below = 1 }
until = { first = 1, at_most = 8, target = 0.9 }
"""
_TOKENS = [
    *(b"1e308", b"-1", b"nan", b"inf", b"9" * 5_000, b"[" * 3_000, b"{a=" * 500, b"\x00", b"\x1b[31m", b"\xff\xfe"),
    *(b"true", b"''", b'""', b"1979-05-27T07:32:00Z", b"0x7fffffffffffffffff", b"[[sweep]]", b"[/x]", b"1e-320"),
]


def _idx(shape: tuple[int, ...], values: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values


def _mnist(mutate: Mutate, folder: Path, generator: random.Random) -> None:
    own = folder / "mnist"
    own.mkdir(exist_ok=True)
    for prefix in ("train", "t10k"):
        for kind, content in (
            ("images-idx3", _idx((2, 28, 28), bytes(1568))),
            ("labels-idx1", _idx((2,), b"\x01\x02")),
        ):
            packed = generator.choice((gzip.compress(mutate(content)), mutate(gzip.compress(content))))
            (own / f"{prefix}-{kind}-ubyte.gz").write_bytes(packed)


def _cifar_binary(mutate: Mutate, folder: Path, generator: random.Random) -> None:
    own = folder / "cifar10" / "cifar-10-batches-bin"
    own.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        (own / name).write_bytes(mutate((bytes([3]) + bytes(3_072)) * 2))


def _cifar_pickle(mutate: Mutate, folder: Path, generator: random.Random) -> None:
    own = folder / "cifar100" / "cifar-100-python"
    own.mkdir(parents=True, exist_ok=True)
    for name, num in cifar.NUM_EXAMPLES.items():
        data = np.zeros((num, 3_072), dtype=np.uint8)
        content = {b"data": data, b"fine_labels": list(range(num)), b"filenames": [b"a"] * num}
        (own / name).write_bytes(mutate(pickle.dumps(content, protocol=generator.randrange(5))))


def _ptb(mutate: Mutate, folder: Path, generator: random.Random) -> None:
    own = folder / "ptb"
    own.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (own / f"ptb.{split}.txt").write_bytes(mutate(b"a few words <unk> and\nmore of them\n" * 3))


def _shards(mutate: Mutate, folder: Path, generator: random.Random) -> None:
    own = folder / "imagenet"
    own.mkdir(exist_ok=True)
    for split in ("train", "val"):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for key, kind in (("1", "PNG"), ("2", "JPEG")):
                image = io.BytesIO()
                Image.new("RGB", (9, 7), (10, 20, 30)).save(image, kind)
                for name, content in ((f"{key}.{kind.lower()}", image.getvalue()), (f"{key}.cls", b"1")):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
        (own / f"{split}-0.tar").write_bytes(mutate(packed.getvalue()))


def _toml(mutate: Mutate, folder: Path, generator: random.Random) -> None:
    (folder / "study.toml").write_bytes(mutate(_TOML))


def _read_shards(folder: Path) -> object:
    (source, labels), _ = imagenet.load(folder, image_size=8, num_workers=0)
    return source.fetch(range(len(source))), labels


READERS: dict[str, tuple[Callable[[Mutate, Path, random.Random], None], Reader]] = {
    "toml": (_toml, lambda folder: read_study(folder / "study.toml").plan()),
    "idx": (_mnist, mnist.load),
    "cifar binary": (_cifar_binary, lambda folder: cifar.load(folder, num_classes=10)),
    "cifar pickle": (_cifar_pickle, lambda folder: cifar.load(folder, num_classes=100)),
    "ptb": (_ptb, ptb.load),
    "tar": (_shards, _read_shards),
}


def mutation(generator: random.Random) -> Mutate:
    """Return a function that changes some bytes of a file, or of one in three files."""

    def mutate(content: bytes) -> bytes:
        if generator.random() < 0.5:
            return content
        found = bytearray(content)
        for _ in range(generator.choice((1, 1, 1, 2, 4, 16))):
            _change(found, generator)
        return bytes(found)

    return mutate


def _change(content: bytearray, generator: random.Random) -> None:
    place = generator.randrange(len(content) + 1)
    end = min(len(content), place + generator.choice((1, 4, 16, 100)))
    match generator.randrange(7):
        case 0 if content:
            content[min(place, len(content) - 1)] ^= 1 << generator.randrange(8)
        case 1:
            del content[place:end]
        case 2:
            content[place:place] = content[place:end] * generator.choice((1, 2, 50))
        case 3:
            del content[place:]
        case 4:
            content[place:end] = generator.randbytes(end - place)
        case 5:
            content[place:end] = generator.choice((b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", b"\xff" * 8))
        case _:
            content[place:place] = generator.choice(_TOKENS)


def one(name: str, seed: int, folder: Path) -> str | None:
    """Read one mutated file; return what is wrong with how it went, if anything."""
    write, read = READERS[name]
    generator = random.Random(f"{name} {seed}")  # noqa: S311  # to be repeated
    write(mutation(generator), folder, generator)
    start = time.process_time()
    try:
        read(folder)
    except UserError as error:
        if len(str(error)) > 20_000:
            return f"an error of {len(str(error)):,} characters"
    except Exception as error:  # what is looked for
        return f"{type(error).__name__}: {str(error)[:300]}"
    seconds = time.process_time() - start
    if seconds > MOST_SECONDS:
        return f"{seconds:.1f} s"
    return None


def main() -> None:
    """Fuzz every reader in turn until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="Of processor time.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    cifar.NUM_EXAMPLES.update({"train": 10, "test": 2})
    resource.setrlimit(resource.RLIMIT_AS, (24 * MOST_BYTES, 24 * MOST_BYTES))
    start, processor, seed = time.monotonic(), time.process_time(), given.seed
    executions, seconds = dict.fromkeys(READERS, 0), dict.fromkeys(READERS, 0.0)
    faults: list[dict[str, Any]] = []
    while time.process_time() - processor < 60 * given.minutes:
        for name in READERS:
            with tempfile.TemporaryDirectory() as folder:
                began = time.process_time()
                fault = one(name, seed, Path(folder))
                seconds[name] += time.process_time() - began
                executions[name] += 1
                if fault is not None:
                    faults.append({"reader": name, "seed": seed, "fault": fault})
                    print(f"{name}, seed {seed}: {fault}", flush=True)
        seed += 1
    content = {
        "command": f"python benchmarks/fuzz/readers.py --minutes {given.minutes:g} --seed {given.seed}",
        "commit": commit(),
        "minutes": round((time.monotonic() - start) / 60, 2),
        "processor_minutes": round((time.process_time() - processor) / 60, 2),
        "first_seed": given.seed,
        "executions": executions,
        "processor_seconds": {name: round(value, 1) for name, value in seconds.items()},
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "faults": faults,
    }
    print(json.dumps(content, indent=1))
    if given.json is not None:
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
