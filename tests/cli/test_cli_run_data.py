"""`isotherm run` with `--data`: the paper's tasks on small files in the real formats."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from helpers_cli import (
    AUTOENCODER,
    invoke,
    write_cifar10,
    write_ptb,
)
from helpers_data import write_mnist
from isotherm.running.store import Store

pytestmark = pytest.mark.usefixtures("task_folder")


def test_the_autoencoder_on_mnist_files() -> None:
    write_mnist(Path("files"), num_train=20, num_test=6)
    code, text = invoke("run", *AUTOENCODER, "--data", "files", "--seeds", "2", "--json", "cell.json")
    assert code == 0, text
    assert "autoencoder_mnist: B = 4, ε_eff = 0.05, ε = 0.005, m = 0.9, T = 0.0125, 2 updates, 0.4 epochs" in text
    assert "2,837,314 parameters" in text
    assert "test squared error" in text
    for run in json.loads(Path("cell.json").read_text())["runs"]:
        assert run["result"]["test_metric"] == pytest.approx(2 * run["result"]["test_loss"], rel=1e-5)
        assert run["result"]["l2_penalty"] > 0
        assert run["spec"]["l2_scope"] == "all"


def test_data_are_found_by_option_variable_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("by_option", "by_variable", "cache/isotherm"):
        write_ptb(Path(folder), test=" the cat " + f" {Path(folder).name} " * {"by_option": 1}.get(folder, 2) + "\n")
    command = ["run", "--task", "taskcode:lstm", "--batch-size", "2", "--effective-learning-rate", "1", "--steps", "1"]
    notes = {}
    for place in ("cache", "variable", "option"):
        if place == "variable":
            monkeypatch.setenv("ISOTHERM_DATA", "by_variable")
        options = ["--data", "by_option"] if place == "option" else []
        code, text = invoke(*command, *options, "--store", f"{place}.sqlite", "--json", f"{place}.json")
        assert code == 0, text
        notes[place] = json.loads(Path(f"{place}.json").read_text())["notes"][0]
    assert notes["option"] == "1 word of ptb.test.txt is not in the vocabulary and read as <unk>"
    assert notes["cache"] == notes["variable"] == "2 words of ptb.test.txt are not in the vocabulary and read as <unk>"


def test_an_lstm_on_ptb_files_and_the_words_it_does_not_know() -> None:
    write_ptb(Path("files"), test=" the zebra sees a cat \n")
    setting = ["--batch-size", "2", "--effective-learning-rate", "1", "--epochs", "2"]
    code, text = invoke("run", "--task", "taskcode:lstm", *setting, "--data", "files", "--json", "cell.json")
    assert code == 0, text
    assert "note: 2 words of ptb.test.txt are not in the vocabulary and read as <unk>" in text
    assert "4 updates, 2 epochs, float32, cpu" in text  # 200 tokens, 2 streams, windows of 35
    assert "test perplexity" in text
    assert "clipped %" in text
    result = json.loads(Path("cell.json").read_text())["runs"][0]["result"]
    assert result["test_metric"] == pytest.approx(math.exp(result["test_loss"]))
    assert result["validation_metric"] is not None


def test_a_file_that_knows_all_words_is_not_remarked_on() -> None:
    write_ptb(Path("files"))
    setting = ["--batch-size", "2", "--effective-learning-rate", "1", "--steps", "1"]
    code, text = invoke("run", "--task", "taskcode:lstm", *setting, "--data", "files")
    assert code == 0, text
    assert "vocabulary" not in text


def test_a_wide_resnet_on_cifar_files(monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(Path("files"), monkeypatch)
    setting = ["--batch-size", "4", "--effective-learning-rate", "0.1", "--steps", "2"]
    code, text = invoke("run", "--task", "taskcode:resnet", *setting, "--data", "files", "--json", "cell.json")
    assert code == 0, text
    assert "averages" in text  # the metric with the running averages of ghost batch norm has its own column
    assert "trained in float32" in text
    assert json.loads(Path("cell.json").read_text())["summary"]["test_metric_running"]["num_runs"] == 1


STUDY = """
name = "files"
[[sweep]]
name = "images"
task = "autoencoder_mnist"
batch_sizes = [4]
effective_learning_rates = [0.05]
steps = 1
num_seeds = 1
tune_on = "test"
max_extensions = 0
resolution = "paper"
[[sweep]]
name = "words"
task = "taskcode:lstm"
batch_sizes = [2]
effective_learning_rates = [0.5]
steps = 1
num_seeds = 1
tune_on = "test"
max_extensions = 0
resolution = "paper"
precision = "mixed"
clip_norm = 1.0
"""


@pytest.mark.slow
def test_a_study_takes_the_data_folder_too_and_reports_need_none() -> None:
    Path("study.toml").write_text(STUDY)
    code, text = invoke("plan", "study.toml")
    assert code == 2
    assert "study.toml, sweep 'images': the data folder" in text
    assert "isotherm data fetch mnist" in text
    write_mnist(Path("files"))
    write_ptb(Path("files"), test=" the zebra \n")
    note = "note: 1 word of ptb.test.txt is not in the vocabulary and read as <unk>"
    code, text = invoke("plan", "study.toml", "--data", "files")
    assert code == 0, text
    assert note in text
    code, text = invoke("run", "study.toml", "--data", "files", "--workers", "1")
    assert code == 0, text
    assert note in text
    for command in ("status", "report"):
        code, text = invoke(command, "study.toml")
        assert code == 0, text
    with Store.read("files.sqlite") as store:
        specs = {run.spec.task: run.spec for run in store.runs()}
    assert (specs["small_lstm"].precision, specs["small_lstm"].clip_norm) == ("mixed", 1.0)
    assert (specs["autoencoder_mnist"].precision, specs["autoencoder_mnist"].clip_norm) == ("float32", None)


def test_options_of_model_and_transform_change_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(Path("files"), monkeypatch)
    setting = ["--batch-size", "4", "--effective-learning-rate", "0.1", "--steps", "1", "--data", "files"]
    more = ["--model", "ghost_size=2", "--transform", "padding=zero", "--json", "cell.json"]
    code, text = invoke("run", "--task", "taskcode:resnet", *setting, *more)
    assert code == 0, text
    assert "small_resnet (ghost_size=2, padding=zero): B = 4" in text
    assert json.loads(Path("cell.json").read_text())["runs"][0]["result"]["outcome"] == "finished"
    assert Path("small_resnet_ghost_size_2_padding_zero.sqlite").exists()
