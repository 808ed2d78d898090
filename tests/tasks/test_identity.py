import functools
import importlib.util
import linecache
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cases
from cases_paper import FromDisk, lazy_task
from helpers_identity import files_of, imported, parts_of, write
from isotherm.data.augment import CropAndFlip
from isotherm.errors import UnseenWarning, UserError
from isotherm.models import lstm
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks import identity
from isotherm.tasks.identity import changes, source
from isotherm.tasks.losses import cross_entropy, mean_squared_error
from isotherm.tasks.metrics import accuracy


def model_id(model, *, loss=cross_entropy, metric=accuracy, **more) -> str:
    return identity.model_id(identity.model_parts(model, loss=loss, metric=metric, **more))


# -- models: what counts ----------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self, scale: object) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def build_with(make, *arguments):
    """Return a builder that keeps its arguments in its closure."""
    return lambda: make(*arguments)


def linear_of_scale(std: float) -> nn.Module:
    """Return a module in which nothing but the initial values shows `std`."""
    module = nn.Linear(2, 3)
    nn.init.normal_(module.weight, std=std)
    return module


def test_equal_builders_are_equal_models():
    assert model_id(build_with(nn.Linear, 2, 3)) == model_id(build_with(nn.Linear, 2, 3))
    assert cases.blobs_task().identify() == cases.blobs_task().identify()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (build_with(nn.Linear, 2, 3), build_with(nn.Linear, 2, 4)),
        (build_with(nn.Dropout, 0.3), build_with(nn.Dropout, 0.4)),
        (build_with(Scaled, 1.0), build_with(Scaled, 2.0)),
        (build_with(Scaled, (1, 2)), build_with(Scaled, (1, 3))),
        (build_with(linear_of_scale, 0.1), build_with(linear_of_scale, 1.0)),
        (functools.partial(nn.Linear, 2, 3), functools.partial(nn.Linear, 2, 4)),
        (functools.partial(linear_of_scale, 0.1), functools.partial(linear_of_scale, 1.0)),
        (functools.partial(linear_of_scale, std=0.1), functools.partial(linear_of_scale, std=1.0)),
        (nn.ReLU, nn.Tanh),
        (cases.build_mlp, cases.build_frozen),
    ],
    ids=[
        "width",
        "dropout p",
        "plain attribute",
        "tuple attribute",
        "closure value",
        "partial argument",
        "partial argument of the initialisation",
        "partial keyword",
        "class",
        "requires_grad",
    ],
)
def test_what_defines_the_model_changes_its_id(one, other):
    assert model_id(one) != model_id(other)


def test_loss_metric_and_version_change_the_id():
    ids = {
        model_id(cases.build_mlp),
        model_id(cases.build_mlp, loss=mean_squared_error),
        model_id(cases.build_mlp, metric=cross_entropy),
        model_id(cases.build_mlp, version="2"),
    }
    assert len(ids) == 4


def test_a_custom_losss_closure_changes_the_id():
    def weighted(weight: float):
        return lambda output, target: weight * cross_entropy(output, target)

    assert model_id(cases.build_mlp, loss=weighted(1.0)) == model_id(cases.build_mlp, loss=weighted(1.0))
    assert model_id(cases.build_mlp, loss=weighted(1.0)) != model_id(cases.build_mlp, loss=weighted(2.0))


# Two different computations must never share a key: the store would hand out the results of the other.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.0), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (
            nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 1.0])),
            nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 9.0])),
        ),
    ],
    ids=["label smoothing", "class weights"],
)
def test_settings_of_a_loss_module_change_the_id(one, other):
    assert model_id(cases.build_mlp, loss=one) != model_id(cases.build_mlp, loss=other)


class Builder:
    def __init__(self, std: float) -> None:
        self.std = std

    def __call__(self) -> nn.Module:
        return linear_of_scale(self.std)

    def build(self) -> nn.Module:
        return linear_of_scale(self.std)


def test_state_of_a_builder_object_changes_the_id():
    assert model_id(Builder(0.1)) != model_id(Builder(1.0))


def test_state_behind_a_builder_method_changes_the_id():
    assert model_id(Builder(0.1).build) != model_id(Builder(1.0).build)


def test_default_arguments_of_a_builder_change_the_id():
    one, other = (lambda std=std: linear_of_scale(std) for std in (0.1, 1.0))
    assert model_id(one) != model_id(other)


class Activated(nn.Module):
    def __init__(self, activation: object) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.layer(x))


