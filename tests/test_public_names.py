"""The public names: all there, loaded when asked for, and none hiding a module."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import isotherm

# Need what is not installed everywhere; they are modules of packages all the same.
OPTIONAL = ("isotherm.kernels.triton.", "isotherm.kernels.gluon.", "isotherm.bench.jax_vmap", "isotherm.__main__")
PACKAGES = [
    "isotherm",
    *(module.name for module in pkgutil.walk_packages(isotherm.__path__, "isotherm.") if module.ispkg),
]


def test_every_public_name_is_there_and_listed() -> None:
    for name in isotherm.__all__:
        assert getattr(isotherm, name) is not None
    assert set(isotherm.__all__) == set(isotherm._HOMES)
    assert len(set(isotherm.__all__)) == len(isotherm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'optima'"):
        isotherm.optima  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_hides_a_module(package: str) -> None:
    room = importlib.import_module(package)
    for module in pkgutil.iter_modules(room.__path__, f"{package}."):
        if module.name.startswith(OPTIONAL):
            continue
        imported = importlib.import_module(module.name)
        assert isinstance(imported, ModuleType)
        name = module.name.rpartition(".")[2]
        assert getattr(room, name) is imported, f"{package}.{name} is not the module but {getattr(room, name)!r}"


def test_public_functions_have_names_of_their_own() -> None:
    """But for a package that can be called: importing anything from it would set its name anew."""
    modules = {module.name for module in pkgutil.iter_modules(isotherm.__path__)}
    assert modules & set(isotherm.__all__) == {"diagnose"}
    assert importlib.import_module("isotherm.diagnose") is isotherm.diagnose
    assert list(inspect.signature(isotherm.diagnose).parameters)[:3] == ["task", "epochs", "steps"]


def test_results_can_be_read_and_analysed_without_torch() -> None:
    names = "isotherm.analyse, isotherm.open_results, isotherm.write_report"
    code = f"import sys, isotherm; {names}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
