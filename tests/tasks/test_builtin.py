"""Built-in tasks are identified by name, version and options; the numbers below say what a version computes.

A changed number means a changed definition: raise its version in `isotherm.tasks.builtin`, and then pin the numbers
that `python tests/tasks/test_builtin.py` prints. A faster kernel, a moved file or a renamed class changes none of them.
"""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from cases import spec
from isotherm.data import imagenet
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.engine.dropout import run_keys
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.engine.reference import run_reference
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.wide_resnet import WideBlock, WideResNet, wide_resnet
from isotherm.tasks.builtin import DEFINITIONS, TASKS, built_in
from isotherm.tasks.definition import arguments_of
from isotherm.tasks.inputs import Split
from isotherm.tasks.losses import LOSSES, cross_entropy
from isotherm.tasks.metrics import METRICS
from isotherm.tasks.task import Task

NUM_TRAIN, NUM_TEST = 6, 5
# Float64 on any BLAS; the initial weights are drawn in float32, alike on every x86 processor.
TOLERANCE = 1e-9
WIDE_RESNETS = [name for name in DEFINITIONS if name.startswith("wrn")]

# version, initial weight norm, gradient norm, batch losses of two updates (mean and last), then of the trained model:
# training loss, test loss, test metric, squared norm of the weights; then the metric of four outputs
FINGERPRINTS: dict[str, list[float]] = {
    "mlp_mnist1d": [
        1,
        8.4113779519,
        1.93961407747,
        2.32061063257,
        2.30150608626,
        2.29729740824,
        2.31033438378,
        0,
        69.5527403815,
        0.75,
    ],
    "autoencoder_mnist": [
        1,
        62.1630259076,
        18.2303695649,
        32.9539522452,
        32.6720841632,
        32.8993141576,
        33.288838857,
        66.577677714,
        3864.19333775,
        1,
    ],
    "lstm_ptb": [
        1,
        75.1975047199,
        0.402792848438,
        2.40635632801,
        2.40635632801,
        2.40544154197,
        2.40602530376,
        11.0897948635,
        5645.96323952,
        1.71115017173,
    ],
    "wrn16x4_cifar10": [
        1,
        79.6054068351,
        26.1603979686,
        2.39859478749,
        2.75538621251,
        2.27826288762,
        2.23319597946,
        0,
        4529.00914023,
        0.75,
    ],
    "wrn16x4_skipinit_cifar10": [
        1,
        67.3494734935,
        20.8232196844,
        3.02319851774,
        3.79675997661,
        2.65766817563,
        2.80942901612,
        0,
        4535.89449369,
        0.75,
    ],
    "wrn28x10_cifar100": [
        1,
        171.363266462,
        75.8589170309,
        5.02255889894,
        4.96933491902,
        4.92288907661,
        5.26975918471,
        0,
        20389.3389904,
        0.75,
    ],
    "wrn28x10_skipinit_cifar100": [
        1,
        142.809751701,
        28.9566309686,
        8.52848408873,
        7.62421059746,
        5.64176268212,
        5.42290477461,
        0,
        20394.3411541,
        0.75,
    ],
    "resnet50_imagenet": [
        1,
        238.149563683,
        167.68099764,
        6.76227099154,
        6.70236523065,
        6.35774938672,
        6.40009411511,
        0,
        45259.4682378,
        0.75,
    ],
}
# All arguments of a model builder, its defaults included, and all fields of a transform.
OPTIONS: dict[str, dict[str, Any]] = {
    "mlp_mnist1d": {"widths": [40, 100, 100, 10]},
    "autoencoder_mnist": {"units": "tanh", "encoder_widths": [784, 1000, 500, 250, 30], "Scaled": {}},
    "lstm_ptb": {"vocabulary": 10000, "width": 650, "num_layers": 2, "drop_probability": 0.5, "initial_range": 0.05},
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


def vectors(num: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, 40, generator=generator), torch.arange(num)


def images(num: int, seed: int, *shape: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num, *shape), generator=generator, dtype=torch.uint8), torch.arange(num)


