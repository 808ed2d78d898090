"""`isotherm run --task`: one cell from the command line, on small data in the real formats, and what is refused."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from helpers_data import idx, write_mnist
from isotherm.cli.main import app
from isotherm.data import cifar
from isotherm.running.store import Store

CODE = """
import dataclasses
from functools import partial
import torch
from torch import nn
import isotherm as it
from isotherm.models.lstm import LSTMLanguageModel
from isotherm.models.wide_resnet import wide_resnet

def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    return torch.randn(n, 3, generator=g) + 1.5 * y[:, None], y

def model():
    return nn.Linear(3, 2)

def blobs():
    return it.Task(name="blobs", model=model, train=data(64, 0), test=data(32, 1))

def mixed():
    return dataclasses.replace(blobs(), precision="mixed", notes=("made for tests",))

def odd_name():
    return dataclasses.replace(blobs(), name="my task: 1/2")

class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        if self.training and float(self.layer.weight.detach().norm()) > 3.0:
            raise RuntimeError("weights [too] large")
        return self.layer(x)

def fragile():
    return dataclasses.replace(blobs(), name="fragile", model=Fragile)

def lstm(data=None):
    task = it.get_task("lstm_ptb", data=data)
    vocabulary = int(task.train[0].max()) + 1
    model = partial(LSTMLanguageModel, vocabulary=vocabulary, width=6, num_layers=1, drop_probability=0.0)
    return dataclasses.replace(task, name="small_lstm", model=model)

def resnet(data=None):
    task = it.get_task("wrn16x4_cifar10", data=data)
    return dataclasses.replace(task, name="small_resnet", model=partial(wide_resnet, depth=10, width=1, ghost_size=4))

def refused():
    raise ImportError("nothing there")
