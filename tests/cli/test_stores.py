"""Which store a user means."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers_cli import run_tiny
from isotherm.cli.stores import store_path, stored_studies
from isotherm.errors import StoreError, UserError
from isotherm.running.store import Store

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
    with pytest.raises(StoreError, match="a folder with 0 stores in it; name one file"):
        store_path("quickstart")
    Path("quickstart/quickstart.sqlite").touch()
    assert store_path("quickstart") == Path("quickstart/quickstart.sqlite")
    Path("quickstart/other.sqlite").touch()
    with pytest.raises(StoreError, match="a folder with 2 stores"):
        store_path("quickstart")


def test_the_studies_of_a_store() -> None:
    run_tiny()
    path = Path("tiny.sqlite")
    (found,) = stored_studies(path)
    assert (found.plan.name, found.counts()["finished"]) == ("tiny", 18)
    assert [one.plan.name for one in stored_studies(path, study="tiny")] == ["tiny"]
    with pytest.raises(UserError, match="holds no study 'tinny'; did you mean 'tiny'"):
        stored_studies(path, study="tinny")


def test_a_store_without_a_study() -> None:
    with Store.write("empty.sqlite"):
        pass
    with pytest.raises(UserError, match="holds no study yet; run one into it with isotherm run STUDY --store"):
        stored_studies(Path("empty.sqlite"))
