"""A few hundred files of each format, as Hypothesis draws them: read as what they hold, or refused, at little cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from fuzz.inputs import Files
from fuzz_by_hypothesis import (
    DOCUMENT,
    PAGE,
    READERS,
    RESULT,
    Reader,
    Tally,
    TooSlow,
    few_images,
    holds,
    limits,
    property_of,
)
from isotherm.errors import UserError

FEW = hypothesis.settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(autouse=True)
def _few_images() -> Iterator[None]:
    with few_images():
        yield


@pytest.mark.parametrize("name", list(READERS))
def test_every_file_is_read_as_what_it_holds_or_refused(name: str) -> None:
    tally = Tally()
    property_of(READERS[name], tally, FEW)()
    assert tally.examples >= 60
    assert tally.read > 5, "hardly a file was read: the strategies draw damage alone"
    assert tally.refused > 5, "hardly a file was refused: the strategies draw no damage"
    assert tally.undamaged > 5 or name == "toml"
    assert len(tally.places) >= 2, "every refusal has the same reason"


def reader(read: Callable[[Path], Any], check: Callable[[Any, Any], None] = lambda found, drawn: None) -> Reader:
    return Reader(files=st.none(), put=lambda drawn, folder: None, read=read, check=check)


def raises(error: BaseException) -> Callable[[Path], None]:
    def read(_: Path) -> None:
        raise error

    return read


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (raises(OSError("file name too long")), OSError),
        (raises(UserError("an error " * 10_000)), AssertionError),
        (lambda folder: bytes(2**30), MemoryError),
    ],
    ids=["another error", "a long error", "memory"],
)
def test_the_property_fails_where_a_reader_does(read: Callable[[Path], Any], error: type[BaseException]) -> None:
    with pytest.raises(error):
        holds(reader(read), Files(files={}, expected=None), Tally())


def test_the_property_fails_where_an_undamaged_file_is_refused_or_read_as_another() -> None:
    whole = Files(files={}, expected=[1, 2])

    def check(found: list[int], drawn: Files) -> None:
        assert found == drawn.expected

    with pytest.raises(AssertionError, match="an undamaged file is refused: no"):
        holds(reader(raises(UserError("no")), check), whole, Tally())
    with pytest.raises(AssertionError):
        holds(reader(lambda folder: [1], check), whole, Tally())


def test_the_property_fails_where_a_reader_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz_by_hypothesis.MOST_SECONDS", 0.2)

    def loops(_: Path) -> None:
        while True:
            pass

    with pytest.raises(TooSlow, match=r"more than 0\.2 s of processor time"):
        holds(reader(loops), Files(files={}, expected=None), Tally())
    with limits():  # nothing is left of the alarm
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass


def test_the_result_covers_every_reader_and_what_was_found_is_mended() -> None:
    runs = json.loads(RESULT.read_text())["runs"]
    assert sum(run["processor_seconds"] for run in runs) >= 600
    last: dict[str, dict[str, Any]] = {}
    for run in runs:
        assert run["command"].startswith("python benchmarks/fuzz_by_hypothesis.py --minutes ")
        last |= run["readers"]
    assert set(last) == set(READERS)
    assert [name for name, found in last.items() if found["faults"]] == [], "mend what was found, and fuzz again"


def test_the_document_shows_what_was_tried() -> None:
    text = DOCUMENT.read_text()
    assert PAGE.names_in(text) == list(PAGE.blocks)
    assert PAGE.filled(text) == text
