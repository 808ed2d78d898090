"""A diagnosis in one call: of a task, or of the model and the data that make one."""

from __future__ import annotations

import dataclasses
from typing import Any

from isotherm.core.views import view
from isotherm.diagnose.diagnosis import Diagnosis
from isotherm.diagnose.options import DiagnoseOptions
from isotherm.diagnose.procedure import diagnose as procedure
from isotherm.errors import UserError, nearest
from isotherm.running.executors.choice import default_workers
from isotherm.tasks.seeding import cuda_is_in_use
from isotherm.tasks.task import Task

_OF_OPTIONS = {field.name for field in dataclasses.fields(DiagnoseOptions)}
_OF_TASK = {field.name for field in dataclasses.fields(Task)}
_NEEDED = ("model", "train", "test")


def diagnose(
    task: Task | None = None,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float = 5.0,
    progress: bool = True,
    **given: Any,
) -> Diagnosis:
    """Return which learning rate and batch size suit a training, from minutes of short runs.

    Args:
        task: an `isotherm.Task`. Instead of one give its fields: `model`, `train`, `test`, and where they are others
            than cross entropy and accuracy, `loss` and `metric`.
        epochs: of the training that will be done; this or `steps` is required.
        steps: updates of the training that will be done, at any batch size.
        minutes: time to spend, approximately.
        progress: say in a terminal or a notebook what is being done.
        given: other fields of the task or of `DiagnoseOptions`, such as `batch_size` and `learning_rate` in use at
            present, `momentum`, `device`, `workers` (by default one per core where processes can be forked).

    Raises:
        UserError: a name is unknown, or the task cannot be diagnosed.
    """
    for name in given:
        if name not in _OF_OPTIONS | _OF_TASK:
            raise UserError(f"diagnose takes no {name!r}; {nearest(name, _OF_OPTIONS | _OF_TASK)}")
    options: dict[str, Any] = {"epochs": epochs, "steps": steps, "minutes": minutes}
    options |= {name: value for name, value in given.items() if name in _OF_OPTIONS}
    fields = {name: value for name, value in given.items() if name in _OF_TASK - _OF_OPTIONS}
    if "workers" not in options and not cuda_is_in_use():
        options["workers"] = default_workers(options.get("device", "cpu"))
    asked = DiagnoseOptions(**options)  # before data are read
    own = _task_of(fields) if task is None else _checked(task, fields)
    if not progress:
        return procedure(own, asked)
    with view("stages")() as on_stage:
        return procedure(own, asked, on_stage=on_stage)


def _checked(task: Task, fields: dict[str, Any]) -> Task:
    if not isinstance(task, Task):
        raise UserError(
            f"task is {type(task).__name__}; give an isotherm.Task, or the parts of one: model=, train=, test="
        )
    if fields:
        raise UserError(f"a task and {', '.join(fields)}= are both given; give a task, or the parts of one")
    return task


def _task_of(fields: dict[str, Any]) -> Task:
    if missing := [name for name in _NEEDED if name not in fields]:
        raise UserError(
            f"{', '.join(f'{name}=' for name in missing)} missing; give a task, or model=, train=, test= and, where "
            "they differ from cross entropy and accuracy, loss= and metric="
        )
    name = str(getattr(fields["model"], "__name__", "model"))
    return Task(**{"name": "model" if name == "<lambda>" else name, **fields})
