"""`isotherm data`: list, verify and fetch, on small files and a local server."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers_data import packed_dataset, plain_dataset, serving, tar_bytes, unused_url, write_mnist
from isotherm.cli.main import app
from isotherm.data.catalogue import DATASETS, DataFile
from isotherm.data.listing import Presence, list_one

CONTENT = b"some bytes of a file " * 1000
NOTE = "Ask the publisher [first]."

runner = CliRunner()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ISOTHERM_DATA", "files")


def invoke(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["data", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def catalogue_of_written_mnist(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Write a small MNIST and let the catalogue expect exactly that; return the files."""
    write_mnist(Path("files"))
    paths = [Path("files/mnist") / file.path for file in DATASETS["mnist"].files]
    files = tuple(
        DataFile(path=p.name, size=p.stat().st_size, sha256=hashlib.sha256(p.read_bytes()).hexdigest()) for p in paths
    )
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], files=files))
    return paths


class TestList:
    def states(self, *arguments: str) -> dict[str, tuple[str, str]]:
        code, _ = invoke("list", "--json", "list.json", *arguments)
        assert code == 0
        entries = json.loads(Path("list.json").read_text())["datasets"]
        return {entry["name"]: (entry["state"], entry["detail"]) for entry in entries}

    def test_every_data_set_with_title_size_place_and_state(self) -> None:
        code, text = invoke("list")
        assert code == 0
        for name, dataset in DATASETS.items():
            assert name in text
            assert dataset.title.partition(":")[0] in text
            assert f"files/{name}" in text
        assert "184.4 MB" in text
        assert "isotherm data verify" in text  # what this did not look at
        code, text = invoke("list", "--data", "elsewhere", "--json", "list.json")
        content = json.loads(Path("list.json").read_text())
        assert (content["folder"], content["checked"]) == ("elsewhere", "sizes")
        assert content["datasets"][1]["folder"] == "elsewhere/mnist"
        assert content["datasets"][1]["size"] == sum(file.size for file in DATASETS["mnist"].files)

    def test_nothing_there(self) -> None:
        states = self.states()
        assert states["mnist1d"] == ("complete", "generated, nothing to fetch")
        assert states["cifar10"] == ("missing", "none of 6 files")
        assert states["imagenet"] == ("missing", "none of 2 splits")

    def test_complete_wrong_and_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        paths = catalogue_of_written_mnist(monkeypatch)
        assert self.states()["mnist"] == ("complete", "4 files")
        paths[3].rename("away")
        assert self.states()["mnist"] == ("missing", f"1 of 4 files: {paths[3].name}")
        paths[0].write_bytes(b"short")
        assert self.states()["mnist"] == ("wrong", f"{paths[0].name} has another size")

    def test_sizes_are_all_that_is_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (path, *_) = catalogue_of_written_mnist(monkeypatch)
        path.write_bytes(bytes(path.stat().st_size))
        assert self.states()["mnist"][0] == "complete"

    def test_other_layouts_that_the_loaders_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for path in catalogue_of_written_mnist(monkeypatch):
            path.rename(path.with_suffix(""))
        Path("files/cifar10/cifar-10-batches-py").mkdir(parents=True)
        states = self.states()
        assert states["mnist"] == states["cifar10"] == ("complete", "in another layout, read unchecked")
        Path("files/cifar10/cifar-10-batches-bin").mkdir()  # is read first, and is empty
        assert self.states()["cifar10"][0] == "missing"

    def test_a_folder_of_images(self) -> None:
        for split in ("train", "val"):
            Path("files/imagenet", split, "n01").mkdir(parents=True)
        listed = list_one(DATASETS["imagenet"], Path("files"))
        assert (listed.presence, listed.detail, listed.size) == (Presence.COMPLETE, "2 splits", None)


