"""Fuzz what reads files from outside, by Hypothesis: files that are valid, and damage done to their structure.

Run:     python benchmarks/fuzz_by_hypothesis.py --minutes 12 --seed 0 --json benchmarks/results/fuzz_hypothesis.json
         python benchmarks/fuzz_by_hypothesis.py   # writes the block of docs/reliability.md from the result
Cost:    the minutes, of processor time, shared by the readers
Expect:  every file is read as what it holds or refused with a UserError, within 5 s of processor time and 400 MiB

`benchmarks/fuzz/readers.py` flips bytes of fixed files; here Hypothesis draws the files themselves (`fuzz/inputs.py`):
headers, counts, tables and pickle instructions, and makes a file that fails as small as it can. Whatever else comes out
than a value or a `UserError` is printed and kept in the result; add it to tests/faults/test_hostile_files.py as a case.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st

from fuzz import inputs
from isotherm.bench.machine import commit, machine
from isotherm.data import cifar, imagenet, mnist, ptb
from isotherm.data.catalogue import DataFile, Dataset, Download
from isotherm.data.files import fetch
from isotherm.errors import UserError
from isotherm.studies.load import read_study
from isotherm.sweep.plan import StudyPlan
from pages.blocks import Page
from pages.results import ROOT
from pages.text import paragraph, table

RESULT = ROOT / "benchmarks" / "results" / "fuzz_hypothesis.json"
DOCUMENT = ROOT / "docs" / "reliability.md"
MOST_SECONDS, MOST_MIB = 5.0, 400
LONGEST_ERROR = 20_000
EXAMPLES_PER_SEED = 500


class TooSlow(BaseException):
    """A reader took more processor time than it may: no `except Exception` holds it up."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of files: how they are made, where they are put, how they are read, and how what was read is checked."""

    files: st.SearchStrategy[Any]
    put: Callable[[Any, Path], None]
    read: Callable[[Path], Any]
    check: Callable[[Any, Any], None]


@dataclass
class Tally:
    """What came of the files of a reader."""

    examples: int = 0
    read: int = 0
    refused: int = 0
    undamaged: int = 0
    seconds: float = 0.0
    places: set[str] = field(default_factory=set)


# -- readers ----------------------------------------------------------------------------------------------------------