def small(name: str) -> Task:
    """Return a built-in task on data of the smallest shape it takes."""
    if name == "lstm_ptb":
        tokens = [torch.arange(num) ** 2 % 11 for num in (2 * 36, 40, 38)]
        train, validation, test = ((t[:-1], t[1:]) for t in tokens)
        return built_in(name, train=train, validation=validation, test=test, vocabulary=11)
    sizes = ((NUM_TRAIN, 1), (NUM_TEST, 2))
    if name == "mlp_mnist1d":
        train, test = (vectors(*size) for size in sizes)
    elif name == "autoencoder_mnist":
        train, test = ((pixels, pixels) for pixels, _ in (images(*size, 784) for size in sizes))
    else:
        side = 32 if name == "resnet50_imagenet" else 8
        train, test = (images(*size, 3, side, side) for size in sizes)
    return built_in(name, train=train, test=test)


def fingerprint(task: Task) -> list[float]:
    """Return the numbers that tell one definition from another."""
    assert task.definition is not None
    placed = place_task(task, precision="float64")
    changes = {"batch_size": 2, "num_steps": 2, "effective_learning_rate": 0.02, "clip_norm": task.clip_norm}
    result = run_reference(placed, spec(task, l2=task.l2, l2_scope=task.l2_scope, **changes))
    weights, gradients = initial_norms(placed)
    values = [result.train_loss_running, result.last_batch_loss, result.train_loss, result.test_loss]
    values += [result.test_metric, result.weight_norm_squared, metric_by_hand(task)]
    return [task.definition.version, weights, gradients, *(float(v) for v in values if v is not None)]


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
    assert fingerprint(small(name)) == pytest.approx(FINGERPRINTS[name], rel=TOLERANCE)


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


# -- identity ---------------------------------------------------------------------------------------------------


def parts(task: Task) -> dict[str, str]:
    return task.identify().model_parts


def is_defined(task: Task) -> bool:
    return "definition" in parts(task)


def wide(**changes: Any) -> Task:
    return dataclasses.replace(small("wrn16x4_cifar10"), **changes)


@pytest.mark.parametrize("name", ["mlp_mnist1d", "autoencoder_mnist", "wrn16x4_cifar10"])
def test_a_built_in_task_is_identified_by_its_name_and_version(name: str) -> None:
    assert parts(small(name)) == {"definition": f"{name}, version 1", "settings": "{}", "version": ""}


def test_keys_of_built_in_tasks_stay() -> None:
    found = small("wrn16x4_cifar10").identify().model_id
    assert found == "ed6c4d8d3fd6235974f91d85fb7e46e5e9c4629aa72fbde5ab1de8a32a7651ec"


def test_every_task_with_a_name_has_a_definition() -> None:
    assert list(DEFINITIONS) == list(TASKS)
    assert all(name == definition.name for name, definition in DEFINITIONS.items())


def test_a_vocabulary_of_another_size_is_an_option() -> None:
    found = parts(small("lstm_ptb"))
    assert (found["definition"], found["settings"]) == ("lstm_ptb, version 1", '{"model.vocabulary": 11}')


def test_options_enter_the_identity_and_standard_ones_change_nothing() -> None:
    task = wide()
    assert parts(task.with_options(model={"ghost_size": 64, "depth": 16}, transform={"pad": 4})) == parts(task)
    changed = task.with_options(model={"ghost_size": 32}, transform={"padding": "zero"})
    assert parts(changed)["settings"] == '{"model.ghost_size": 32, "transform.padding": "zero"}'
    assert is_defined(changed)
    others = [
        changed,
        task.with_options(model={"ghost_size": 32}),
        task.with_options(transform={"flip": 1 == 0}),
        wide(norm_statistics="running"),
        wide(version="mine"),
    ]
    assert len({made.identify().model_id for made in (task, *others)}) == 6