def test_a_function_in_the_closure_or_an_attribute_changes_the_id():
    assert model_id(build_with(Activated, torch.relu)) != model_id(build_with(Activated, torch.tanh))


class WithPrivateScale(nn.Module):
    def __init__(self, settings: dict[str, float]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self._scale = settings["scale"]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self._scale


class WithSettings(nn.Module):
    def __init__(self, settings: dict[str, float]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.settings = settings

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.settings["scale"]


class WithBufferScale(nn.Module):
    def __init__(self, settings: dict[str, float]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("scale", torch.tensor(settings["scale"]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


@pytest.mark.parametrize("kind", [WithPrivateScale, WithSettings, WithBufferScale])
def test_a_setting_kept_in_a_dict_a_private_attribute_or_a_buffer_changes_the_id(kind):
    one, other = (build_with(kind, {"scale": scale}) for scale in (1.0, 2.0))
    assert model_id(one) != model_id(other)


# -- models: what does not count --------------------------------------------------------------------------------

SOURCE = """
from torch import nn

class Base(nn.Module):
    def forward(self, x):
        return self.layer(x) * 2

class Net(Base):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

def build():
    return Net()
"""


@pytest.fixture
def id_of_source(tmp_path, monkeypatch):
    """Return a function: source of a file that defines `build` -> the id of its model."""

    def read(source: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "model_under_test.py").write_text(source)
        found = importlib.util.spec_from_file_location("model_under_test", folder / "model_under_test.py")
        module = importlib.util.module_from_spec(found)
        monkeypatch.setitem(sys.modules, "model_under_test", module)
        found.loader.exec_module(module)
        return model_id(module.build)

    return read


def test_comments_and_layout_do_not_count(id_of_source):
    changed = SOURCE.replace("return Net()", "# a fresh one\n\n    return Net(  )  # here")
    changed = changed.replace("super().__init__()\n", "super().__init__(\n        )\n\n        # layers\n")
    assert id_of_source(changed) == id_of_source(SOURCE)


def test_the_place_in_the_file_does_not_count(id_of_source):
    assert id_of_source("import math\n\nUNUSED = 3\n" + SOURCE) == id_of_source(SOURCE)


def test_the_source_of_the_builder_counts(id_of_source):
    changed = SOURCE.replace("return Net()", "net = Net()\n    net.layer.weight.data.mul_(2)\n    return net")
    assert id_of_source(changed) != id_of_source(SOURCE)


def test_the_source_of_the_modules_class_counts(id_of_source):
    changed = SOURCE + "\nclass Other:\n    pass\n"
    assert id_of_source(changed) == id_of_source(SOURCE)
    changed = SOURCE.replace("class Net(Base):", "class Net(Base):\n    def extra(self):\n        return 1\n")
    assert id_of_source(changed) != id_of_source(SOURCE)


def test_the_source_of_the_classs_parent_counts(id_of_source):
    assert id_of_source(SOURCE.replace("* 2", "* 3")) != id_of_source(SOURCE)


def test_interactive_functions_without_source_are_told_apart_by_their_code():
    names: dict[str, object] = {"nn": nn}
    exec("def one():\n m = nn.Linear(2, 3)\n m.weight.data.mul_(2)\n return m", names)
    exec("def two():\n m = nn.Linear(2, 3)\n m.weight.data.mul_(3)\n return m", names)
    exec("def too():\n m = nn.Linear(2, 3)\n m.weight.data.mul_(3)\n return m", names)
    names["two"].__qualname__ = names["too"].__qualname__ = names["one"].__qualname__
    assert model_id(names["one"]) != model_id(names["two"]) == model_id(names["too"])


# -- refusals ---------------------------------------------------------------------------------------------------


def test_a_builder_that_raises_is_the_users_error():
    with pytest.raises(UserError, match="building the model raised ZeroDivisionError"):
        model_id(lambda: 1 / 0)


def test_a_builder_that_returns_no_module_is_the_users_error():
    with pytest.raises(UserError, match=r"returned str; end it with `return module`, a torch\.nn\.Module"):
        model_id(str)


# -- what code refers to by a global name ---------------------------------------------------------------------------


GLOBALS = """
import torch
from torch import nn

SCALE = {scale}
WEIGHTS = torch.tensor([1.0, {scale}])

def helper(x):
    return x * SCALE

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x) {use}

class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, output, target):
        return self.weight * (output - target).square().mean()

def weighted(output, target):
    return (WEIGHTS * (output - target).square()).mean()
"""


def module_of(tmp_path: Path, *, scale: float, use: str = "") -> types.ModuleType:
    """Import the code anew under one name, as an edited file would be."""
    path = tmp_path / f"globals_{scale}.py"
    path.write_text(GLOBALS.format(scale=scale, use=use))
    linecache.checkcache(str(path))
    loader = importlib.util.spec_from_file_location("code_with_globals", path)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    sys.modules["code_with_globals"] = module
    try:
        loader.loader.exec_module(module)
    finally:
        del sys.modules["code_with_globals"]
    return module


def ident(model, loss=None) -> str:
    return model_id(model, loss=loss or cross_entropy)


@pytest.mark.parametrize("use", ["* SCALE", "* WEIGHTS", "+ helper(1.0)"])
def test_globals_that_a_module_uses_are_part_of_it(tmp_path: Path, use: str) -> None:
    one, two = (module_of(tmp_path, scale=scale, use=use) for scale in (1.0, 5.0))
    assert ident(one.Net) != ident(two.Net)
    assert ident(one.Net) == ident(module_of(tmp_path, scale=1.0, use=use).Net)


def test_globals_that_nothing_uses_are_not(tmp_path: Path) -> None:
    assert ident(module_of(tmp_path, scale=1.0).Net) == ident(module_of(tmp_path, scale=5.0).Net)


def test_globals_and_slots_of_a_loss_are_part_of_it(tmp_path: Path) -> None:
    one, two = (module_of(tmp_path, scale=scale) for scale in (1.0, 5.0))
    assert ident(one.Net, one.weighted) != ident(one.Net, two.weighted)
    assert ident(one.Net, one.Slotted(1.0)) != ident(one.Net, one.Slotted(2.0))
    assert ident(one.Net, one.Slotted(1.0)) == ident(one.Net, one.Slotted(1.0))


def test_classes_without_source_are_told_apart_by_their_code() -> None:
    text = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
    def forward(self, x):
        return torch.{name}(self.layer(x))
"""

    def made(name: str):
        space: dict[str, object] = {"__name__": "typed_in"}
        exec(text.format(name=name), space)
        return space["Net"]

    assert ident(made("relu")) != ident(made("tanh"))
    assert ident(made("relu")) == ident(made("relu"))


def test_no_source_of_a_library_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They change with every release, of Python and of Isotherm, and stored runs must still be found."""
    read: set[str] = set()

    def getlines(name: str, *rest: Any) -> list[str]:
        read.add(name)
        return linecache.getlines(name, *rest)

    patched = types.SimpleNamespace(getlines=getlines, checkcache=linecache.checkcache)
    monkeypatch.setattr(source, "linecache", patched)
    transform = CropAndFlip(mean=(0.0,), std=(1.0,))
    model_id(lambda: wide_resnet(depth=10, width=1), settings={"transform": transform})
    assert read == {__file__}


def test_a_users_module_with_a_standard_name_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(slope: float) -> Any:
        file = tmp_path / f"{slope}" / "tabnanny.py"
        file.parent.mkdir()
        file.write_text(f"def loss(output, target):\n    return ((output - target) * {slope}).mean()\n")
        spec = importlib.util.spec_from_file_location("tabnanny", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "tabnanny", module)
        spec.loader.exec_module(module)
        return model_id(functools.partial(nn.Linear, 2, 1), loss=module.loss)

    assert made(1.0) != made(2.0)


def test_the_fields_of_a_transform_are_part_of_a_task() -> None:
    def id_of(**fields: Any) -> str:
        transform = CropAndFlip(**{"mean": (0.0,), "std": (1.0,), **fields})
        build = functools.partial(nn.Linear, 2, 1)
        return model_id(build, settings={"transform": transform})

    ids = [id_of(), id_of(padding="zero"), id_of(pad=3), id_of(flip=False), id_of(mean=(1.0,)), id_of(std=(2.0,))]
    assert len(set(ids)) == len(ids)
    assert id_of() == id_of()


USING_SCALE = {
    "staticmethod": "    @staticmethod\n    def part(x):\n        return x * SCALE\n",
    "classmethod": "    @classmethod\n    def part(cls, x):\n        return x * SCALE\n",
    "property": (
        "    @property\n    def scaled(self):\n        return SCALE\n"
        "    def part(self, x):\n        return x * self.scaled\n"
    ),
    "lambda": "    def part(self, x):\n        return (lambda value: value * SCALE)(x)\n",
    "generator": "    def part(self, x):\n        return sum(x * SCALE for _ in range(2))\n",
    "nested": "    def part(self, x):\n        return [[x * SCALE for _ in range(1)] for _ in range(1)][0][0]\n",
    "autograd": "    def part(self, x):\n        return Scaled.apply(x)\n",
}


@pytest.mark.parametrize("use", USING_SCALE)
def test_globals_are_followed_wherever_a_module_uses_them(use: str, tmp_path: Path) -> None:
    def made(scale: float) -> str:
        text = (
            f"import torch\nfrom torch import nn\nSCALE = {scale}\n"
            "class Scaled(torch.autograd.Function):\n"
            "    @staticmethod\n    def forward(x):\n        return x * SCALE\n"
            "    @staticmethod\n    def setup_context(ctx, inputs, output):\n        pass\n"
            "    @staticmethod\n    def backward(ctx, g):\n        return g * SCALE\n"
            "class Net(nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(2, 2)\n"
            f"{USING_SCALE[use]}"
            "    def forward(self, x):\n        return self.part(self.layer(x))\n"
        )
        file = tmp_path / f"net_{use}_{scale}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("net_of_a_user", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        linecache.clearcache()
        return ident(module.Net)

    assert made(2.0) != made(-7.0)


def test_isotherms_own_models_are_known_by_name_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    build = functools.partial(lstm.LSTMLanguageModel, vocabulary=5, width=4)
    before = ident(build)
    monkeypatch.setattr(lstm, "_shifted", lambda *_: None)
    assert ident(build) == before
    assert ident(functools.partial(build, drop_probability=0.5)) != before


def test_docstrings_and_comments_are_no_part_of_a_model(tmp_path: Path) -> None:
    def made(number: int, remark: str) -> str:
        file = tmp_path / f"remark_{number}.py"
        file.write_text(
            f'from torch import nn\nclass Net(nn.Module):\n    """{remark}"""\n'
            f'    def __init__(self):\n        """{remark}"""\n        super().__init__()  # {remark}\n'
            "        self.layer = nn.Linear(2, 2)\n"
        )
        spec = importlib.util.spec_from_file_location("net_with_a_remark", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return ident(module.Net)

    assert made(1, "One.") == made(2, "Another, longer one.")


def test_how_lazy_inputs_are_read_is_part_of_a_task() -> None:
    class Darker(FromDisk):
        def fetch(self, indices: Any, *, seed: int | None = None, step: int = 0) -> Tensor:
            return super().fetch(indices, seed=seed, step=step) // 2

    task = lazy_task()
    images, labels = task.train
    found, darker = (made.identify() for made in (task, lazy_task(train=(Darker(images._images), labels))))
    assert found.data_id == darker.data_id
    assert found.model_id != darker.model_id
    assert found.model_id == lazy_task().identify().model_id


# -- changes to libraries ---------------------------------------------------------------------------------------------


def test_what_cannot_be_copied_is_said() -> None:
    class Settings(dict):
        __getattr__ = dict.__getitem__

    def build() -> nn.Module:
        module = nn.Linear(2, 2)
        module.settings = Settings(scale=2)
        return module

    with pytest.raises(UserError, match="copying the model raised KeyError: '__deepcopy__'"):
        identity.model_parts(build, loss=cross_entropy, metric=accuracy)


@pytest.mark.parametrize(
    ("text", "forward", "what"),
    [
        ("import numpy as np\nf = np.frompyfunc(abs, 1, 1)", "return x * f(1)", "inside the NumPy function abs"),
        (
            "def f(k): return k.__subclasses__()",
            "return x * len(f(dict))",
            "f .* what it finds through .__subclasses__",
        ),
        ("", "return x * self.f.__globals__['S']", "forward .* what it finds through .__globals__"),
    ],
)
def test_code_that_cannot_be_followed_is_named(text: str, forward: str, what: str, tmp_path: Path) -> None:
    with imported(write(files_of(text, forward), tmp_path)) as module, pytest.warns(UnseenWarning, match=what):
        parts_of(module)


def test_classes_and_functions_of_pytorch_are_as_shipped() -> None:
    kinds = [kind for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, nn.Module)]
    assert [kind for kind in (*kinds, Tensor, nn.Parameter) if changes.in_class(kind)] == []
    homes = (nn, nn.init, torch.linalg, torch.fft, torch.autograd)
    names = [(f"{home.__name__}.{name}", getattr(home, name)) for home in homes for name in home.__dict__]
    functions = [(name, item) for name, item in names if callable(item) and "._" not in name]
    assert len(functions) > 200
    assert [name for name, item in functions if not changes.is_under_its_own_name(name, item)] == []