def _put(files: dict[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _check_labelled(found: Any, *, shape: tuple[int, ...], num_classes: int) -> None:
    for images, labels in found:
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert tuple(images.shape) == (len(labels), *shape)
        assert len(labels) > 0
        assert 0 <= int(labels.min()) <= int(labels.max()) < num_classes


def _check_idx(found: Any, drawn: inputs.Idx) -> None:
    _check_labelled(found, shape=(28, 28), num_classes=10)
    for (images, labels), expected in zip(found, drawn.expected or (), strict=drawn.expected is not None):
        assert (images.numpy() == expected[0]).all()
        assert labels.tolist() == expected[1].tolist()


def _check_cifar(found: Any, drawn: inputs.Files, *, num_classes: int) -> None:
    _check_labelled(found, shape=(3, 32, 32), num_classes=num_classes)
    assert [len(labels) for _, labels in found] == [inputs.CIFAR_TRAIN, inputs.CIFAR_TEST]
    if drawn.expected is not None:
        assert [label for _, labels in found for label in labels.tolist()] == drawn.expected
        for images, labels in found:
            assert (images == labels[:, None, None, None]).all()


def _check_ptb(found: ptb.Corpus, drawn: inputs.Files) -> None:
    for name in ("train", "valid", "test"):
        tokens = getattr(found, name)
        assert tokens.dtype == torch.int64
        assert 0 <= int(tokens.min()) <= int(tokens.max()) < len(found.vocabulary)
        if drawn.expected is not None:
            assert [found.vocabulary[token] for token in tokens.tolist()] == drawn.expected[name]


def _put_shards(drawn: inputs.Files, folder: Path) -> None:
    _put({f"{split}-0.tar": content for split, content in drawn.files.items()}, folder / "imagenet")


def _read_shards(folder: Path) -> list[Any]:
    splits = imagenet.load(folder, image_size=8, num_workers=0)
    return [(source.fetch(range(len(source))), labels) for source, labels in splits]


def _check_shards(found: Any, drawn: inputs.Files) -> None:
    _check_labelled(found, shape=(3, 8, 8), num_classes=10**6)
    if drawn.expected is not None:
        assert [labels.tolist() for _, labels in found] == [drawn.expected["train"], drawn.expected["val"]]


def _put_archive(drawn: inputs.Files, folder: Path) -> None:
    _put({"toy.tar": drawn.files["archive"]}, folder / "toy")
    (folder / "wanted.json").write_text(
        json.dumps({name: content.hex() for name, content in drawn.files.items() if name != "archive"})
    )


def _read_archive(folder: Path) -> dict[str, bytes]:
    """Unpack an archive whose checksum is right, as that of a publisher who means harm would be."""
    wanted = {name: bytes.fromhex(text) for name, text in json.loads((folder / "wanted.json").read_text()).items()}
    archive = (folder / "toy" / "toy.tar").read_bytes()
    files = tuple(
        DataFile(path=f"out/{name}", size=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in wanted.items()
    )
    download = Download(
        name="toy.tar",
        urls=(),
        size=len(archive),
        sha256=hashlib.sha256(archive).hexdigest(),
        members=tuple((name, f"out/{name}") for name in wanted),
    )
    try:
        statuses = fetch(Dataset(name="toy", title="", page="", files=files, downloads=(download,)), folder)
    finally:
        there = {path.relative_to(folder).parts[:2] for path in folder.rglob("*") if path.is_file()}
        assert there <= {("toy", "toy.tar"), ("toy", "out"), ("wanted.json",)}, there
    assert all(status.ok for status in statuses)
    return {name: (folder / "toy" / "out" / name).read_bytes() for name in wanted}


def _check_archive(found: dict[str, bytes], drawn: inputs.Files) -> None:
    assert found == {name: content for name, content in drawn.files.items() if name != "archive"}


def _check_plan(found: StudyPlan, _: inputs.Files) -> None:
    text = json.dumps(found.to_json(), allow_nan=False)
    assert StudyPlan.from_json(json.loads(text)) == found
    for sweep in found.sweeps:
        for axes in sweep.grids():
            for rate in sweep.base_learning_rates(axes):
                assert math.isfinite(rate)
                assert rate > 0


def _in(folder_name: str) -> Callable[[Any, Path], None]:
    return lambda drawn, folder: _put(drawn.files, folder / folder_name)


READERS: dict[str, Reader] = {
    "toml": Reader(
        files=inputs.toml(),
        put=_in("study"),
        read=lambda folder: read_study(folder / "study" / "study.toml").plan(),
        check=_check_plan,
    ),
    "idx": Reader(files=inputs.idx(), put=_in("mnist"), read=mnist.load, check=_check_idx),
    "cifar binary": Reader(
        files=inputs.cifar_binary(),
        put=_in("cifar10/cifar-10-batches-bin"),
        read=lambda folder: cifar.load(folder, num_classes=10),
        check=lambda found, drawn: _check_cifar(found, drawn, num_classes=10),
    ),
    "cifar pickle": Reader(
        files=inputs.cifar_pickle(),
        put=_in("cifar100/cifar-100-python"),
        read=lambda folder: cifar.load(folder, num_classes=100),
        check=lambda found, drawn: _check_cifar(found, drawn, num_classes=100),
    ),
    "ptb": Reader(
        files=inputs.ptb(),
        put=lambda drawn, folder: _put({f"ptb.{k}.txt": text for k, text in drawn.files.items()}, folder / "ptb"),
        read=ptb.load,
        check=_check_ptb,
    ),
    "tar shards": Reader(files=inputs.shards(), put=_put_shards, read=_read_shards, check=_check_shards),
    "tar archive": Reader(files=inputs.archive(), put=_put_archive, read=_read_archive, check=_check_archive),
}


# -- the property -----------------------------------------------------------------------------------------------------


@contextmanager
def limits() -> Iterator[None]:
    """Allow 5 s of processor time and 400 MiB more than there are now."""

    def stop(*_: object) -> None:
        raise TooSlow(f"more than {MOST_SECONDS:g} s of processor time")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MOST_MIB * 2**20, hard))
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS, MOST_SECONDS)  # again, where a first one was caught
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def holds(reader: Reader, drawn: Any, tally: Tally) -> None:
    """Assert that a reader reads the files as what they hold or refuses them, at little cost.

    Whatever it raises besides a `UserError` passes through.
    """
    tally.examples += 1
    tally.undamaged += drawn.expected is not None
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader.put(drawn, Path(name))
        start = time.process_time()
        try:
            with limits():
                found = reader.read(Path(name))
        except UserError as refusal:
            tally.refused += 1
            tally.places.add(_place(refusal))
            message = str(refusal)
            assert drawn.expected is None, f"an undamaged file is refused: {message}"
            assert 0 < len(message) < LONGEST_ERROR, f"an error of {len(message):,} characters"
        else:
            tally.read += 1
            reader.check(found, drawn)
        seconds = time.process_time() - start
        tally.seconds += seconds
        assert seconds < MOST_SECONDS, f"{seconds:.1f} s"


def _place(error: UserError) -> str:
    """Return the line that raised an error first: refusals in as many lines are as many reasons."""
    while isinstance(error.__cause__, UserError):
        error = error.__cause__
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def property_of(reader: Reader, tally: Tally, settings: hypothesis.settings) -> Callable[[], None]:
    """Return a function that tries many files."""

    @settings
    @hypothesis.given(reader.files)
    def every_file_is_read_or_refused(drawn: Any) -> None:
        holds(reader, drawn, tally)

    return every_file_is_read_or_refused


