"""Which store a user means."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.cli.stores import store_path
from isotherm.errors import StoreError

pytestmark = pytest.mark.usefixtures("study_folder")


def test_a_path_is_itself_whether_it_exists_or_not() -> None:
    assert store_path("nowhere.sqlite") == Path("nowhere.sqlite")
    Path("mine.sqlite").touch()
    assert store_path("mine.sqlite") == Path("mine.sqlite")


def test_a_study_means_its_store_in_this_folder() -> None:
    assert store_path("study.toml") == Path("file.sqlite")
    assert store_path("mycode:sweep") == Path("tiny.sqlite")
    assert store_path("quickstart") == Path("quickstart")  # there is none yet
    Path("quickstart.sqlite").touch()
    assert store_path("quickstart") == Path("quickstart.sqlite")


def test_a_folder_means_the_one_store_in_it() -> None:
    Path("quickstart").mkdir()
    with pytest.raises(StoreError, match="a folder with 0 stores in it; name a file, or run a study"):
        store_path("quickstart")
    Path("quickstart/quickstart.sqlite").touch()
    assert store_path("quickstart") == Path("quickstart/quickstart.sqlite")
    Path("quickstart/other.sqlite").touch()
    with pytest.raises(StoreError, match="a folder with 2 stores"):
        store_path("quickstart")
