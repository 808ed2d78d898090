"""What a task is made of, holds out and takes as options."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers_tasks import REAL, OnDisk, X, Y, images_task, refused, sequence_task, task
from isotherm.core.records import Direction
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.errors import UserError
from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS, Metric
from isotherm.tasks.model_check import check_model
from isotherm.tasks.task import Task


def test_splits_are_named_in_order():
    assert list(task().splits) == ["train", "test"]
    assert list(task(validation=(X, Y)).splits) == ["train", "validation", "test"]


def test_names_and_functions_of_loss_and_metric():
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).abs().mean()

    metric = Metric(name="mae", function=loss, direction=Direction.MINIMISE)
    mine = task(train=(X, REAL), test=(X, REAL), loss=loss, metric=metric)
    assert (mine.loss_function, mine.metric_definition) == (loss, metric)
    assert task().loss_function is LOSSES["cross_entropy"]
    assert task().metric_definition is METRICS["accuracy"]


def test_numpy_arrays_are_the_same_task_as_tensors():
    arrays = (X.numpy(), Y.numpy())
    assert task(train=arrays, test=arrays).identify().data_id == task().identify().data_id


def test_plain_lists_are_accepted():
    lists = (X.tolist(), Y.tolist())
    assert task(train=lists, test=list(lists)).identify().data_id == task().identify().data_id


def test_read_only_arrays_are_accepted():
    x = X.numpy().copy()
    x.flags.writeable = False  # as memory-mapped files are
    assert task(train=(x, Y), test=(x, Y)).identify().data_id == task().identify().data_id


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_labels_of_any_whole_number_type_are_one_task(dtype):
    labels = Y.numpy().astype(dtype)
    made = task(train=(X, labels), test=(X, labels))
    assert made.train[1].dtype == torch.int64
    assert made.identify().data_id == task().identify().data_id


def test_tensors_that_require_gradients_are_detached():
    made = task(train=(X.clone().requires_grad_(), Y))
    assert not made.train[0].requires_grad


def test_ids_do_not_depend_on_the_name():
    assert task(name="other").identify().data_id == task().identify().data_id
    assert task(name="other").identify().model_id == task().identify().model_id


def test_loss_and_version_are_part_of_the_model():
    assert task(version="2").identify().model_id != task().identify().model_id
    assert task(metric="cross_entropy").identify().model_id != task().identify().model_id


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_text(name):
    refused([repr(name), "non-empty string"], name=name)


def test_a_module_instead_of_a_builder():
    refused(["'mine'", "not a module", "own initialisation", "model=lambda: MyModule(...)"], model=nn.Linear(2, 3))


def test_something_that_cannot_be_called():
    refused(["function that builds", "not int", "model=lambda"], model=3)


def numbered_task(num: int = 40) -> Task:
    """Return a task whose inputs are the numbers of its examples."""
    numbers = torch.arange(num, dtype=torch.float32).unsqueeze(1)
    return task(
        model=lambda: nn.Linear(1, 3), train=(numbers, torch.arange(num) % 3), test=(numbers, torch.arange(num) % 3)
    )


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.975])
def test_held_out_examples_are_disjoint_and_cover_the_training_set(fraction):
    split = numbered_task().with_validation(fraction)
    kept, held = (part[0][:, 0].tolist() for part in (split.train, split.validation))
    assert len(held) == round(40 * fraction)
    assert set(kept).isdisjoint(held)
    assert sorted(kept + held) == list(range(40))


def test_held_out_targets_stay_with_their_inputs():
    split = numbered_task().with_validation(0.3)
    for inputs, targets in (split.train, split.validation):
        assert torch.equal(inputs[:, 0].long() % 3, targets)


def test_holding_out_is_deterministic_and_leaves_the_test_set():
    one, other = (numbered_task().with_validation(0.2) for _ in range(2))
    assert one.identify().data_id == other.identify().data_id
    assert torch.equal(one.test[0], numbered_task().test[0])


def test_holding_out_does_not_depend_on_the_global_generator():
    torch.manual_seed(1)
    first = numbered_task().with_validation(0.2)
    torch.manual_seed(2)
    assert numbered_task().with_validation(0.2).identify().data_id == first.identify().data_id


def test_holding_out_more_gives_other_data():
    whole = numbered_task()
    ids = {made.identify().data_id for made in (whole, whole.with_validation(0.2), whole.with_validation(0.3))}
    assert len(ids) == 3


def test_a_given_validation_set_is_kept():
    given = task(validation=(X, Y))
    assert given.with_validation(0.5) is given


@pytest.mark.parametrize("fraction", [0.0, 0.001, 1.0, -0.2, 2.0])
def test_a_fraction_that_leaves_one_side_empty(fraction):
    with pytest.raises(UserError) as caught:
        numbered_task().with_validation(fraction)
    words = ["'mine'", f"validation_fraction={fraction}", "40 training examples", "tune_on='test'"]
    assert [word for word in words if word not in str(caught.value)] == []


def test_inputs_may_stay_on_disk():
    made = task(train=(OnDisk(), Y))
    assert isinstance(made.train[0], OnDisk)
    assert check_model(made) is None
    assert made.identify().data_id == task(train=(OnDisk(), Y)).identify().data_id != task().identify().data_id
    refused(["train data", "6 inputs and 5 targets"], train=(OnDisk(), Y[:5]))


@pytest.mark.parametrize(
    ("changes", "what"), [({"train": (OnDisk(), Y)}, "a training set on disk"), ({}, "a sequence")]
)
def test_nothing_can_be_held_out_of_what_is_no_tensor_of_examples(changes, what):
    made = task(**changes) if changes else sequence_task()
    with pytest.raises(UserError, match=f"no validation data can be held out of {what}; .*tune_on='test'"):
        made.with_validation(0.1)


def test_what_changes_the_training_changes_the_model():
    pixels = {"mean": (0.0,), "std": (1.0,)}
    plain = task()
    changed = [
        task(transform=Scaled()),
        task(transform=CropAndFlip(**pixels)),
        task(transform=CropAndFlip(**pixels, pad=2)),
        task(transform=CropAndFlip(**pixels, padding="zero")),
        task(norm_statistics="running"),
    ]
    assert len({made.identify().model_id for made in (plain, *changed)}) == 6
    assert sequence_task().identify().model_id != sequence_task(unroll=6).identify().model_id
    assert sequence_task().identify().model_id != sequence_task(metric="cross_entropy").identify().model_id
    # What a sweep may say otherwise is part of the run and not of the model.
    assert (
        task(l2=0.1, l2_scope="all", clip_norm=5.0, precision="mixed").identify().model_id == plain.identify().model_id
    )


def test_options_reach_the_model_and_the_transform_and_change_the_identity():
    task = images_task()
    changed = task.with_options(model={"ghost_size": 4}, transform={"padding": "zero"})
    assert changed.model().norm.ghost_size == 4
    assert changed.transform == CropAndFlip(mean=(0.0,) * 3, std=(1.0,) * 3, padding="zero")
    assert task.model().norm.ghost_size == 64
    others = [task.with_options(model={"ghost_size": 4}), task.with_options(transform={"padding": "zero"}), changed]
    assert len({t.identify().model_id for t in (task, *others)}) == 4
    assert {t.identify().data_id for t in (task, *others)} == {task.identify().data_id}


def test_no_options_change_nothing():
    task = images_task()
    assert task.with_options().identify().model_id == task.identify().model_id


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": {"ghost": 4}}, "its model takes no 'ghost'; did you mean 'ghost_size'"),
        ({"transform": {"paddin": "zero"}}, "its transform takes no 'paddin'; did you mean 'padding'"),
        ({"transform": {"padding": "mirror"}}, "use 'reflect' or 'zero'"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest(options, sentence):
    with pytest.raises(UserError, match=sentence):
        images_task().with_options(**options)


def test_a_task_without_a_transform_has_none_to_change():
    task = dataclasses.replace(images_task(), transform=None)
    with pytest.raises(UserError, match="has no transform"):
        task.with_options(transform={"padding": "zero"})