def test_a_sequence_read_otherwise_is_an_option() -> None:
    changed = dataclasses.replace(small("lstm_ptb"), unroll=12)
    assert parts(changed)["settings"] == '{"model.vocabulary": 11, "task.unroll": 12}'


def test_training_settings_and_data_are_no_part_of_the_model() -> None:
    task = wide()
    x, y = images(9, 5, 3, 8, 8)
    changed = dataclasses.replace(task, l2=0.0, precision="float32", name="mine", train=(x, y), notes=("new",))
    assert changed.identify().model_id == task.identify().model_id
    assert changed.identify().data_id != task.identify().data_id


def test_moved_and_renamed_code_keeps_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    task = wide()
    before = task.identify()
    kinds = {kind: kind.__qualname__ for kind in (WideResNet, WideBlock, GhostBatchNorm2d)}
    for kind in kinds:
        monkeypatch.setattr(kind, "__module__", "isotherm.models.elsewhere")
        kind.__qualname__ = "Renamed"
    try:
        assert task.identify() == before
    finally:
        for kind, name in kinds.items():
            kind.__qualname__ = name


# -- a definition left behind -----------------------------------------------------------------------------------


class Brighter(CropAndFlip):
    def evaluate(self, inputs: Tensor) -> Tensor:
        return super().evaluate(inputs) + 1


def own_loss(output: Tensor, target: Tensor) -> Tensor:
    return 2 * cross_entropy(output, target)


class Images:
    """A user's own reader."""

    def __init__(self, images: Tensor) -> None:
        self._images = images
        self.shape, self.dtype = images.shape, images.dtype

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
        return self._images[torch.as_tensor(indices)]

    def identity(self) -> str:
        return "mine"


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": lambda: wide_resnet(depth=16, width=4)},
    "builder": {"model": partial(lambda **options: wide_resnet(**options), depth=16, width=4)},
    "loss": {"loss": own_loss},
    "metric": {"metric": "cross_entropy"},
    "transform of another kind": {"transform": Scaled()},
    "transform derived": {"transform": Brighter(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7))},
    "no transform": {"transform": None, "train": (torch.zeros(2, 3, 8, 8), torch.zeros(2).long())},
    "reader": {"train": (Images(images(2, 1, 3, 8, 8)[0]), torch.arange(2))},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_task_that_computes_something_else_is_identified_by_its_content(name: str) -> None:
    changed = wide(**CHANGES[name])
    assert not is_defined(changed)
    assert "code" in parts(changed)


def test_a_name_is_no_claim() -> None:
    task = wide()
    mine = Task(name=task.name, model=partial(wide_resnet, depth=10), train=task.train, test=task.test)
    assert not is_defined(mine)


def test_an_option_that_is_no_plain_value_is_identified_by_its_content() -> None:
    task = small("lstm_ptb")
    assert is_defined(task.with_options(model={"drop_probability": 0.25}))
    assert not is_defined(task.with_options(model={"drop_probability": torch.tensor(0.25)}))


def test_tables_and_arguments_changed_in_place_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    task = wide()
    monkeypatch.setitem(task.model.keywords, "ghost_size", 16)  # type: ignore[attr-defined]
    assert parts(task)["settings"] == '{"model.ghost_size": 16}'
    with monkeypatch.context() as patched:
        patched.setitem(LOSSES, "cross_entropy", own_loss)
        assert not is_defined(wide())
    with monkeypatch.context() as patched:
        patched.setitem(METRICS, "accuracy", METRICS["perplexity"])
        assert not is_defined(wide())


def test_a_layer_replaced_by_a_users_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WideResNet, "forward", lambda self, x: self.linear(x.mean(dim=(2, 3))))
    assert not is_defined(wide())


if __name__ == "__main__":  # prints what to pin
    import pprint
    import time

    begin = time.time()
    pprint.pprint({name: fingerprint(small(name)) for name in DEFINITIONS}, sort_dicts=False)
    pprint.pprint({name: options(name) for name in DEFINITIONS}, sort_dicts=False)
    print(time.time() - begin)
