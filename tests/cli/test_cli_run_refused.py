"""`isotherm run --task` with bad input: one sentence, and no store."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers_cli import (
    AUTOENCODER,
    SETTING,
    invoke,
    stored,
    write_cifar10,
    write_ptb,
)
from helpers_data import idx, write_mnist

pytestmark = pytest.mark.usefixtures("task_folder")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["neither a study nor --task is given", "give STUDY for a study, or --task"]),
        (["quickstart", "--task", "mlp_mnist1d"], ["the study 'quickstart' and --task mlp_mnist1d are both given"]),
        (["quickstart", "--batch-size", "8"], ["--batch-size applies only with --task", "a study sets its own value"]),
        (["quickstart", "--steps", "8"], ["--steps applies only with --task"]),
        (["quickstart", "--seeds", "0"], ["num_seeds must be a whole number"]),
        (["quickstart", "--max-extensions", "-1"], ["max_extensions must be a whole number"]),
        (["--task", "mlp_mnist1d", *SETTING, "--max-extensions", "1"], ["--max-extensions applies only to a study"]),
        (["--task", "mlp_mnist1d"], ["--task needs --batch-size", "e.g. --batch-size 64"]),
        (["--task", "mlp_mnist1d", "--batch-size", "8"], ["--task needs --learning-rate or"]),
        (["--task", "mlp_mnist1d", *SETTING, "--learning-rate", "0.1"], ["both given", "leave one out"]),
        (["--task", "mlp_mnist1d", *SETTING, "--schedule", "cosin"], ["'cosin' is unknown; did you mean 'cosine'"]),
        (["--task", "mlp_mnist1d", *SETTING, "--warmup-steps", "10"], ["warm-up of 10 updates does not fit into"]),
        (["--task", "mlp_mnist1d", *SETTING, "--warmup-fraction", "2"], ["warmup_fraction=2.0 is not between 0 and 1"]),
        (["quickstart", "--schedule", "cosine"], ["--schedule applies only with --task"]),
        (["--task", "mlp_mnist1d", *SETTING[:4]], ["--steps or --epochs, and neither is given"]),
        (["--task", "mlp_mnist1d", *SETTING, "--epochs", "1"], ["--steps or --epochs, and both are given"]),
        (["--task", "mlp_mnist1d", *SETTING, "--workers", "2"], ["--workers 2: one cell trains in one process"]),
        (["--task", "mlp_mnist1d", *SETTING, "--steps", "0"], ["a budget of 0 steps is not positive"]),
        (["--task", "mlp_mnist1d", *SETTING, "--steps", "1.5"], ["Invalid value for '--steps'"]),
        (["--task", "mlp_mnist1d", *SETTING, "--batch-size", "0"], ["batch size must be", "at least 1, not 0"]),
        (["--task", "mlp_mnist1d", *SETTING, "--batch-size", "4001"], ["4001", "training set of 4000", "at most 4000"]),
        (["--task", "mlp_mnist1d", *SETTING, "--effective-learning-rate", "-1"], ["positive number, not -1.0"]),
        (["--task", "mlp_mnist1d", *SETTING, "--effective-learning-rate", "nan"], ["positive number, not nan"]),
        (["--task", "mlp_mnist1d", *SETTING, "--momentum", "1"], ["momentum=1.0 is not in [0, 1)"]),
        (["--task", "mlp_mnist1d", *SETTING, "--seeds", "0"], ["num_seeds must be a whole number"]),
        (["--task", "mlp_mnist1d", *SETTING, "--first-seed", "-1"], ["first_seed must be a whole number", "not -1"]),
        (["--task", "mlp_mnist1d", *SETTING, "--l2", "-1"], ["l2=-1.0 is not a number >= 0"]),
        (["--task", "mlp_mnist1d", *SETTING, "--clip-norm", "0"], ["clip_norm=0.0 is not above 0"]),
        (["--task", "mlp_mnist1d", *SETTING, "--precision", "half"], ["precision='half' is unknown", "'mixed'"]),
        (["--task", "mlp_mnist1d", *SETTING, "--evaluations", "-1"], ["num_evaluations must be", "not -1"]),
        (["--task", "mlp_mnist1d", *SETTING, "--device", "cuda"], ["PyTorch sees no GPU here; use --device cpu"]),
        (["--task", "mlp_mnist1d", *SETTING, "--device", "tpu"], ["device 'tpu'", "use 'cpu' or 'cuda'"]),
        (["--task", "mlp_mnist1d", *SETTING, "--json", "no/such.json"], ["name a file in an existing folder"]),
        (["--task", "autoencoder_mnst", *SETTING], ["'autoencoder_mnst'", "did you mean 'autoencoder_mnist'"]),
        (["--task", "taskcode:blob", *SETTING], ["no function 'blob'", "did you mean 'blobs'"]),
        (["--task", "taskcode:model", *SETTING], ["returned Linear", "isotherm.Task"]),
        (["--task", "taskcode:refused", *SETTING], ["ImportError: nothing there"]),
        (["--task", "taskcode:odd", *SETTING], ["was called and raised GeneratorExit: no exception"]),
        (["--task", "taskcode:odd_model", *SETTING], ["building the model raised GeneratorExit: no exception"]),
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
    assert "holds images of 32 × 32 pixels, expected 28 × 28; put the MNIST files there" in text
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
    assert "tokens in 6 streams are too few for a window of 35 tokens" in text
    assert "use a batch size of at most 5" in text
    assert not stored()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_out_of_memory(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_arguments: object, **_keywords: object) -> None:
        raise error

    monkeypatch.setattr("isotherm.running.executors.local.run_fleet", too_large)
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING, "--seeds", "3")
    assert code == 3
    assert "one run of task 'blobs' at batch size 8 does not fit into the memory of cpu; use a smaller batch" in text


def test_a_store_that_is_no_store_or_cannot_be_made() -> None:
    Path("blobs.sqlite").write_text("not a database at all, only text")
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING)
    assert code == 2
    assert "not a store" in text
    code, text = invoke("run", "--task", "taskcode:blobs", *SETTING, "--store", "/proc/blobs.sqlite")
    assert code == 2
    assert "cannot be written" in text


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
