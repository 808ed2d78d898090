"""Tasks by name and by `module:function`, with and without a data folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from isotherm.errors import UserError
from isotherm.tasks.load import call_reference, load_task

CODE = """
import isotherm as it

def without():
    return it.get_task("mlp_mnist1d")

def given(data):
    return data

def optional(*, data="unset"):
    return data

def refused():
    raise it.UserError("not today")

def broken():
    raise KeyError("no such thing")

def leaving():
    raise SystemExit(3)

def odd():
    raise GeneratorExit("no exception")

def interrupted():
    raise KeyboardInterrupt

number = 7
builtin = dict
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("loadable", None)
    Path("loadable.py").write_text(CODE)


def test_a_built_in_name_and_a_function() -> None:
    assert load_task("mlp_mnist1d").name == "mlp_mnist1d"
    assert load_task("loadable:without").name == "mlp_mnist1d"


@pytest.mark.parametrize("data", [None, Path("folder")])
def test_a_function_with_the_parameter_gets_the_folder(data: Path | None) -> None:
    assert call_reference("loadable:given", data=data) == data
    assert call_reference("loadable:optional", data=data) == data


def test_a_folder_that_a_function_cannot_take_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"--data folder: loadable:without has no parameter `data`; .*without\(data=None\)"
    ):
        load_task("loadable:without", data=Path("folder"))


def test_a_callable_without_a_signature() -> None:
    assert call_reference("loadable:builtin") == {}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mlp_mnist2d", "unknown task 'mlp_mnist2d'; did you mean 'mlp_mnist1d'"),
        ("loadable:refused", "loadable:refused: not today"),
        ("loadable:broken", "'loadable:broken' was called and raised KeyError: 'no such thing'"),
        ("loadable:odd", "'loadable:odd' was called and raised GeneratorExit: no exception"),
        ("loadable:leaving", "was called and raised SystemExit: 3"),
        ("loadable:number", "has no function 'number'"),
        ("loadable:brokn", "has no function 'brokn'; did you mean 'broken'"),
        ("loadable:given", "loadable:given returned NoneType; let it return an isotherm.Task"),
        ("no_such_module:task", "module 'no_such_module' cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_names_no_task_is_refused(reference: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_task(reference)


@pytest.mark.parametrize("what", ["GeneratorExit('odd')", "SystemExit('odd')", "ValueError('odd')"])
def test_a_module_may_raise_anything_on_import(what: str) -> None:
    Path("loadable.py").write_text(f"raise {what}\n")
    with pytest.raises(UserError, match=r"module 'loadable' cannot be imported: \w+: odd"):
        call_reference("loadable:task")


def test_an_interrupt_passes() -> None:
    with pytest.raises(KeyboardInterrupt):
        call_reference("loadable:interrupted")
    Path("interrupted.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        call_reference("interrupted:task")
