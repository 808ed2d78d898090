"""Tasks on their way to another process, which may be of another machine.

A user's model builder may be a lambda or a closure, and the module that defines it may exist on this machine only. So
functions go by value, cloudpickle's way, and so does every module that is loaded from outside the installed packages.
The bytes come from this program and go to workers that it has started, over channels of its own; nothing else is ever
unpacked.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from isotherm.errors import UserError
from isotherm.tasks.task import Task

Tasks = Mapping[tuple[str, str], Task]


class PackedTasks:
    """Tasks that can be sent; their tensors travel as arrays, which Ray's object store keeps once per machine."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = dict(tasks)

    def __reduce__(self) -> tuple[Any, ...]:
        with _own_modules_by_value():
            parts = {name: _parts(task) for name, task in self.tasks.items()}
            functions = {name: cloudpickle.dumps(rest) for name, (rest, _) in parts.items()}
        return unpacked, (functions, {name: arrays for name, (_, arrays) in parts.items()})


def write_tasks(tasks: Tasks, folder: Path) -> TaskFile:
    """Write tasks to a file in a folder that the machines share; return what to tell them of it."""
    content = cloudpickle.dumps(PackedTasks(tasks))
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"tasks-{digest[:16]}"
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    return TaskFile(path=path, digest=digest)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFile:
    """A file with tasks, and the hash of what this program wrote into it."""

    path: Path
    digest: str

    def read(self) -> PackedTasks:
        """Return the tasks; another content than was written is refused before it is unpacked."""
        content = self.path.read_bytes()
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise UserError(f"{self.path} is not what was written there; use a folder of your own and run again")
        found = cloudpickle.loads(content)
        assert isinstance(found, PackedTasks)
        return found


def unpacked(functions: Mapping[Any, bytes], arrays: Mapping[Any, Mapping[str, Any]]) -> PackedTasks:
    """Return the tasks that were packed."""
    return PackedTasks({name: _task(cloudpickle.loads(functions[name]), arrays[name]) for name in functions})


def _parts(task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a task without its data, and its data with arrays for tensors."""
    rest = {field.name: getattr(task, field.name) for field in fields(task) if field.name not in _SPLITS}
    return rest, {name: (_sent(x), _sent(y)) for name, (x, y) in task.splits.items()}


_SPLITS = ("train", "validation", "test")


def _task(rest: Mapping[str, Any], splits: Mapping[str, Any]) -> Task:
    data: dict[str, Any] = {name: (_received(x), _received(y)) for name, (x, y) in splits.items()}
    return Task(**rest, **data)


def _sent(values: Any) -> Any:
    if isinstance(values, Tensor) and values.dtype != torch.bfloat16:  # NumPy has no such type
        return values.detach().numpy()
    return values


def _received(values: Any) -> Any:
    if not isinstance(values, np.ndarray):
        return values
    with warnings.catch_warnings():  # shared memory is read-only, and nobody writes to the data of a task
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(values)


@contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """Let cloudpickle send the functions of modules that are not installed, rather than their names."""
    own = [module for name, module in list(sys.modules.items()) if _is_own(name, module)]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(name: str, module: ModuleType) -> bool:
    """Tell whether a module comes from a file outside the installed packages and this one."""
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    if not file or name != module.__name__ or name == "__main__" or name.partition(".")[0] == "isotherm":
        return False
    return not any(Path(file).absolute().is_relative_to(folder) for folder in _INSTALLED)


_INSTALLED = tuple(
    Path(folder).absolute()
    for folder in {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
)