"""

SETTING = ["--batch-size", "8", "--effective-learning-rate", "0.5", "--steps", "10"]
AUTOENCODER = ["--task", "autoencoder_mnist", "--batch-size", "4", "--effective-learning-rate", "0.05", "--steps", "2"]

runner = CliRunner()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ISOTHERM_DATA", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("taskcode", None)
    Path("taskcode.py").write_text(CODE)


def invoke(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def run_blobs(*more: str) -> str:
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING, *more)
    assert code == 0, text
    return text


def stored() -> list[str]:
    """Return the outcomes of all runs in all stores of the current folder."""
    outcomes = []
    for path in Path().glob("*.sqlite"):
        with Store.read(path) as store:
            outcomes += [str(run.result.outcome) for run in store.runs()]
    return outcomes


def write_ptb(folder: Path, *, test: str = " the cat \n") -> None:
    (folder / "ptb").mkdir(parents=True)
    texts = {"train": " the cat <unk> \n the dog sees the cat \n" * 20, "valid": " the cat sees \n" * 3, "test": test}
    for split, text in texts.items():
        (folder / "ptb" / f"ptb.{split}.txt").write_text(text, newline="")


def write_cifar10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "NUM_EXAMPLES", {"train": 20, "test": 4})
    own = folder / "cifar10" / "cifar-10-batches-bin"
    own.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = generator.integers(256, size=(4, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (own / f"{name}.bin").write_bytes(records.tobytes())


# -- what is printed and kept ---------------------------------------------------------------------------------------


def test_the_setting_in_one_line_then_looks_then_a_table() -> None:
    text = run_blobs("--seeds", "2", "--evaluations", "2", "--l2", "0.01", "--momentum", "0.5")
    setting, _, rest = text.partition(" training: 0/2 runs")
    assert setting == (
        "blobs: B = 8, ε_eff = 0.5, ε = 0.25, m = 0.5, T = 0.0625, 10 updates, 1.25 epochs, float32, cpu, 8 parameters"
    )
    for seed in (0, 1):
        for update in (" 5", "10"):
            assert f"seed {seed}, update {update.strip()}: test loss 0." in rest
    assert rest.count("test accuracy") >= 4
    for header in ("L2", "penalty", "running", "mean", "sd ±"):
        assert header in rest
    assert "clipped" not in rest
    assert "averages" not in rest
    assert "Store: blobs.sqlite. Report: isotherm report blobs.sqlite" in rest
    assert stored() == ["finished"] * 2


def test_json_has_spec_and_result_of_every_run() -> None:
    run_blobs("--seeds", "3", "--first-seed", "4", "--clip-norm", "0.1", "--evaluations", "5", "--json", "cell.json")
    content = json.loads(Path("cell.json").read_text())
    assert (content["task"], content["batch_size"], content["num_steps"], content["num_epochs"]) == (
        "blobs",
        8,
        10,
        1.25,
    )
    assert content["learning_rate"] == 0.05
    assert content["temperature"] == 0.5 / 8
    assert content["counts"] == {"finished": 3, "diverged": 0, "failed": 0}
    assert [run["spec"]["seed"] for run in content["runs"]] == [4, 5, 6]
    with Store.read("blobs.sqlite") as store:
        runs = {run.spec.key: run for run in store.runs()}
    for run in content["runs"]:
        assert not run["was_stored"]
        assert run["spec"] == runs[run["key"]].spec.to_json()
        assert run["result"] == json.loads(json.dumps(runs[run["key"]].result.to_json()))
        assert len(run["result"]["curve"]) == 5
        assert run["spec"]["clip_norm"] == 0.1
    losses = [run["result"]["test_loss"] for run in content["runs"]]
    assert content["summary"]["test_loss"]["mean"] == pytest.approx(sum(losses) / 3)
    assert content["summary"]["test_loss"]["standard_deviation"] == pytest.approx(np.std(losses, ddof=1))
    assert content["summary"]["clipped_fraction"]["num_runs"] == 3


def test_json_to_standard_output_is_pure_json() -> None:
    command = [sys.executable, "-m", "isotherm", "run", "--task", "taskcode:blobs", *SETTING, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    assert json.loads(done.stdout)["task"] == "blobs"
    assert "ε_eff" in done.stderr


def test_stored_runs_are_said_to_be_stored_and_only_new_seeds_are_run() -> None:
    run_blobs("--seeds", "2")
    text = run_blobs("--seeds", "3", "--json", "cell.json")
    assert "seeds 0, 1: stored in blobs.sqlite, not run again" in text
    assert "training: 0/1 runs" in text
    assert [run["was_stored"] for run in json.loads(Path("cell.json").read_text())["runs"]] == [True, True, False]
    text = run_blobs("--seeds", "3")
    assert "seeds 0, 1, 2: stored" in text
    assert "training" not in text
    assert "mean" in text
    assert stored() == ["finished"] * 3


def test_the_numbers_are_those_of_the_same_cell_in_a_study() -> None:
    run_blobs("--seeds", "2", "--l2", "0.01", "--store", "cell.sqlite")
    Path("study.toml").write_text(
        'name = "same"\ntask = "taskcode:blobs"\n[[sweep]]\nname = "one"\nbatch_sizes = [8]\n'
        'effective_learning_rates = [0.5]\nsteps = 10\nl2 = 0.01\nnum_seeds = 2\ntune_on = "test"\nmax_extensions = 0\n'
    )
    assert invoke("run", "study.toml", "--workers", "1")[0] == 0
    with Store.read("cell.sqlite") as cell, Store.read("same.sqlite") as study:
        assert cell.results() == study.results()


def test_cells_of_a_task_share_a_store_and_each_is_reported() -> None:
    run_blobs()
    run_blobs("--momentum", "0", "--precision", "float64", "--l2", "1e-7", "--clip-norm", "5", "--first-seed", "3")
    code, text = invoke("status", "blobs.sqlite", "--json", "status.json")
    assert code == 0
    names = [sweep["study"] for sweep in json.loads(Path("status.json").read_text())["sweeps"]]
    assert names == ["blobs-B8-lr0.5-m0.9-10steps", "blobs-B8-lr0.5-m0.0-10steps-l2_1e-07-clip_5.0-float64-seed3"]
    code, text = invoke("report", "blobs.sqlite", "--output", "out")
    assert code == 0, text
    assert {path.name for path in Path("out").iterdir()} == set(names)


def test_a_diverged_run_is_said_plainly_with_its_step() -> None:
    text = run_blobs("--effective-learning-rate", "1e30", "--l2", "1", "--json", "cell.json", "--seeds", "2")
    (first, second) = json.loads(Path("cell.json").read_text())["runs"]
    for run in (first, second):
        step, seed = run["result"]["divergence_step"], run["spec"]["seed"]
        assert run["result"]["outcome"] == "diverged"
        assert f"seed {seed} diverged: its loss was not finite after {step} update" in text
    assert "mean" not in text
    assert stored() == ["diverged"] * 2


def test_a_failed_run_has_its_own_exit_code_and_is_tried_again() -> None:
    command = ["run", "--task", "taskcode:fragile", *SETTING, "--effective-learning-rate", "1000"]
    for _ in range(2):
        code, text = invoke(*command)
        assert code == 3
        assert "seed 0 failed: RuntimeError: weights [too] large" in text
        assert "1 run failed; it is tried again next time" in text
        assert "not run again" not in text
        assert stored() == ["failed"]


def test_a_task_that_says_mixed_is_trained_in_float32_on_a_cpu_and_says_so() -> None:
    code, text = invoke("run", "--task", "taskcode:mixed", *SETTING, "--json", "cell.json")
    assert code == 0
    assert "float32, cpu" in text
    assert "note: made for tests" in text
    assert "note: the task asks for mixed precision, which pays on a GPU; on this CPU it is trained in float32" in text
    assert json.loads(Path("cell.json").read_text())["runs"][0]["spec"]["precision"] == "float32"
    code, text = invoke("run", "--task", "taskcode:mixed", *SETTING, "--precision", "mixed")
    assert code == 0
    assert "mixed, cpu" in text
    assert "trained in float32" not in text


def test_a_name_that_is_no_file_name() -> None:
    code, text = invoke("run", "--task", "taskcode:odd_name", *SETTING)
    assert code == 0, text
    assert "my task: 1/2: B = 8" in text
    assert Path("my_task_1_2.sqlite").exists()


def test_a_built_in_task_that_needs_no_data() -> None:
    code, text = invoke("run", "--task", "mlp_mnist1d", *SETTING, "--evaluations", "0")
    assert code == 0, text
    assert "mlp_mnist1d: B = 8" in text
    assert "15,210 parameters" in text
    assert "accuracy" in text
    assert "seed 0, update" not in text


# -- the paper's tasks on small files in the real formats -----------------------------------------------------------


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
[[sweep]]
name = "words"
task = "taskcode:lstm"
batch_sizes = [2]
effective_learning_rates = [0.5]
steps = 1
num_seeds = 1
tune_on = "test"
max_extensions = 0
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


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["neither a study nor --task is given", "give STUDY for a study, or --task"]),
        (["quickstart", "--task", "mlp_mnist1d"], ["the study 'quickstart' and --task mlp_mnist1d are both given"]),
        (["quickstart", "--batch-size", "8"], ["--batch-size belongs to --task", "leave it out"]),
        (["quickstart", "--seeds", "8"], ["--seeds belongs to --task"]),
        (["--task", "mlp_mnist1d"], ["--task needs --batch-size", "e.g. --batch-size 64"]),
        (["--task", "mlp_mnist1d", "--batch-size", "8"], ["--task needs --effective-learning-rate"]),
        (["--task", "mlp_mnist1d", *SETTING[:4]], ["--steps or --epochs, and neither is given"]),
        (["--task", "mlp_mnist1d", *SETTING, "--epochs", "1"], ["--steps or --epochs, and both are given"]),
        (["--task", "mlp_mnist1d", *SETTING, "--workers", "2"], ["--workers 2: one cell trains in one process"]),
        (["--task", "mlp_mnist1d", *SETTING, "--steps", "0"], ["a budget of 0 steps is not positive"]),
        (["--task", "mlp_mnist1d", *SETTING, "--steps", "1.5"], ["Invalid value for '--steps'"]),
        (["--task", "mlp_mnist1d", *SETTING, "--batch-size", "0"], ["batch size 0", "at least 1"]),
        (["--task", "mlp_mnist1d", *SETTING, "--batch-size", "4001"], ["4001", "training set of 4000", "at most 4000"]),
        (["--task", "mlp_mnist1d", *SETTING, "--effective-learning-rate", "-1"], ["-1.0 is not a positive number"]),
        (["--task", "mlp_mnist1d", *SETTING, "--effective-learning-rate", "nan"], ["nan is not a positive number"]),
        (["--task", "mlp_mnist1d", *SETTING, "--momentum", "1"], ["momentum=1.0 is not in [0, 1)"]),
        (["--task", "mlp_mnist1d", *SETTING, "--seeds", "0"], ["num_seeds 0 is not a whole number of at least 1"]),
        (["--task", "mlp_mnist1d", *SETTING, "--first-seed", "-1"], ["first_seed -1"]),
        (["--task", "mlp_mnist1d", *SETTING, "--l2", "-1"], ["l2=-1.0 is not a number >= 0"]),
        (["--task", "mlp_mnist1d", *SETTING, "--clip-norm", "0"], ["clip_norm=0.0 is not above 0"]),
        (["--task", "mlp_mnist1d", *SETTING, "--precision", "half"], ["precision='half' is unknown", "'mixed'"]),
        (["--task", "mlp_mnist1d", *SETTING, "--evaluations", "-1"], ["num_evaluations -1"]),
        (["--task", "mlp_mnist1d", *SETTING, "--device", "cuda"], ["PyTorch sees no GPU here; use --device cpu"]),
        (["--task", "mlp_mnist1d", *SETTING, "--device", "tpu"], ["device 'tpu'", "use 'cpu' or 'cuda'"]),
        (["--task", "mlp_mnist1d", *SETTING, "--json", "no/such.json"], ["name a file in an existing folder"]),
        (["--task", "autoencoder_mnst", *SETTING], ["'autoencoder_mnst'", "did you mean 'autoencoder_mnist'"]),
        (["--task", "taskcode:blob", *SETTING], ["no function 'blob'", "did you mean 'blobs'"]),
        (["--task", "taskcode:model", *SETTING], ["returned Linear", "isotherm.Task"]),
        (["--task", "taskcode:refused", *SETTING], ["ImportError: nothing there"]),
        (["--task", "no_such_module:f", *SETTING], ["'no_such_module' cannot be imported"]),
    ],
)  # fmt: skip
def test_a_bad_command_is_refused_and_no_store_is_made(
    arguments: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, text = invoke("run", *arguments)
    assert code == 2, text
    for part in expected:
        assert part in text
    assert not list(Path().glob("*.sqlite"))


def test_no_data_folder() -> None:
    code, text = invoke("run", *AUTOENCODER, "--data", "nowhere")
    assert code == 2
    assert "error: the data folder nowhere does not exist; run `isotherm data fetch mnist`" in text
    assert "--data or the environment variable ISOTHERM_DATA" in text
    Path("nowhere").mkdir()
    code, text = invoke("run", *AUTOENCODER, "--data", "nowhere")
    assert code == 2
    assert "the folder of the data set nowhere/mnist does not exist" in text
    assert not stored()


def test_one_missing_file() -> None:
    write_mnist(Path("files"))
    Path("files/mnist/t10k-images-idx3-ubyte.gz").unlink()
    code, text = invoke("run", *AUTOENCODER, "--data", "files")
    assert code == 2
    assert "t10k-images-idx3-ubyte.gz is missing; run `isotherm data fetch mnist`" in text
    assert not stored()


def test_a_truncated_file() -> None:
    write_mnist(Path("files"))
    path = Path("files/mnist/train-images-idx3-ubyte.gz")
    path.write_bytes(path.read_bytes()[:1000])
    code, text = invoke("run", *AUTOENCODER, "--data", "files")
    assert code == 2
    assert (
        "train-images-idx3-ubyte.gz is truncated after 1,000 bytes; remove train-images-idx3-ubyte.gz and run" in text
    )
    assert not stored()


def test_images_of_another_size() -> None:
    write_mnist(Path("files"))
    images = np.zeros((7, 32, 32), dtype=np.uint8)
    Path("files/mnist/train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    code, text = invoke("run", *AUTOENCODER, "--data", "files")
    assert code == 2
    assert "holds images of 32 × 32 pixels, expected 28 × 28; put the files of MNIST there" in text
    assert not stored()


def test_a_batch_that_ghost_batch_norm_cannot_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(Path("files"), monkeypatch)
    setting = ["--batch-size", "6", "--effective-learning-rate", "0.1", "--steps", "2"]
    code, text = invoke("run", "--task", "taskcode:resnet", *setting, "--data", "files")
    assert code == 2
    assert "a batch of 6 cannot be split into ghost batches of 4; use a batch size of 4 or 8" in text
    assert not stored()


def test_more_streams_than_the_text_has() -> None:
    write_ptb(Path("files"))
    setting = ["--batch-size", "6", "--effective-learning-rate", "0.1", "--steps", "2"]
    code, text = invoke("run", "--task", "taskcode:lstm", *setting, "--data", "files")
    assert code == 2
    assert "tokens in 6 streams hold no window of 35 tokens" in text
    assert "use a batch size of at most 5" in text
    assert not stored()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_out_of_memory(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_arguments: object, **_keywords: object) -> None:
        raise error

    monkeypatch.setattr("isotherm.running.executors.local.run_fleet", too_large)
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING, "--seeds", "3")
    assert code == 2
    assert "one run of task 'blobs' at batch size 8 does not fit into the memory of cpu; use a smaller batch" in text
    assert not stored()


def test_out_of_memory_keeps_what_was_stored_and_runs_the_rest_later(monkeypatch: pytest.MonkeyPatch) -> None:
    run_blobs("--seeds", "2")
    with monkeypatch.context() as patch:
        patch.setattr(
            "isotherm.running.executors.local.run_fleet", lambda *_a, **_k: (_ for _ in ()).throw(MemoryError())
        )
        assert invoke("run", "--task", "taskcode:blobs", *SETTING, "--seeds", "4")[0] == 2
    assert stored() == ["finished"] * 2
    assert "seeds 0, 1: stored" in run_blobs("--seeds", "4")
    assert stored() == ["finished"] * 4


def test_a_store_that_is_no_store_or_cannot_be_made() -> None:
    Path("blobs.sqlite").write_text("not a database at all, only text")
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING)
    assert code == 2
    assert "not a store" in text
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING, "--store", "/proc/blobs.sqlite")
    assert code == 2
    assert "cannot be written" in text


def test_ctrl_c_stops_with_130_and_keeps_nothing_unfinished() -> None:
    setting = ["--batch-size", "1", "--effective-learning-rate", "0.1", "--steps", "200000", "--evaluations", "1000"]
    command = [sys.executable, "-m", "isotherm", "run", "--task", "taskcode:blobs", *setting]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment(), start_new_session=True
    )
    assert process.stdout is not None
    while "seed 0, update" not in process.stdout.readline():  # the first look
        pass
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "the same command resumes" in output
    assert not stored()
    with Store.write("blobs.sqlite"):  # nobody holds the lock
        pass


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def test_options_of_model_and_transform_change_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(Path("files"), monkeypatch)
    setting = ["--batch-size", "4", "--effective-learning-rate", "0.1", "--steps", "1", "--data", "files"]
    more = ["--model", "ghost_size=2", "--transform", "padding=zero", "--json", "cell.json"]
    code, text = invoke("run", "--task", "taskcode:resnet", *setting, *more)
    assert code == 0, text
    assert "small_resnet (ghost_size=2, padding=zero): B = 4" in text
    assert json.loads(Path("cell.json").read_text())["runs"][0]["result"]["outcome"] == "finished"
    assert Path("small_resnet_ghost_size_2_padding_zero.sqlite").exists()


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--model", "ghostsize=2"), "its model takes no 'ghostsize'"),
        (("--model", "ghost_size"), "--model 'ghost_size' is not NAME=VALUE"),
        (("--transform", "pad=2"), "has no transform with fields to change"),
    ],
)
def test_unknown_options_of_a_task_are_refused(option: tuple[str, str], sentence: str) -> None:
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING, *option)
    assert code == 2
    assert sentence in text
    assert not list(Path().glob("*.sqlite"))
