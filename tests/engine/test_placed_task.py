import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import cases
from isotherm.engine.placed_task import (
    PlacedTask,
    arithmetic,
    checked_device,
    evaluation_steps,
    place_task,
    running_window,
)
from isotherm.errors import UserError

TASK = cases.blobs_task()


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("float64", torch.float64)])
def test_floating_point_values_take_the_precision_and_labels_stay(precision, dtype):
    placed = place_task(TASK, precision=precision)
    assert placed.dtype == dtype
    for x, y in placed.splits.values():
        assert (x.dtype, y.dtype) == (dtype, torch.int64)


def test_real_targets_take_the_precision():
    placed = place_task(cases.regression_task(), precision="float32")
    assert {y.dtype for _, y in placed.splits.values()} == {torch.float32}


def test_whole_number_inputs_stay():
    tokens = (torch.arange(6).reshape(3, 2), torch.tensor([0, 1, 2]))
    task = cases.classification("tokens", lambda: nn.Embedding(6, 3), train=tokens, test=tokens)
    assert place_task(task, precision="float64").splits["train"][0].dtype == torch.int64


def test_a_placed_task_has_the_tasks_parts():
    task = TASK.with_validation(0.25)
    placed = place_task(task, precision="float64")
    assert list(placed.splits) == ["train", "validation", "test"]
    assert placed.num_train == task.num_train == 48
    assert placed.build is task.model
    assert (placed.loss, placed.metric) == (task.loss_function, task.metric_definition.function)
    assert placed.device == torch.device("cpu")


def test_a_device_may_be_given_as_text_or_object():
    assert checked_device("cpu") == checked_device(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize("device", ["nonsense", "", "gpu", "cpu:x"])
def test_a_device_nobody_knows(device):
    with pytest.raises(UserError) as caught:
        checked_device(device)
    assert str(caught.value) == f"device {device!r} is not known to PyTorch; use 'cpu' or 'cuda'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_where_there_is_none(device):
    with pytest.raises(UserError) as caught:
        place_task(TASK, precision="float32", device=device)
    assert f"device {device!r} was asked for" in str(caught.value)
    assert "sees no GPU here" in str(caught.value)
    assert "use --device cpu" in str(caught.value)


@pytest.mark.parametrize("device", ["meta", "vulkan"])
def test_a_device_that_nothing_can_be_trained_on(device):
    with pytest.raises(UserError, match=f"device '{device}'.*'?cpu'?"):
        place_task(TASK, precision="float32", device=device)


def placed_task_of_size(num_train: int) -> PlacedTask:
    return place_task(
        cases.classification("sized", cases.build_mlp, train=cases.blobs(num_train, seed=0)), precision="float64"
    )


@pytest.mark.parametrize(
    ("num_train", "batch_size", "num_steps", "window"),
    [(64, 10, 200, 7), (64, 64, 200, 1), (64, 16, 200, 4), (64, 100, 200, 1), (64, 1, 10, 10), (65, 64, 9, 2)],
)
def test_the_running_window_is_one_epoch_rounded_up(num_train, batch_size, num_steps, window):
    spec = cases.spec(TASK, batch_size=batch_size, num_steps=num_steps)
    assert running_window(spec, placed_task_of_size(num_train)) == window


@given(st.integers(1, 10_000), st.integers(0, 200))
def test_evaluations_are_evenly_spaced_and_end_at_the_end(num_steps, num_evaluations):
    steps = evaluation_steps(cases.spec(TASK, num_steps=num_steps, num_evaluations=num_evaluations))
    assert len(steps) == min(num_evaluations, num_steps)
    if steps:
        gaps = [after - before for before, after in zip((0, *steps), steps, strict=False)]
        assert steps[-1] == num_steps
        assert min(gaps) >= 1
        assert max(gaps) - min(gaps) <= 1


# -- TF32 -------------------------------------------------------------------------------------------------------


def test_tf32_is_refused_on_a_cpu():
    with pytest.raises(UserError, match=r"precision='tf32' is a way in which GPUs multiply.*use precision='float32'"):
        place_task(cases.blobs_task(), precision="tf32")


def rounding() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    ("changes", "exact", "within"),
    [
        ({"rounds_to_tf32": True}, False, (True, True)),
        ({"rounds_to_tf32": True}, True, (False, False)),
        ({}, False, (False, False)),
    ],
    ids=["tf32", "exact for a check", "float32"],
)
def test_what_a_gpu_rounds(changes, exact, within):
    placed = place_task(cases.blobs_task(), precision="float32")
    on_gpu = dataclasses.replace(placed, device=torch.device("cuda"), **changes)
    before = rounding()
    with arithmetic(on_gpu, is_exact=exact):
        assert rounding() == within
    assert rounding() == before
    with arithmetic(dataclasses.replace(placed, **changes)):
        assert rounding() == before
