"""The tasks that are timed: the built-in ones on synthetic data, and two more networks of everyday use."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from isotherm.data import synthetic
from isotherm.errors import UserError, nearest
from isotherm.tasks.builtin import TASKS, made_task
from isotherm.tasks.task import Task


def _convolutional() -> nn.Module:
    """Return a network for images (1, 28, 28): convolutions with 32 and 64 filters, a dense layer of 128."""
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


def _cnn() -> Task:
    splits = synthetic.images(num_train=10_000, shape=(1, 28, 28), num_classes=10)
    train, test = ((pixels / 255.0, labels) for pixels, labels in splits)
    return Task(name="cnn", model=_convolutional, train=train, test=test)


def _gpt() -> Task:
    return made_task("gpt_text").with_options(model={"context": 64, "width": 128, "num_layers": 4, "num_heads": 4})


OWN: dict[str, Callable[[], Task]] = {"cnn": _cnn, "gpt": _gpt}


def timed_task(name: str) -> Task:
    """Return a task that can be timed, on synthetic data."""
    if name in OWN:
        return OWN[name]()
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}; {nearest(name, [*OWN, *TASKS])}")
    return made_task(name)