@contextmanager
def few_images() -> Iterator[None]:
    """Let CIFAR's readers take the small files of the inputs for whole ones."""
    before = dict(cifar.NUM_EXAMPLES)
    cifar.NUM_EXAMPLES.update({"train": inputs.CIFAR_TRAIN, "test": inputs.CIFAR_TEST})
    try:
        yield
    finally:
        cifar.NUM_EXAMPLES.update(before)


# -- the page ---------------------------------------------------------------------------------------------------------


def hypothesis_block() -> str:
    """Return what was tried of every reader, in all runs together."""
    runs = json.loads(RESULT.read_text())["runs"]
    rows = []
    for name in READERS:
        found = [run["readers"][name] for run in runs if name in run["readers"]]
        counts = [f"{sum(one[key] for one in found):,}" for key in ("examples", "undamaged", "read", "refused")]
        counts[1] = "–" if name == "toml" else counts[1]  # of a study there is nothing to compare with
        lines = max(one["refused_at_lines"] for one in found)
        seconds = f"{sum(one['processor_seconds'] for one in found):,.0f} s"
        faults = ", ".join(sorted({fault for one in found for fault in one["faults"]})) or "none"
        rows.append((name, *counts, str(lines), seconds, faults))
    header = ("reader", "files", "undamaged", "read", "refused", "lines that refuse", "processor time", "faults")
    minutes = sum(run["processor_seconds"] for run in runs) / 60
    words = (
        f"In all {minutes:.0f} minutes of processor time; the whole process held at most "
        f"{max(run['memory_mib'] for run in runs):,} MiB. What was found is mended, "
        "a case of the tests, and was not found again by the last run of its "
        "reader; faults of the first minutes, while the strategies were written, are in the table above alone."
    )
    commands = "\n".join(run["command"] for run in runs)
    return f"{table(header, rows)}\n\n{paragraph(words)}\n\n```\n{commands}\n```"


PAGE = Page(name="fuzz", blocks={"hypothesis": hypothesis_block})


# -- running ----------------------------------------------------------------------------------------------------------


def fuzz(name: str, *, seconds: float, seed: int) -> dict[str, Any]:
    """Try files of one reader until so much processor time is over."""
    tally, faults = Tally(), Counter[str]()
    settings = hypothesis.settings(
        max_examples=EXAMPLES_PER_SEED,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    start, first = time.process_time(), seed
    while time.process_time() - start < seconds:
        try:
            hypothesis.seed(seed)(property_of(READERS[name], tally, settings))()
        except (Exception, TooSlow) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            found = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
            if not faults[found]:
                print(f"{name}, seed {seed}: {''.join(traceback.format_exception(error))[-6_000:]}", flush=True)
            faults[found] += 1
        seed += 1
    return {
        "seeds": [first, seed - 1],
        "examples": tally.examples,
        "read": tally.read,
        "refused": tally.refused,
        "refused_at_lines": len(tally.places),
        "undamaged": tally.undamaged,
        "processor_seconds": round(time.process_time() - start, 1),
        "processor_seconds_in_readers": round(tally.seconds, 1),
        "faults": dict(faults),
    }


def main() -> None:
    """Fuzz every reader for its share of the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, help="Of processor time, for all readers; without it nothing is tried."
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument("--json", type=Path, help="The run is added to those of this file.")
    given = parser.parse_args()
    if given.minutes is None:
        PAGE.write(DOCUMENT)
        print(f"wrote {DOCUMENT.relative_to(ROOT)}")
        return
    torch.set_num_threads(1)
    start = time.monotonic()
    content: dict[str, Any] = {
        "command": " ".join(["python benchmarks/fuzz_by_hypothesis.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine("cpu"),
        "hypothesis": hypothesis.__version__,
        "most_seconds": MOST_SECONDS,
        "most_mib": MOST_MIB,
        "readers": {},
    }
    with few_images():
        for name in given.readers:
            found = fuzz(name, seconds=60 * given.minutes / len(given.readers), seed=given.seed)
            content["readers"][name] = found
            print(f"{name}: {json.dumps(found)}", flush=True)
    content["processor_seconds"] = round(sum(found["processor_seconds"] for found in content["readers"].values()), 1)
    content["seconds"] = round(time.monotonic() - start, 1)
    content["memory_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if given.json is not None:
        runs = json.loads(given.json.read_text())["runs"] if given.json.exists() else []
        given.json.write_text(json.dumps({"runs": [*runs, content]}, indent=1) + "\n")
    sys.exit(any(found["faults"] for found in content["readers"].values()))


if __name__ == "__main__":
    main()
