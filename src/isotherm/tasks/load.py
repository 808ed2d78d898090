"""From what a user names to a task: a built-in name, or `module:function`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from isotherm.errors import UserError, nearest
from isotherm.tasks.builtin import TASKS, get_task
from isotherm.tasks.task import Task


def load_task(reference: str, *, data: Path | None = None) -> Task:
    """Return the task that a name or `module:function` stands for.

    Args:
        reference: what the user named.
        data: the folder that holds the data sets; None as in `get_task`.
    """
    if ":" not in reference or reference in TASKS:
        return get_task(reference, data=data)
    made = call_reference(reference, data=data)
    if not isinstance(made, Task):
        raise UserError(f"{reference} returned {type(made).__name__}; it must return an isotherm.Task")
    return made


def call_reference(reference: str, *, data: Path | None = None) -> Any:
    """Import `module:function`, from the current folder too, and return what calling it gives.

    Args:
        reference: what the user named.
        data: the data folder; passed as `data` to a function that has such a parameter, as `get_task` takes it.
    """
    module_name, _, function_name = reference.partition(":")
    function = _function(_module(module_name, reference), function_name, reference)
    arguments = _arguments(function, reference, data)
    try:
        return function(**arguments)
    except UserError as error:
        raise UserError(f"{reference}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raise UserError(f"{reference!r} was called and raised {type(error).__name__}: {error}") from error


def _module(name: str, reference: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises on import
        raise UserError(
            f"{reference!r}: module {name!r} cannot be imported: {type(error).__name__}: {error}; "
            "it is looked for in the current folder and in the environment"
        ) from error


def _function(module: ModuleType, name: str, reference: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if callable(function):
        return function  # type: ignore[no-any-return]
    known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    raise UserError(f"{reference!r}: module {module.__name__!r} has no function {name!r}; {nearest(name, known)}")


def _arguments(function: Callable[..., Any], reference: str, data: Path | None) -> dict[str, Path | None]:
    if _takes_data(function):
        return {"data": data}
    if data is not None:
        raise UserError(
            f"--data {data}: {reference} has no parameter `data`; write `def {reference.partition(':')[2]}"
            "(data=None)` and pass it on to isotherm.get_task, or leave --data out"
        )
    return {}


def _takes_data(function: Callable[..., Any]) -> bool:
    try:
        return "data" in inspect.signature(function).parameters
    except ValueError:  # some that are written in C have no signature
        return False
