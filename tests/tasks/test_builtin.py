"""Built-in tasks are identified by name, version and options; the numbers below say what a version computes.

A changed number means a changed definition: raise its version in `isotherm.tasks.builtin`, and then pin the numbers
that `PYTHONPATH=tests python tests/tasks/test_builtin.py NAME` prints. A faster kernel, a moved file or a renamed class
changes none of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from cases import spec
from helpers_tasks import small_built_in
from isotherm.data import imagenet
from isotherm.engine.dropout import run_keys
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.reference import run_reference
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.builtin import DEFINITIONS, TASKS, get_task
from isotherm.tasks.definition import arguments_of
from isotherm.tasks.model_check import check_model
from isotherm.tasks.task import Task

# Float64 on any BLAS; the initial weights are drawn in float32, alike on every x86 processor.
TOLERANCE = 1e-9
QUANTITIES = (
    "train_loss_running",
    "last_batch_loss",
    "train_loss",
    "test_loss",
    "test_metric",
    "weight_norm_squared",
)

# Of two updates in float64; the first three before them, the last of outputs by hand.
FINGERPRINTS: dict[str, dict[str, float]] = {
    "mlp_mnist1d": {
        "version": 1,
        "initial_norm": 8.4113779519,
        "gradient_norm": 1.93961407747,
        "train_loss_running": 2.32061063257,
        "last_batch_loss": 2.30150608626,
        "train_loss": 2.29729740824,
        "test_loss": 2.31033438378,
        "test_metric": 0,
        "weight_norm_squared": 69.5527403815,
        "metric_by_hand": 0.75,
    },
    "autoencoder_mnist": {
        "version": 1,
        "initial_norm": 62.1630259076,
        "gradient_norm": 18.2303695649,
        "train_loss_running": 32.9539522452,
        "last_batch_loss": 32.6720841632,
        "train_loss": 32.8993141576,
        "test_loss": 33.288838857,
        "test_metric": 66.577677714,
        "weight_norm_squared": 3864.19333775,
        "metric_by_hand": 1,
    },
    "lstm_ptb": {
        "version": 1,
        "initial_norm": 75.1975047199,
        "gradient_norm": 0.402792848438,
        "train_loss_running": 2.40635632801,
        "last_batch_loss": 2.40635632801,
        "train_loss": 2.40544154197,
        "test_loss": 2.40602530376,
        "test_metric": 11.0897948635,
        "weight_norm_squared": 5645.96323952,
        "metric_by_hand": 1.71115017173,
    },
    "gpt_text": {
        "version": 1,
        "initial_norm": 6.77625927528,
        "gradient_norm": 1.34308337098,
        "train_loss_running": 2.39383784332,
        "last_batch_loss": 2.37225813725,
        "train_loss": 2.3878599141,
        "test_loss": 2.3886388532,
        "test_metric": 10.8986491809,
        "weight_norm_squared": 0.502253632472,
        "metric_by_hand": 1.71115017173,
    },
    "wrn16x4_cifar10": {
        "version": 1,
        "initial_norm": 79.6054068351,
        "gradient_norm": 26.1603979686,
        "train_loss_running": 2.39859478749,
        "last_batch_loss": 2.75538621251,
        "train_loss": 2.27826288762,
        "test_loss": 2.23319597946,
        "test_metric": 0,
        "weight_norm_squared": 4529.00914023,
        "metric_by_hand": 0.75,
    },
    "wrn16x4_skipinit_cifar10": {
        "version": 1,
        "initial_norm": 67.3494734935,
        "gradient_norm": 20.8232196844,
        "train_loss_running": 3.02319851774,
        "last_batch_loss": 3.79675997661,
        "train_loss": 2.65766817563,
        "test_loss": 2.80942901612,
        "test_metric": 0,
        "weight_norm_squared": 4535.89449369,
        "metric_by_hand": 0.75,
    },
    "wrn28x10_cifar100": {
        "version": 1,
        "initial_norm": 171.363266462,
        "gradient_norm": 75.8589170309,
        "train_loss_running": 5.02255889894,
        "last_batch_loss": 4.96933491902,
        "train_loss": 4.92288907661,
        "test_loss": 5.26975918471,
        "test_metric": 0,
        "weight_norm_squared": 20389.3389904,
        "metric_by_hand": 0.75,
    },
    "wrn28x10_skipinit_cifar100": {
        "version": 1,
        "initial_norm": 142.809751701,
        "gradient_norm": 28.9566309686,
        "train_loss_running": 8.52848408873,
        "last_batch_loss": 7.62421059746,
        "train_loss": 5.64176268212,
        "test_loss": 5.42290477461,
        "test_metric": 0,
        "weight_norm_squared": 20394.3411541,
        "metric_by_hand": 0.75,
    },
    "resnet50_imagenet": {
        "version": 1,
        "initial_norm": 238.149563683,
        "gradient_norm": 167.68099764,
        "train_loss_running": 6.76227099154,
        "last_batch_loss": 6.70236523065,
        "train_loss": 6.35774938672,
        "test_loss": 6.40009411511,
        "test_metric": 0,
        "weight_norm_squared": 45259.4682378,
        "metric_by_hand": 0.75,
    },
}
# All arguments of a model builder, its defaults included, and all fields of a transform.
OPTIONS: dict[str, dict[str, Any]] = {
    "mlp_mnist1d": {"widths": [40, 100, 100, 10]},
    "autoencoder_mnist": {"units": "tanh", "encoder_widths": [784, 1000, 500, 250, 30], "Scaled": {}},
    "lstm_ptb": {"vocabulary": 10000, "width": 650, "num_layers": 2, "drop_probability": 0.5, "initial_range": 0.05},
    "gpt_text": {
        "vocabulary": 40,
        "context": 32,
        "width": 32,
        "num_layers": 2,
        "num_heads": 4,
        "drop_probability": 0.0,
    },
    "wrn16x4_cifar10": {
        "depth": 16,
        "width": 4,
        "num_classes": 10,
        "normalisation": "ghost_batch_norm",
        "ghost_size": 64,
        "drop_probability": 0.6,
        "CropAndFlip": {
            "mean": [125.3, 123.0, 113.9],
            "std": [63.0, 62.1, 66.7],
            "pad": 4,
            "padding": "reflect",
            "flip": True,
        },
    },
    "wrn16x4_skipinit_cifar10": {
        "depth": 16,
        "width": 4,
        "num_classes": 10,
        "normalisation": "skip_init",
        "ghost_size": 64,
        "drop_probability": 0.6,
        "CropAndFlip": {
            "mean": [125.3, 123.0, 113.9],
            "std": [63.0, 62.1, 66.7],
            "pad": 4,
            "padding": "reflect",
            "flip": True,
        },
    },
    "wrn28x10_cifar100": {
        "depth": 28,
        "width": 10,
        "num_classes": 100,
        "normalisation": "ghost_batch_norm",
        "ghost_size": 64,
        "drop_probability": 0.6,
        "CropAndFlip": {
            "mean": [129.3, 124.1, 112.4],
            "std": [68.2, 65.4, 70.4],
            "pad": 4,
            "padding": "reflect",
            "flip": True,
        },
    },
    "wrn28x10_skipinit_cifar100": {
        "depth": 28,
        "width": 10,
        "num_classes": 100,
        "normalisation": "skip_init",
        "ghost_size": 64,
        "drop_probability": 0.6,
        "CropAndFlip": {
            "mean": [129.3, 124.1, 112.4],
            "std": [68.2, 65.4, 70.4],
            "pad": 4,
            "padding": "reflect",
            "flip": True,
        },
    },
    "resnet50_imagenet": {
        "num_classes": 1000,
        "ghost_size": 64,
        "CropAndFlip": {
            "mean": [123.675, 116.28, 103.53],
            "std": [58.395, 57.12, 57.375],
            "pad": 0,
            "padding": "reflect",
            "flip": False,
        },
    },
}
# Mean of all pixels, and weighted from left to right: of the centre, and of the crops of a seed.
CROPS: dict[int | None, list[float]] = {None: [119.145833, 68.766757], 3: [131.5, 60.649457]}


def fingerprint(task: Task) -> dict[str, float]:
    """Return the numbers that tell one definition from another."""
    assert task.definition is not None
    placed = place_task(task, precision="float64")
    changes = {"batch_size": 2, "num_steps": 2, "effective_learning_rate": 0.02, "clip_norm": task.clip_norm}
    result = run_reference(placed, spec(task, l2=task.l2, l2_scope=task.l2_scope, **changes))
    weights, gradients = initial_norms(placed)
    return {
        "version": task.definition.version,
        "initial_norm": weights,
        "gradient_norm": gradients,
        **{name: result.quantity(name) for name in QUANTITIES},
        "metric_by_hand": metric_by_hand(task),
    }


def initial_norms(placed: PlacedTask) -> tuple[float, float]:
    """Return the norms of the initial weights and of the first gradient."""
    model = placed.model(seed=0, batch_size=2)
    x, y = placed.training_batch(torch.from_numpy(placed.order(seed=0, batch_size=2).block(0, 1)[0]))
    placed.training_loss(model.train(), x, y, run_keys(0), torch.tensor(0)).backward()
    parameters = list(model.parameters())
    return norm(parameters), norm([p.grad for p in parameters if p.grad is not None])


def metric_by_hand(task: Task) -> float:
    outputs = torch.eye(4, 10, dtype=torch.float64)
    is_classified = task.train[1].dtype != torch.uint8
    return float(task.metric_definition.function(outputs, torch.tensor([0, 1, 2, 5]) if is_classified else 2 * outputs))


def norm(tensors: list[Any]) -> float:
    return float(torch.cat([t.detach().flatten() for t in tensors]).norm())


def options(name: str) -> dict[str, Any]:
    definition = DEFINITIONS[name]
    transform = definition.transform
    fields = {} if transform is None else {type(transform).__name__: dataclasses.asdict(transform)}  # type: ignore[call-overload]
    found: dict[str, Any] = json.loads(json.dumps({**arguments_of(definition.model), **fields}))
    return found


# -- numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_version_of_a_definition_keeps_its_numbers(name: str) -> None:
    assert fingerprint(small_built_in(name)) == pytest.approx(FINGERPRINTS[name], rel=TOLERANCE)


@pytest.mark.slow
def test_a_changed_definition_does_not_keep_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GhostBatchNorm2d.__init__.__kwdefaults__, "eps", 1.1e-5)
    found = fingerprint(small_built_in("wrn16x4_cifar10"))
    assert found != pytest.approx(FINGERPRINTS["wrn16x4_cifar10"], rel=TOLERANCE)
    assert found == pytest.approx(FINGERPRINTS["wrn16x4_cifar10"], rel=1e-2)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_version_of_a_definition_keeps_its_options(name: str) -> None:
    assert options(name) == OPTIONS[name]


@pytest.mark.parametrize("seed", [None, 3])
def test_images_are_decoded_and_cropped_as_before(seed: int | None, tmp_path: Path) -> None:
    row, column, channel = torch.meshgrid(*(torch.arange(size) for size in (40, 50, 3)), indexing="ij")
    pixels = [(3 * row + 2 * column + 15 * channel).to(torch.uint8), (4 * column + 20 * channel).to(torch.uint8)]
    for split in ("train", "val"):
        for index in range(2):
            path = tmp_path / "imagenet" / split / f"class{index}" / "image.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(pixels[index].numpy()).save(path)
    train, _ = imagenet.load(tmp_path, image_size=24, num_workers=0)
    found = train[0].fetch([0, 1], seed=seed).double()
    ramp = torch.linspace(0, 1, 24, dtype=torch.float64)
    expected = CROPS[seed]
    assert [float(found.mean()), float((found * ramp).mean())] == pytest.approx(expected, rel=1e-3)


# -- by name ----------------------------------------------------------------------------------------------------


def test_an_unknown_task_gets_the_nearest_name() -> None:
    with pytest.raises(
        UserError, match=r"unknown task 'mlp_mnist'; did you mean 'mlp_mnist1d'.*or make your own isotherm.Task"
    ):
        get_task("mlp_mnist")


def test_the_embedded_task() -> None:
    embedded = get_task("mlp_mnist1d")
    assert (len(embedded.train[0]), len(embedded.test[0])) == (4_000, 1_000)
    assert embedded.train[0].shape[1:] == (40,)
    assert sorted(set(embedded.train[1].tolist())) == list(range(10))
    assert embedded.name in TASKS
    check_model(embedded)


def test_a_built_in_task_with_another_model_is_none() -> None:
    task = small_built_in("lstm_ptb").with_options(model={"drop_probability": 0.3})
    assert task.is_built_in
    autoencoder = small_built_in("autoencoder_mnist")
    assert autoencoder.is_built_in
    assert not dataclasses.replace(autoencoder, model=lambda: torch.nn.Linear(784, 784)).is_built_in


# -- a transformer on text --------------------------------------------------------------------------------------


def test_the_transformer_has_the_packages_own_text() -> None:
    task = get_task("gpt_text")
    assert task.train[0].shape == (5_624, 32)
    assert task.test[0].shape == (624, 32)
    assert (task.metric, task.is_built_in) == ("perplexity", True)
    check_model(task)


def test_the_transformer_takes_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("To be, or not to be: that is the question.\n" * 20)
    task = get_task("gpt_text", data=path)
    assert task.train[0].shape == ((774 - 1) // 32, 32)
    assert task.identify().model_id != get_task("gpt_text").identify().model_id  # fewer characters
    check_model(task)


def test_another_context_cuts_the_text_anew() -> None:
    task = get_task("gpt_text").with_options(model={"context": 64, "num_layers": 1})
    assert task.train[0].shape == (2_812, 64)
    assert torch.equal(task.train[0].flatten(), get_task("gpt_text").train[0].flatten()[: 2_812 * 64])
    assert task.is_built_in
    check_model(task)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 30_000}, "the test part of the text has .* too few for one window of context=30000"),
        ({"context": -1}, "context=-1 is not a positive whole number"),
        ({"num_heads": 5}, "num_heads=5 does not divide width=32"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_text(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_model(get_task("gpt_text").with_options(model=options))


def test_a_text_that_is_too_short_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("Too short.")
    with pytest.raises(UserError, match=r"too few for one window of context=32.*give a text of 326 characters or more"):
        get_task("gpt_text", data=path)
    with pytest.raises(UserError, match=r"there is no text .*shrt\.txt; did you mean '.*/short\.txt'\?; give --data a"):
        get_task("gpt_text", data=tmp_path / "shrt.txt")
    with pytest.raises(UserError, match=r"there is no text .*typo\.txt; give --data a text file"):
        get_task("gpt_text", data=tmp_path / "none" / "typo.txt")


def test_what_is_no_file_is_not_taken_for_a_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match=f"{name} is a pipe or a device, not a file"):
            get_task("gpt_text", data=tmp_path / name)


def test_a_folder_is_for_other_tasks_data_and_said_to_have_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = get_task("gpt_text", data=tmp_path)
    assert len(task.train[0]) == 5_624
    assert "is a folder, so gpt_text has the package's own text" in task.notes[0]
    monkeypatch.setenv("ISOTHERM_DATA", str(tmp_path))  # where data are by default needs no words
    assert get_task("gpt_text").notes == ()
    assert get_task("gpt_text", data=tmp_path).notes == ()


if __name__ == "__main__":  # prints what to pin
    import pprint
    import sys

    for chosen in sys.argv[1:] or DEFINITIONS:
        numbers = fingerprint(small_built_in(chosen))
        pprint.pprint({chosen: {key: float(f"{value:.12g}") for key, value in numbers.items()}}, sort_dicts=False)
        pprint.pprint({chosen: options(chosen)}, sort_dicts=False)
