"""A task is what is trained: model builder, data, loss and metric."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from isotherm.core.json import exact_json
from isotherm.core.l2 import L2Scope
from isotherm.core.one_screen import fields_text, short_text
from isotherm.core.records import Identity, Precision
from isotherm.data import text
from isotherm.data.augment import Transform
from isotherm.errors import UserError
from isotherm.tasks import checks, data_identity, identity
from isotherm.tasks.datasets.adapter import Adapter
from isotherm.tasks.datasets.split import DatasetInputs, read_if_dataset
from isotherm.tasks.definition import Definition
from isotherm.tasks.inputs import LazyInputs, Split
from isotherm.tasks.losses import LOSSES, LossFunction
from isotherm.tasks.metrics import METRICS, Metric, default_metric
from isotherm.tasks.several_inputs import InputLayout, UnpackedModel, check_packed, common_layout, packed_pair

NormStatistics = Literal["reestimated", "running"]
_CHOICES = {
    "l2_scope": get_args(L2Scope),
    "precision": get_args(Precision),
    "norm_statistics": get_args(NormStatistics),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What is trained: a builder of plain `nn.Module`s, the data, the loss and the metric.

    Args:
        name: a label for display; results are stored under the content of the task, not its name.
        model: function without arguments that returns a fresh module; the module need not know about fleets.
        train: inputs and targets, tensors, arrays or tables of equal length; inputs may also be `LazyInputs`, or
            several tensors: a dict, with which the model is called by name, or a tuple, by position. Or a map-style
            data set of such pairs, which is read as by `as_split`. Memory is shared and never written to.
        test: the same for the test set.
        loss: a name from `LOSSES`, or a function (output, target) -> mean over the batch.
        metric: a name from `METRICS`, or a `Metric`; default: accuracy for
            cross entropy, squared error for half the squared error, otherwise the loss itself.
        validation: the same for choosing the learning rate. Without it, a sweep that tunes on validation data holds
            out part of `train`.
        adapter: what makes a pair of an item of a data set, where it is none, as for `as_split`.
        transform: augmentation and normalisation, applied to every batch of inputs.
        unroll: for sequences: tokens per update. Inputs and targets are one long sequence of tokens and the tokens that
            follow them. A batch is a number of parallel streams; the model's state carries over from update to
            update. The loss is summed over the tokens of an update and averaged over the streams.
        norm_statistics: statistics of ghost batch norm in evaluation: "reestimated" over the training set with the
            current weights, or the "running" averages of training.
        l2: coefficient of the L2 penalty; this and the next three are the defaults of a sweep.
        l2_scope: parameters that are penalised.
        clip_norm: the gradient is clipped to this norm before momentum; None for no clipping.
        precision: precision of the computation.
        version: change it when something changes that `identity.model_parts` does not see, such as the release of a
            library.
        notes: remarks about the data, shown when the task is run; not part of its identity.
        input_layout: set by a task with several inputs: how they lie side by side in the one tensor of a split.
        definition: set by built-in tasks. It identifies the task as long as model, loss, metric and transform are those
            of the definition; other options are part of the identity.
    """

    name: str
    model: Callable[[], nn.Module]
    train: Split
    test: Split
    loss: str | LossFunction = "cross_entropy"
    metric: str | Metric | None = None
    validation: Split | None = None
    adapter: Adapter | None = None
    transform: Transform | None = None
    unroll: int | None = None
    norm_statistics: NormStatistics = "reestimated"
    l2: float = 0.0
    l2_scope: L2Scope = "weights"
    clip_norm: float | None = None
    precision: Precision = "float32"
    version: str = ""
    notes: tuple[str, ...] = ()
    input_layout: InputLayout | None = None
    definition: Definition | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise UserError(f"a task's name must be a non-empty string, not {self.name!r}")
        if not callable(self.model) or isinstance(self.model, nn.Module):
            kind = "a module" if isinstance(self.model, nn.Module) else type(self.model).__name__
            raise UserError(
                f"task {self.name!r}: model must be a function that builds a fresh module, not {kind}; "
                "every seed needs its own initialisation, so pass e.g. model=lambda: MyModule(...)"
            )
        checks.check_known(self.loss, LOSSES, what="loss", task=self.name)
        if self.metric is None:
            object.__setattr__(self, "metric", default_metric(self.loss))
        checks.check_known(self.metric, METRICS, what="metric", task=self.name)
        self._take_data()
        for name, choices in _CHOICES.items():
            checks.check_choice(getattr(self, name), choices, what=name, task=self.name)
        checks.check_numbers(l2=self.l2, clip_norm=self.clip_norm, task=self.name)
        if self.unroll is not None:
            checks.check_sequences(self.splits, unroll=self.unroll, task=self.name)
            checks.check_metric_of_sequence(self.metric_definition, task=self.name)
        checks.check_shapes(self.splits, task=self.name)

    def __repr__(self) -> str:
        splits = dict.fromkeys(self.splits, _split_text)
        return fields_text(self, shown={**splits, "model": lambda _: short_text(self.builder)})

    def _take_data(self) -> None:
        """Turn what was given into splits; with several inputs, the model into one that takes them packed."""
        layouts: dict[str, InputLayout | None] = {}
        for part in ("train", "test", "validation"):
            if part != "validation" or self.validation is not None:
                where = f"task {self.name!r}, {part} data"
                pair = read_if_dataset(getattr(self, part), adapter=self.adapter, where=where)
                pair, layouts[part] = packed_pair(pair, where)
                split = checks.checked_split(pair, where=where, loss=self.loss)
                if layouts[part] is None and self.input_layout is not None:
                    check_packed(split[0], self.input_layout, where)
                object.__setattr__(self, part, split)
        object.__setattr__(self, "adapter", None)  # it has done its work
        layout = common_layout(layouts, self.input_layout, self.name)
        if layout is None:
            return
        if self.transform is not None or self.unroll is not None:
            what = "transform" if self.transform is not None else "unroll"
            raise UserError(
                f"task {self.name!r}: {what}= is for inputs of one tensor, and these are several ({layout}); "
                "compute it in the model's forward"
            )
        object.__setattr__(self, "input_layout", layout)
        object.__setattr__(self, "model", UnpackedModel(build=self.builder, layout=layout))

    @property
    def builder(self) -> Callable[[], nn.Module]:
        """The function that was given as `model`; with several inputs, `model` builds a module that unpacks them."""
        return self.model.build if isinstance(self.model, UnpackedModel) else self.model

    @property
    def splits(self) -> dict[str, Split]:
        """The splits there are, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    @property
    def num_train(self) -> int:
        """How many training examples there are."""
        return len(self.train[0])

    @property
    def loss_function(self) -> LossFunction:
        """The loss as a function."""
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss

    @property
    def metric_definition(self) -> Metric:
        """The metric as a function with its direction."""
        assert self.metric is not None  # set when the task was made
        return METRICS[self.metric] if isinstance(self.metric, str) else self.metric

    def identify(self) -> Identity:
        """Return what the results of this task are stored under, computed from the current data and model.

        A built-in task is identified by its definition, any other task by its content.
        """
        model = self._definition_parts() or self._content_parts()
        data = data_identity.data_parts(self.splits)
        return Identity(
            data_id=data_identity.data_id(data), model_id=identity.model_id(model), data_parts=data, model_parts=model
        )

    @property
    def is_built_in(self) -> bool:
        """Tell whether this computes what its definition says; a built-in task with another model does not."""
        return self._definition_parts() is not None

    def _definition_parts(self) -> dict[str, str] | None:
        """Return the parts of a built-in task; None without a definition, or if the task computes something else."""
        if self.definition is None or not data_identity.are_built_in(self.splits):
            return None
        options = self.definition.options(
            model=self.model,
            loss=self.loss_function,
            metric=self.metric_definition,
            transform=self.transform,
            settings=self._settings(),
        )
        if options is None:
            return None
        return {
            "definition": f"{self.definition.name}, version {self.definition.version}",
            "settings": exact_json(dict(sorted(options.items()))),
            "version": self.version,
        }

    def _content_parts(self) -> dict[str, str]:
        settings = self._settings()
        if self.transform is not None:
            settings["transform"] = self.transform
        if self.input_layout is not None:
            settings["several inputs"] = str(self.input_layout)
        lazy = {
            part: type(split[0])
            for part, split in self.splits.items()
            if not isinstance(split[0], Tensor | DatasetInputs)
        }
        if lazy:
            settings["lazy inputs"] = lazy  # how they are read and augmented
        if self.metric_definition.exponential:
            settings["exponential"] = True
        if self.metric_definition.over == "split":
            settings["metric over"] = "split"
        return identity.model_parts(
            self.builder,
            loss=self.loss_function,
            metric=self.metric_definition.function,
            version=self.version,
            settings=settings,
        )

    def _settings(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, so that adding a setting changes no old key."""
        settings: dict[str, Any] = {}
        if self.unroll is not None:
            settings["unroll"] = self.unroll
        if self.norm_statistics != "reestimated":
            settings["norm_statistics"] = self.norm_statistics
        return settings

    def with_options(
        self, *, model: Mapping[str, Any] | None = None, transform: Mapping[str, Any] | None = None
    ) -> Task:
        """Return the task with other arguments of its model builder or fields of its transform, named after them.

        >>> from functools import partial
        >>> from isotherm.models.mlp import mlp
        >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
        >>> task = Task(name="mine", model=partial(mlp, widths=(2, 3, 2)), train=(x, y), test=(x, y))
        >>> len(list(task.with_options(model={"widths": (2, 5, 5, 2)}).model().parameters()))
        6
        """
        changed: dict[str, Any] = {}
        if model:
            checks.refuse_unknown(model, inspect.signature(self.builder).parameters, f"task {self.name!r}: its model")
            changed["model"] = partial(self.builder, **model)
            window = None if self.definition is None else self.definition.window
            if window is not None and window in model:
                changed |= self._in_windows(model[window])
        if transform:
            if not dataclasses.is_dataclass(self.transform):
                raise UserError(f"task {self.name!r} has no transform with fields to change; leave them out")
            known = {field.name for field in dataclasses.fields(self.transform)}
            checks.refuse_unknown(transform, known, f"task {self.name!r}: its transform")
            changed["transform"] = dataclasses.replace(self.transform, **transform)
        if changed:
            named = ", ".join(f"{name}={value}" for name, value in {**(model or {}), **(transform or {})}.items())
            changed["name"] = f"{self.name} ({named})"
        return dataclasses.replace(self, **changed)

    def _in_windows(self, length: Any) -> dict[str, Split]:
        """Return the splits of a text in windows of another length."""
        parts = {"train": "training", "test": "test", "validation": "validation"}
        return {name: text.rewindowed(split, length, part=parts[name]) for name, split in self.splits.items()}  # type: ignore[arg-type]

    def with_validation(self, fraction: float) -> Task:
        """Return the task with that part of the training set held out, always the same examples."""
        num_held = self.num_held_out(fraction)
        if not num_held:
            return self
        order = torch.randperm(self.num_train, generator=torch.Generator().manual_seed(0))
        held, kept = order[:num_held].sort().values, order[num_held:].sort().values
        x, y = self.train
        assert isinstance(x, Tensor)
        return dataclasses.replace(self, train=(x[kept], y[kept]), validation=(x[held], y[held]))

    def num_held_out(self, fraction: float) -> int:
        """Return how many training examples `with_validation` holds out: none if the task has validation data."""
        if self.validation is not None:
            return 0
        if self.unroll is not None or isinstance(self.train[0], LazyInputs):
            what = "a sequence" if self.unroll is not None else "a training set on disk"
            raise UserError(
                f"task {self.name!r}: no validation data can be held out of {what}; give the task its own, or tune "
                "on the test set with tune_on='test'"
            )
        num_held = round(self.num_train * fraction)
        if not 0 < num_held < self.num_train:
            raise UserError(
                f"task {self.name!r}: validation_fraction={fraction} of {self.num_train} training examples holds out "
                f"{num_held}; choose a fraction that leaves examples on both sides, or tune_on='test'"
            )
        return num_held


def _split_text(split: Split) -> str:
    """Return the shapes and types of a split."""
    (x, y), lazily = split, "" if isinstance(split[0], Tensor) else ", read lazily"
    shapes = [f"{tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}" for part in (x, y)]
    return f"<{shapes[0]}{lazily} -> {shapes[1]}>"
