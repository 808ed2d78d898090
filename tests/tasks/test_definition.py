"""A built-in task is identified by its definition, as long as it computes what the definition says."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers_tasks import images, small_built_in
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.wide_resnet import WideBlock, WideResNet, wide_resnet
from isotherm.tasks.builtin import DEFINITIONS, TASKS
from isotherm.tasks.losses import LOSSES, cross_entropy
from isotherm.tasks.metrics import METRICS
from isotherm.tasks.task import Task

# -- identity ---------------------------------------------------------------------------------------------------


def parts(task: Task) -> dict[str, str]:
    return task.identify().model_parts


def is_defined(task: Task) -> bool:
    return "definition" in parts(task)


def wide(**changes: Any) -> Task:
    return dataclasses.replace(small_built_in("wrn16x4_cifar10"), **changes)


@pytest.mark.parametrize("name", ["mlp_mnist1d", "autoencoder_mnist", "wrn16x4_cifar10"])
def test_a_built_in_task_is_identified_by_its_name_and_version(name: str) -> None:
    assert parts(small_built_in(name)) == {"definition": f"{name}, version 1", "settings": "{}", "version": ""}


def test_keys_of_built_in_tasks_stay() -> None:
    found = small_built_in("wrn16x4_cifar10").identify().model_id
    assert found == "ed6c4d8d3fd6235974f91d85fb7e46e5e9c4629aa72fbde5ab1de8a32a7651ec"


def test_every_task_with_a_name_has_a_definition() -> None:
    assert list(DEFINITIONS) == list(TASKS)
    assert all(name == definition.name for name, definition in DEFINITIONS.items())


def test_a_vocabulary_of_another_size_is_an_option() -> None:
    found = parts(small_built_in("lstm_ptb"))
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
    changed = dataclasses.replace(small_built_in("lstm_ptb"), unroll=12)
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
    task = small_built_in("lstm_ptb")
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


def _wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def twice(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return twice


PATCHES: dict[str, tuple[Any, str, Any]] = {
    "method that carries the name of the original": (nn.Linear, "forward", _wrapped(nn.Linear.forward)),
    "function of the library": (nn.functional, "linear", lambda *args: torch.zeros(4, 10)),
    "wrapped function of the library": (nn.functional, "relu", _wrapped(nn.functional.relu)),
    "another function of the library": (nn.functional, "relu", torch.tanh),
    "partial": (nn.functional, "relu", partial(nn.functional.leaky_relu, negative_slope=0.1)),
    "method of another layer": (nn.ReLU, "forward", nn.Tanh.forward),
    "initialisation of a layer": (nn.Linear, "reset_parameters", lambda self: None),
    "initialisation": (nn.init, "kaiming_uniform_", lambda tensor, **_: tensor),
    "call of every module": (nn.Module, "__call__", _wrapped(nn.Module.__call__)),
    "method of every tensor": (torch.Tensor, "relu", lambda self: self),
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_patched_library_takes_the_definition_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = small_built_in("mlp_mnist1d")
    assert is_defined(task)
    home, member, patch = PATCHES[name]
    monkeypatch.setattr(home, member, patch)
    assert not is_defined(task)


def test_a_hook_of_all_modules_takes_the_definition_away() -> None:
    task = small_built_in("mlp_mnist1d")
    hook = nn.modules.module.register_module_forward_hook(lambda module, args, result: None)
    assert not is_defined(task)
    hook.remove()
    assert is_defined(task)


def test_a_patched_transform_or_helper_takes_the_definition_away(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_defined(wide())
    with monkeypatch.context() as patch:
        patch.setattr(CropAndFlip, "train", lambda self, *args, **kwargs: None)
        assert not is_defined(wide())
    with monkeypatch.context() as patch:
        patch.setattr("isotherm.models.wide_resnet.WideBlock", WideBlock)
        patch.setattr("isotherm.models.wide_resnet.helper", lambda: None, raising=False)
        assert not is_defined(wide())


def test_what_pytorchs_compiler_changes_in_pytorch_does_not_count() -> None:
    before = small_built_in("mlp_mnist1d").identify()
    torch.compile(lambda x: nn.functional.relu(x) + 1, backend="eager")(torch.ones(3))
    assert small_built_in("mlp_mnist1d").identify() == before
    assert is_defined(small_built_in("mlp_mnist1d"))