class TestVerify:
    def test_right(self, monkeypatch: pytest.MonkeyPatch) -> None:
        catalogue_of_written_mnist(monkeypatch)
        code, text = invoke("verify", "mnist", "--json", "verify.json")
        assert code == 0
        assert text.count("is right: ") == 4
        (entry,) = json.loads(Path("verify.json").read_text())["datasets"]
        assert entry["ok"]
        assert {file["state"] for file in entry["files"]} == {"ok"}

    def test_a_wrong_checksum(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (path, *_) = catalogue_of_written_mnist(monkeypatch)
        path.write_bytes(bytes(path.stat().st_size))
        code, text = invoke("verify", "mnist", "--json", "verify.json")
        assert code == 2
        assert f"wrong sha256 {path} has sha256" in text
        assert f"remove {path.name} and run `isotherm data fetch mnist`" in text
        assert "error: missing or wrong files: mnist" in text
        (entry,) = json.loads(Path("verify.json").read_text())["datasets"]
        assert not entry["ok"]
        assert [file["state"] for file in entry["files"]] == ["wrong sha256", "ok", "ok", "ok"]

    def test_a_missing_file_and_a_wrong_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second, *_ = catalogue_of_written_mnist(monkeypatch)
        first.unlink()
        second.write_bytes(b"short")
        code, text = invoke("verify", "mnist")
        assert code == 2
        assert f"missing {first} is missing; run `isotherm data fetch mnist`" in text
        assert f"wrong size {second} has 5 bytes" in text

    def test_what_is_named_and_not_there(self) -> None:
        code, text = invoke("verify", "ptb")
        assert code == 2
        assert "ptb.train.txt is missing" in text

    def test_without_names_all_that_have_a_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        code, text = invoke("verify")
        assert code == 2
        assert "there is no data set in files; fetch one with `isotherm data fetch NAME`" in text
        catalogue_of_written_mnist(monkeypatch)
        code, text = invoke("verify")
        assert code == 0
        assert "cifar" not in text
        Path("files/ptb").mkdir()
        assert invoke("verify")[0] == 2

    def test_what_is_generated(self) -> None:
        code, text = invoke("verify", "mnist1d")
        assert code == 0
        assert "mnist1d: generated, there is no file to check" in text

    def test_an_unknown_name(self) -> None:
        code, text = invoke("verify", "cifar1")
        assert code == 2
        assert "unknown data set 'cifar1'; did you mean 'cifar10'" in text


class TestFetch:
    def test_a_file_with_its_note_and_progress(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(CONTENT) as server:
            monkeypatch.setitem(DATASETS, "toy", replace(plain_dataset(CONTENT, server.url), note=NOTE))
            code, text = invoke("fetch", "toy", "--data", "here", "--json", "fetch.json")
            assert code == 0
            assert server.asked == [None]
            assert invoke("fetch", "toy", "--data", "here")[0] == 0
            assert server.asked == [None]  # nothing was left to fetch
        assert Path("here/toy/toy.bin").read_bytes() == CONTENT
        assert f"toy into here/toy {NOTE}" in text
        assert f"toy.bin: {len(CONTENT):,} bytes downloaded" in text
        assert "right here/toy/toy.bin is right" in text
        assert json.loads(Path("fetch.json").read_text())["datasets"][0]["ok"]
        assert invoke("verify", "toy", "--data", "here")[0] == 0

    def test_an_archive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        contents = {"a.bin": b"first", "b.bin": b"second"}
        archive = tar_bytes({f"inner/{name}": content for name, content in contents.items()})
        with serving(archive) as server:
            monkeypatch.setitem(DATASETS, "toy", packed_dataset(contents, archive, server.url))
            assert invoke("fetch", "toy")[0] == 0
        assert Path("files/toy/out/b.bin").read_bytes() == b"second"

    def test_without_a_network_the_files_and_places_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(DATASETS, "toy", plain_dataset(CONTENT, unused_url()))
        code, text = invoke("fetch", "toy")
        assert code == 2
        assert "error: toy.bin could not be fetched" in text
        assert (
            "Without a network, put these files from https://toy.example/page into files/toy: toy.bin (21,000" in text
        )
        assert not Path("files/toy/toy.bin").exists()

    def test_what_cannot_be_fetched(self) -> None:
        code, text = invoke("fetch", "imagenet")
        assert code == 2
        assert "imagenet cannot be fetched; take it from https://www.image-net.org" in text

    def test_what_is_generated(self) -> None:
        code, text = invoke("fetch", "mnist1d")
        assert code == 0
        assert "there is nothing to fetch" in text

    def test_an_unknown_name_before_anything_is_fetched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(DATASETS, "toy", plain_dataset(CONTENT, "http://never.asked.example"))
        code, text = invoke("fetch", "toy", "minst")
        assert code == 2
        assert "unknown data set 'minst'; did you mean 'mnist'" in text
        assert not Path("files").exists()

    def test_no_name(self) -> None:
        code, text = invoke("fetch")
        assert code == 2
        assert "NAME" in text

    def test_an_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stopped(*_arguments: object, **_keywords: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("isotherm.data.files.fetch", stopped)
        code, text = invoke("fetch", "mnist")
        assert code == 130
        assert "What was downloaded is kept; the same command resumes from there" in text

    def test_a_folder_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(DATASETS, "toy", plain_dataset(CONTENT, unused_url()))
        code, text = invoke("fetch", "toy", "--data", "/proc/nowhere")
        assert code == 2
        assert "cannot be written" in text


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_json_to_standard_output_is_pure_json(path: str) -> None:
    result = runner.invoke(app, ["data", "list", "--json", path])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["datasets"][0]["name"] == "mnist1d"


def test_json_into_a_pipe_is_refused_before_anything_is_done() -> None:
    os.mkfifo("pipe")
    code, text = invoke("list", "--json", "pipe")
    assert code == 2
    assert text == "error: pipe is a pipe, not a file; name /dev/stdout instead, and add > pipe to the command"
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize(
    "command",
    [
        "isotherm list --json >(cat > read)",  # what the shell calls /dev/fd/63
        "mkfifo pipe; cat pipe > read & isotherm list --json /dev/stdout > pipe",  # the remedy of the refusal
        "isotherm list --json /dev/fd/3 3> read",
        "isotherm list --json /dev/stderr 2> read > /dev/null",
    ],
)
def test_json_into_what_the_shell_has_opened(command: str) -> None:
    own = f"{shlex.quote(sys.executable)} -m isotherm data list"
    shell = ["bash", "-c", command.replace("isotherm list", own)]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    end = time.monotonic() + 10  # for the reader, which the shell does not wait for
    while not (text := Path("read").read_text()).endswith("}\n") and time.monotonic() < end:
        time.sleep(0.01)
    assert json.loads(text)["datasets"][0]["name"] == "mnist1d"


def test_help() -> None:
    code, text = invoke("--help")
    assert code == 0
    for command in ("list", "verify", "fetch"):
        assert command in text
