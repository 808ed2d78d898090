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
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isotherm.core.json import exact_json
from isotherm.data.augment import Transform
from isotherm.tasks.losses import LOSSES, LossFunction
from isotherm.tasks.metrics import METRICS, Metric
from isotherm.tasks.seeding import initial_model

Options = dict[str, Any]

# Where the functions are that layers, losses and initialisations call.
_HOMES = (torch, torch.Tensor, nn.functional, nn.init)
_AS_IMPORTED = [(home, name, member) for home in (nn.functional, nn.init) for name, member in vars(home).items()]
_INSTALLED = Path(torch.__file__).parents[1]


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
    """

    name: str
    version: int
    model: partial[nn.Module]
    loss: str = "cross_entropy"
    metric: str = "accuracy"
    transform: Transform | None = None
    unroll: int | None = None
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
        if type(model) is not partial or model.func is not self.model.func or not _is_unchanged(model, transform):
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


def _is_unchanged(model: Callable[[], nn.Module], transform: Transform | None) -> bool:
    """Tell whether what the model and the transform run is this package's and PyTorch's own code, with no hooks."""
    try:
        kinds: set[type] = {type(part) for part in initial_model(model, seed=0).modules()}
    except Exception:  # hashing the content of the model says what is wrong with it
        return False
    if transform is not None:
        kinds.add(type(transform))
    parents = {parent for kind in kinds for parent in kind.__mro__}
    names = {kind.__module__ for kind in parents if kind.__module__.startswith("isotherm.")}
    modules = [sys.modules[name] for name in names if name in sys.modules]
    hooks = [value for name, value in vars(nn.modules.module).items() if name.startswith("_global") and value]
    members = [_function(member) for home in (*_HOMES, *parents, *modules) for member in vars(home).values()]
    return (
        not hooks
        and all(vars(home).get(name) is member for home, name, member in _AS_IMPORTED)
        and all(map(_has_own_methods, parents))
        and all(_is_own(thing) for thing in (*kinds, *members) if callable(thing) and not inspect.ismodule(thing))
    )


def _function(member: Any) -> Any:
    """Return the function behind a method of any kind, or the member itself."""
    member = member.fget if isinstance(member, property) else member
    return getattr(member, "__func__", member)


def _has_own_methods(kind: type) -> bool:
    """Tell whether no method of a class was taken from a class that it does not derive from."""
    homes = {parent.__name__ for parent in kind.__mro__}
    names = [member.__qualname__.split(".") for member in vars(kind).values() if inspect.isfunction(member)]
    return all(len(name) < 2 or name[-2] in homes or name[-2] == "<locals>" for name in names)


def _is_own(thing: Any) -> bool:
    """Tell whether code was written in this package, PyTorch or a library of theirs.

    A function is known by the module it was compiled in, too: `functools.wraps` gives it any other name.
    """
    if isinstance(thing, partial):
        return False
    named = thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)
    homes = {getattr(named, "__module__", None) or "builtins"}
    if inspect.isfunction(thing):
        homes.add(str(thing.__globals__.get("__name__")))
    return all(_is_library(str(home).split(".")[0]) for home in homes)


def _is_library(package: str) -> bool:
    """Tell whether a package is this one, Python's own, or installed beside PyTorch, which may rely on it."""
    if package == "isotherm" or package in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(package), "__file__", None)
    return file is not None and Path(file).is_relative_to(_INSTALLED)


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
