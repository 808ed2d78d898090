"""docs/architecture.md tells the truth: its table, its walk and the files it names."""

from __future__ import annotations

import functools
import importlib
import re

import pytest

from architecture_report import DOCUMENT, FIGURE, PAGE
from pages.results import ROOT
from pages.rooms import ROOMS, SOURCE, rooms_block

TEXT = DOCUMENT.read_text()
NAMES = sorted(set(re.findall(r"`(isotherm(?:\.\w+)+)`", TEXT)))
FILES = sorted(set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)", TEXT.split("## Sizes")[0])))


def test_the_table_of_rooms_is_up_to_date() -> None:
    assert rooms_block() in TEXT, "run `make docs`"


def test_every_room_is_measured_and_the_blocks_are_known() -> None:
    sizes = TEXT.split("<!-- architecture: sizes -->")[1]
    assert all(f"| `{room}` |" in sizes for room in ROOMS), "run `make docs`"
    assert PAGE.names_in(TEXT) == ["rooms", "sizes"]
    assert FIGURE.is_file()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_named_exists(name: str) -> None:
    """A module, a function of one, or a method of a class."""
    pieces = name.split(".")
    for length in range(len(pieces), 0, -1):
        try:
            found = importlib.import_module(".".join(pieces[:length]))
        except ImportError:
            continue
        functools.reduce(getattr, pieces[length:], found)
        return
    pytest.fail(f"there is no {name}")


@pytest.mark.parametrize("file", FILES)
def test_files_that_are_named_exist(file: str) -> None:
    assert (SOURCE / file).exists() or (ROOT / file).exists()


def test_the_walk_has_ten_lines_and_each_names_one_function() -> None:
    walk = TEXT.split("## What happens")[1].split("\n\n")[1]
    lines = re.findall(r"^\d+\. .*$", walk, re.MULTILINE)
    assert [line.split(".")[0] for line in lines] == [str(number) for number in range(1, 11)]
    assert all(len(re.findall(r"`isotherm\.[\w.]+`", line)) == 1 for line in lines)
