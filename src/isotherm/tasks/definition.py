"""Definitions of built-in tasks: a name and a version stand for a computation.

Results of a built-in task are stored under its name, its version and any non-standard options, not under its source
code: moving a file or making a kernel faster changes no key. A test pins the numbers of every version.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from isotherm.core.json import exact_json
from isotherm.data.augment import Transform
from isotherm.tasks.identity.changes import by_users
from isotherm.tasks.losses import LOSSES, LossFunction
from isotherm.tasks.metrics import METRICS, Metric
from isotherm.tasks.seeding import initial_model

Options = dict[str, Any]

_Home = ModuleType | type
_LAYERS = [kind for kind in vars(nn).values() if isinstance(kind, type)]
_PATCHABLE: list[_Home] = [nn.functional, nn.init, *_LAYERS]
# PyTorch's compiler replaces special methods such as Module.__init__.
_AS_IMPORTED = [
    (home, name, member)
    for home in _PATCHABLE
    for name, member in vars(home).items()
    if inspect.isroutine(member) and not name.startswith("__")
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Definition:
    """A named and versioned computation.

    Args:
        name: name of the built-in task.
        version: must be raised whenever the task gives different numbers.
        model: builder with the standard arguments.
        loss: a name from `LOSSES`.
        metric: a name from `METRICS`.
        transform: the standard transform.
        unroll: tokens per update.
        window: the argument of the builder that says how long the windows are into which a text is cut.
    """

    name: str
    version: int
    model: partial[nn.Module]
    loss: str = "cross_entropy"
    metric: str = "accuracy"
    transform: Transform | None = None
    unroll: int | None = None
    window: str | None = None
    # Copied here because the partial and both tables can be changed in place later.
    _arguments: Options = field(init=False, repr=False)
    _loss: LossFunction = field(init=False, repr=False)
    _metric: Metric = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_arguments", arguments_of(self.model))
        object.__setattr__(self, "_loss", LOSSES[self.loss])
        object.__setattr__(self, "_metric", METRICS[self.metric])

    def options(
        self,
        *,
        model: Callable[[], nn.Module],
        loss: LossFunction,
        metric: Metric,
        transform: Transform | None,
        settings: Mapping[str, Any],
    ) -> Options | None:
        """Return the options of a task that differ from the standard; None if it computes something else.

        >>> from isotherm.tasks.builtin import DEFINITIONS
        >>> mlp = DEFINITIONS["mlp_mnist1d"]
        >>> same = {"loss": LOSSES["cross_entropy"], "metric": METRICS["accuracy"], "transform": None, "settings": {}}
        >>> mlp.options(model=mlp.model, **same)
        {}
        >>> mlp.options(model=partial(mlp.model.func, (40, 10)), **same)
        {'model.widths': [40, 10]}
        >>> mlp.options(model=lambda: mlp.model(), **same) is None
        True
        """
        if loss is not self._loss or metric != self._metric or type(transform) is not type(self.transform):
            return None
        if type(model) is not partial or model.func is not self.model.func or not _is_unchanged(model):
            return None
        try:
            return {
                **_changed("model", arguments_of(model), self._arguments),
                **_changed("transform", _fields(transform), _fields(self.transform)),
                **_changed("task", settings, {} if self.unroll is None else {"unroll": self.unroll}),
            }
        except (TypeError, ValueError):  # an argument that JSON cannot express, such as a function
            return None


def arguments_of(model: partial[nn.Module]) -> Options:
    """Return all arguments of a builder by name, including defaults."""
    bound = inspect.signature(model.func).bind(*model.args, **model.keywords)
    bound.apply_defaults()
    return dict(bound.arguments)


def _is_unchanged(model: Callable[[], nn.Module]) -> bool:
    """Tell whether all classes of the module are this package's or PyTorch's, and nobody has changed the two."""
    try:
        kinds = {type(part) for part in initial_model(model, seed=0).modules()}
    except Exception:  # hashing the content of the model says what is wrong with it
        return False
    return {kind.__module__.split(".")[0] for kind in kinds} <= {"isotherm", "torch"} and not _changes()


def _changes() -> list[str]:
    """Return what users' code has put into PyTorch or this package, and what is there no longer as it was imported.

    By identity, not by name: another release of PyTorch may call a function otherwise, and must change no key.
    """
    own = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "isotherm"]
    homes: list[_Home] = [torch, torch.Tensor, *_PATCHABLE, *own]
    homes += [kind for module in own for kind in vars(module).values() if isinstance(kind, type)]
    hooks = [name for name, value in vars(nn.modules.module).items() if name.startswith("_global") and value]
    replaced = [f"{home.__name__}.{name}" for home, name, member in _AS_IMPORTED if vars(home).get(name) is not member]
    return [*(name for home in dict.fromkeys(homes) for name in by_users(home)), *hooks, *replaced]


def _fields(transform: Transform | None) -> Options:
    if transform is None:
        return {}
    assert dataclasses.is_dataclass(transform)
    return {field.name: getattr(transform, field.name) for field in dataclasses.fields(transform)}


def _changed(what: str, values: Mapping[str, Any], standard: Mapping[str, Any]) -> Options:
    """Return the non-standard values, with None for those that are missing."""
    texts, standard_texts = ({name: exact_json(value) for name, value in given.items()} for given in (values, standard))
    names = [name for name in {**texts, **standard_texts} if texts.get(name) != standard_texts.get(name)]
    return {f"{what}.{name}": json.loads(texts[name]) if name in texts else None for name in names}
