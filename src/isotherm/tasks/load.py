"""From what a user names to a task: a built-in name, or `module:function`."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from isotherm.errors import UserError, nearest
from isotherm.tasks.builtin import TASKS, get_task
from isotherm.tasks.raised import raised
from isotherm.tasks.task import Task


def load_task(reference: str, *, data: Path | None = None) -> Task:
    """Return the task that a name or `module:function` stands for.

    Args:
        reference: what the user named.
        data: the folder that holds the data sets; None as in `get_task`.
    """
    if reference in TASKS:
        return get_task(reference, data=data)
    if reference.endswith(".toml"):
        raise UserError(f"{reference!r} is a study, not a task; run it with isotherm run {reference}, or give its task")
    if ":" not in reference:
        raise UserError(f"unknown task {reference!r}; {nearest(reference, TASKS)}; {own_function(reference, 'Task')}")
    made = call_reference(reference, data=data)
    if not isinstance(made, Task):
        its_own = isinstance(getattr(made, "task", None), Task)  # a sweep's
        remedy = f", such as the task of the {type(made).__name__}: return made.task" if its_own else ""
        raise UserError(f"{reference} returned {type(made).__name__}; let it return an isotherm.Task{remedy}")
    return made


def own_function(reference: str, kind: str) -> str:
    """Return how to name a function of one's own that returns a `Task` or a `Sweep`.

    Args:
        reference: what the user named instead; where it is a file of Python or its module, its functions are listed.
        kind: of what the function returns.
    """
    file = Path(reference) if reference.endswith(".py") else Path(f"{reference}.py")
    if not os.path.isfile(file):  # false for a name that is too long for a file, too
        return f"or give 'module:function' for a function of your own that returns an isotherm.{kind}"
    module = ".".join(file.with_suffix("").parts)
    names = _functions_in(file)
    chosen = next((name for name in names if kind.lower() in name.lower()), names[0] if names else "function")
    listed = f"; its functions: {', '.join(names)}" if names else ""
    return f"name a function in {file} that returns an isotherm.{kind}, e.g. {module}:{chosen}{listed}"


def _functions_in(file: Path) -> list[str]:
    """Return the functions that a file defines; the file is not run."""
    try:
        parts = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    return [part.name for part in parts if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]


def call_reference(reference: str, *, data: Path | None = None) -> Any:
    """Import `module:function`, from the current folder too, and return what calling it gives.

    Args:
        reference: what the user named.
        data: the data folder; passed as `data` to a function that has such a parameter, as `get_task` takes it.
    """
    module_name, _, function_name = reference.partition(":")
    if not (module_name and function_name):
        raise UserError(f"{reference!r} is not 'module:function'; name both, e.g. mycode:sweep")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = ".".join(Path(module_name.removesuffix(".py")).parts)
        raise UserError(f"{reference!r} names a file; name the module, {dotted}:{function_name}")
    function = _function(_module(module_name, reference), function_name, reference)
    arguments = _arguments(function, reference, data)
    try:
        return function(**arguments)
    except UserError as error:
        raise UserError(f"{reference}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's function raises
        raise UserError(f"{reference!r} was called and raised {raised(error)}") from error


def _module(name: str, reference: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's module raises on import
        raise UserError(
            f"{reference!r}: module {name!r} cannot be imported: {raised(error)}; "
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
