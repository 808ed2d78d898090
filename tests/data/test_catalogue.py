from pathlib import Path
from urllib.parse import urlsplit

import pytest

from isotherm.data.catalogue import DATASETS, Download, data_folder, get_dataset
from isotherm.errors import UserError


def test_entries_are_listed_under_their_names() -> None:
    assert all(dataset.name == name for name, dataset in DATASETS.items())


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_is_complete(name: str) -> None:
    dataset = DATASETS[name]
    assert dataset.title
    assert urlsplit(dataset.page).scheme in ("http", "https")
    for file in dataset.files:
        assert len(file.sha256) == 64
        assert int(file.sha256, 16) >= 0
        assert not Path(file.path).is_absolute()
        assert ".." not in file.path
    for download in dataset.downloads:
        assert all(urlsplit(url).scheme in ("http", "https") for url in download.urls)
        assert download.urls
        assert download.sha256 or download.md5
        assert download.size > 0
    assert sorted(path for d in dataset.downloads for path in d.paths) == sorted(f.path for f in dataset.files)


def test_nothing_to_fetch_where_the_data_are_generated_or_brought() -> None:
    for name in ("mnist1d", "imagenet"):
        assert not DATASETS[name].downloads
        assert DATASETS[name].note
    assert DATASETS["imagenet"].splits == ("train", "val")
    assert "licence" in DATASETS["ptb"].note


def test_sizes_follow_from_the_record_layouts() -> None:
    assert {f.size for f in DATASETS["cifar10"].files} == {10_000 * (1 + 3 * 32 * 32)}
    assert [f.size for f in DATASETS["cifar100"].files] == [n * (2 + 3 * 32 * 32) for n in (50_000, 10_000)]


def test_published_sums_of_the_archives() -> None:
    assert DATASETS["cifar10"].downloads[0].md5 == "c32a1d4ab5d03f1284b67883e8d87530"
    assert DATASETS["cifar100"].downloads[0].md5 == "03b5dce01913d631647c71ecec9e9cb8"


def test_paths_of_a_download() -> None:
    assert Download(name="a.gz", urls=("http://x",), size=1).paths == ("a.gz",)
    packed = Download(name="a.tar", urls=("http://x",), size=1, members=(("in/b", "b"), ("in/c", "c")))
    assert packed.paths == ("b", "c")


def test_unknown_name_suggests_the_nearest() -> None:
    assert get_dataset("ptb") is DATASETS["ptb"]
    with pytest.raises(UserError, match=r"unknown data set 'cifar'; did you mean 'cifar10'\?"):
        get_dataset("cifar")


def test_data_folder_option_then_environment_then_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("ISOTHERM_DATA", raising=False)
    assert data_folder() == tmp_path / "home" / ".cache" / "isotherm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "isotherm"
    monkeypatch.setenv("ISOTHERM_DATA", str(tmp_path / "env"))
    assert data_folder() == tmp_path / "env"
    assert data_folder(tmp_path / "option") == tmp_path / "option"
    monkeypatch.setenv("ISOTHERM_DATA", "~/mine")
    assert data_folder() == tmp_path / "home" / "mine"
    assert data_folder(Path("~/other")) == tmp_path / "home" / "other"
    monkeypatch.setenv("ISOTHERM_DATA", "")
    assert data_folder() == tmp_path / "cache" / "isotherm"
