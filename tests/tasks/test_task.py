import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cases
from isotherm.core.records import Direction
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.errors import UserError
from isotherm.models.wide_resnet import wide_resnet
from isotherm.tasks.builtin import TASKS, get_task
from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS, Metric
from isotherm.tasks.model_check import check_model, example_batch
from isotherm.tasks.task import Task

X, Y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
REAL = torch.zeros(6, 1)


def task(**changes) -> Task:
    fields = {"name": "mine", "model": cases.build_mlp, "train": (X, Y), "test": (X, Y)}
    return Task(**{**fields, **changes})


def refused(words: list[str], **changes) -> None:
    """Assert that the task is refused, and that the message holds every one of the words."""
    with pytest.raises(UserError) as caught:
        task(**changes)
    assert [word for word in words if word not in str(caught.value)] == []


def refused_model(words: list[str], **changes) -> None:
    """Assert that the task is made, that its model is refused, and why."""
    made = task(**changes)
    with pytest.raises(UserError) as caught:
        check_model(made)
    assert [word for word in words if word not in str(caught.value)] == []


# -- losses and metrics -----------------------------------------------------------------------------------------


def test_losses_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(LOSSES["cross_entropy"](logits, labels), nn.functional.cross_entropy(logits, labels))
    torch.testing.assert_close(
        LOSSES["mean_squared_error"](logits, logits.flip(0)), nn.functional.mse_loss(logits, logits.flip(0))
    )


def test_squared_errors_are_summed_over_outputs_and_averaged_over_examples():
    generator = torch.Generator().manual_seed(0)
    output, target = (torch.randn(4, 2, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    sums = [
        sum((o - t) ** 2 for o, t in zip(a, b, strict=True)) for a, b in zip(flat(output), flat(target), strict=True)
    ]
    assert float(METRICS["squared_error"].function(output, target)) == pytest.approx(sum(sums) / 4)
    assert float(LOSSES["half_squared_error"](output, target)) == pytest.approx(sum(sums) / 8)


def flat(values: Tensor) -> list[list[float]]:
    return values.flatten(1).tolist()


def test_cross_entropy_of_a_sequence_is_the_mean_over_streams_and_tokens():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (3, 4), generator=generator)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(LOSSES["cross_entropy"](logits, labels), expected)
    assert METRICS["perplexity"].exponential
    assert METRICS["perplexity"].function is LOSSES["cross_entropy"]


def test_accuracy_counts_the_largest_logit():
    logits = torch.tensor([[3.0, 1.0], [0.0, 2.0], [5.0, 4.0], [1.0, 0.0]])
    metric = METRICS["accuracy"]
    assert float(metric.function(logits, torch.tensor([0, 1, 1, 0]))) == 0.75
    assert metric.direction is Direction.MAXIMISE


def test_losses_as_metrics_are_minimised():
    """Whatever a loss is judged by where nothing is said, except accuracy."""
    defaults = {
        name: task(train=(X, REAL), test=(X, REAL), loss=name).metric for name in LOSSES.keys() - {"cross_entropy"}
    }
    assert defaults == {"mean_squared_error": "mean_squared_error", "half_squared_error": "squared_error"}
    assert {METRICS[name].direction for name in (*defaults.values(), "cross_entropy", "perplexity")} == {
        Direction.MINIMISE
    }


# -- what a task accepts ----------------------------------------------------------------------------------------


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


# -- what a task refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_text(name):
    refused([repr(name), "non-empty string"], name=name)


def test_a_module_instead_of_a_builder():
    refused(["'mine'", "not a module", "own initialisation", "model=lambda: MyModule(...)"], model=nn.Linear(2, 3))


def test_something_that_cannot_be_called():
    refused(["function that builds", "not int", "model=lambda"], model=3)


def test_an_unknown_loss_gets_the_nearest_name():
    refused(
        ["'mine'", "unknown loss 'crossentropy'", "did you mean 'cross_entropy'", "mean_squared_error"],
        loss="crossentropy",
    )


def test_an_unknown_metric_gets_the_nearest_name():
    refused(["unknown metric 'acuracy'", "did you mean 'accuracy'", "or pass your own"], metric="acuracy")


def test_a_loss_that_is_no_function():
    refused(["loss is int", "function (output, target) -> mean"], loss=3)


def test_a_metric_without_a_direction():
    refused(["metric is function", "an isotherm.Metric"], metric=LOSSES["cross_entropy"])


@pytest.mark.parametrize("part", ["train", "test", "validation"])
def test_mismatched_lengths(part):
    words = [f"{part} data", "(6, 2)", "(5,)", "differ in length", "first dimension of both"]
    refused(words, **{part: (X, Y[:5])})


@pytest.mark.parametrize("split", [X, (X,), (X, Y, Y), {"x": X, "y": Y}, None])
def test_a_split_is_a_pair(split):
    refused(["train data", "pair (inputs, targets)", type(split).__name__], train=split)


def test_scalars_are_not_examples():
    refused(["train data", "shape ()", "counts the examples"], train=(torch.tensor(1.0), torch.tensor(1)))


def test_no_examples():
    refused(["test data", "empty", "at least one"], test=(X[:0], Y[:0]))


def test_what_is_neither_tensor_nor_array():
    refused(["train data", "neither a tensor nor an array"], train=(["a", "b"], [0, 1]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_a_number(value):
    x = X.clone()
    x[3, 1] = value
    refused(["train data, inputs", "[3, 1]", f"is {value}", "remove or replace"], train=(x, Y))


def test_a_target_that_is_not_a_number():
    y = REAL.clone()
    y[2, 0] = math.nan
    words = ["test data, targets", "[2, 0]", "is nan", "remove or replace"]
    refused(words, loss="mean_squared_error", train=(X, REAL), test=(X, y))


def test_a_negative_label():
    y = Y.clone()
    y[4] = -1
    refused(["train data", "label at index 4 is -1", "start at 0"], train=(X, y))


@pytest.mark.parametrize("labels", [Y.float(), Y > 0, nn.functional.one_hot(Y)])
def test_labels_are_whole_numbers_of_one_dimension(labels):
    words = ["train data", "whole-number labels", str(labels.dtype), str(tuple(labels.shape)), "y.long()"]
    refused(words, train=(X, labels))


def test_splits_of_different_shape():
    words = ["differ in shape", "'train': (2,)", "'test': (3,)", "make them equal"]
    refused(words, test=(torch.zeros(6, 3), Y))


# -- models -----------------------------------------------------------------------------------------------------

ALL_TASKS = [
    cases.blobs_task,
    cases.dropout_task,
    cases.conv_task,
    cases.batch_norm_task,
    cases.tied_task,
    cases.frozen_task,
    cases.unvectorisable_task,
    cases.stateful_task,
    cases.regression_task,
    cases.quadratic_task,
]


@pytest.mark.parametrize("make", ALL_TASKS)
def test_a_trainable_model_passes(make):
    assert check_model(make()) is None


def test_checking_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(())
    torch.manual_seed(0)
    check_model(cases.dropout_task())
    assert torch.equal(torch.rand(()), expected)


def test_a_builder_that_raises():
    def build() -> nn.Module:
        raise KeyError("width")

    refused_model(["'mine'", "building the model raised KeyError", "width"], model=build)


def test_a_builder_that_returns_no_module():
    refused_model(["returned list", "torch.nn.Module"], model=list)


def test_no_parameters():
    refused_model(["'mine'", "no trainable parameters"], model=nn.Identity)


def test_only_frozen_parameters():
    refused_model(["no trainable parameters"], model=lambda: nn.Linear(2, 3).requires_grad_(False))


def test_inputs_the_model_cannot_take():
    words = ["'mine'", "cannot take inputs of shape (4, 2)", "torch.float32", "RuntimeError"]
    refused_model(words, model=lambda: nn.Linear(7, 3))


class Wrapped(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return super().forward(x), None


def test_an_output_that_is_a_tuple():
    refused_model(["returns tuple", "must return one tensor"], model=lambda: Wrapped(2, 3))


def test_a_label_out_of_range_in_any_split():
    y = Y.clone()
    y[5] = 3
    words = ["label 3 is out of range", "3 outputs", "from 0 to 2", "widen the last layer"]
    refused_model(words, test=(X, y))


def test_logits_of_the_wrong_shape():
    refused_model(
        ["(batch, classes)", "(4, 2, 3)", "one output per class"],
        train=(torch.zeros(6, 2, 2), Y),
        test=(torch.zeros(6, 2, 2), Y),
    )


def test_outputs_unlike_the_targets():
    words = ["shaped like the targets", "(4, 3)", "(4, 1)", "reshape"]
    refused_model(words, train=(X, REAL), test=(X, REAL), loss="mean_squared_error", metric="mean_squared_error")


def test_targets_without_the_outputs_last_dimension():
    """(n, 1) - (n,) would broadcast to (n, n) without a word."""
    words = ["shaped like the targets", "(4, 1)", "(4,)", "reshape"]
    refused_model(
        words,
        model=lambda: nn.Linear(2, 1),
        train=(X, REAL[:, 0]),
        test=(X, REAL[:, 0]),
        loss="mean_squared_error",
        metric="mean_squared_error",
    )


def test_a_loss_that_returns_a_vector():
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none")

    refused_model(["the loss must return a scalar tensor", "mean over the batch", "(4,)"], loss=loss)


def test_a_loss_that_returns_a_number():
    words = ["the loss must return a scalar tensor", "not float"]
    refused_model(words, loss=lambda output, target: float(output.sum()))


def test_a_metric_that_returns_a_vector():
    metric = Metric(name="hits", function=lambda o, t: o.argmax(-1) == t, direction=Direction.MAXIMISE)
    refused_model(["the metric must return a scalar tensor", "(4,)"], metric=metric)


def test_a_loss_that_raises():
    def loss(output: Tensor, target: Tensor) -> Tensor:
        raise IndexError("no such class")

    words = ["the loss cannot take outputs of shape (4, 3)", "targets of shape (4,)", "IndexError: no such class"]
    refused_model(words, loss=loss)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_initial_loss_that_is_not_finite(value):
    words = ["loss of the untrained model is", str(value), "initialisation", "scale of the inputs"]
    refused_model(words, loss=lambda output, target: output.sum() * 0 + value)


# -- validation -------------------------------------------------------------------------------------------------


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


# -- by name ----------------------------------------------------------------------------------------------------


def test_an_unknown_task_gets_the_nearest_name():
    with pytest.raises(UserError, match=r"unknown task 'mlp_mnist'; did you mean 'mlp_mnist1d'.*module:function"):
        get_task("mlp_mnist")


def test_the_embedded_task():
    embedded = get_task("mlp_mnist1d")
    assert (len(embedded.train[0]), len(embedded.test[0])) == (4_000, 1_000)
    assert embedded.train[0].shape[1:] == (40,)
    assert sorted(set(embedded.train[1].tolist())) == list(range(10))
    assert embedded.name in TASKS
    check_model(embedded)


# -- sequences, transforms, and inputs from disk ----------------------------------------------------------------

TOKENS = torch.arange(30) % 4
SEQUENCE = (TOKENS[:-1], TOKENS[1:])


class Recurrent(nn.Module):
    """Its state is the last token seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(1, batch_size, 1)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.cat([state[0], x[:, :-1].to(state.dtype)], dim=1)
        return self.layer(torch.stack([x.to(state.dtype), before], dim=-1)), x[:, -1:].to(state.dtype).unsqueeze(0)


def sequence_task(**changes) -> Task:
    fields = {"train": SEQUENCE, "test": SEQUENCE, "model": Recurrent, "unroll": 5, "metric": "perplexity"}
    return task(**{**fields, **changes})


@pytest.mark.parametrize("unroll", [1, 5, 29, 40])
def test_a_model_with_a_state_passes(unroll):
    made = sequence_task(unroll=unroll)
    assert check_model(made) is None
    x, y = example_batch(made)
    assert x.shape == y.shape == (4, unroll)


@pytest.mark.parametrize("unroll", [0, -1, 1.5, True, "35"])
def test_an_unroll_that_is_no_length(unroll):
    with pytest.raises(UserError, match=r"unroll=.* is not a whole number of at least 1; the paper uses 35"):
        sequence_task(unroll=unroll)


@pytest.mark.parametrize("split", [(TOKENS[:-1].float(), TOKENS[1:]), (TOKENS[:28].view(7, 4), TOKENS[:7])])
def test_a_sequence_is_whole_numbers_in_a_row(split):
    with pytest.raises(UserError, match=r"train data: with unroll .* use \(tokens\[:-1\], tokens\[1:\]\)"):
        sequence_task(train=split, test=split)


def test_a_model_without_a_state_for_a_sequence():
    with pytest.raises(
        UserError, match=r"'mine': with unroll the model carries a state: .*initial_state\(batch_size\)"
    ):
        check_model(sequence_task(model=lambda: nn.Linear(5, 4)))


class OnDisk:
    """Zeros that are fetched."""

    shape, dtype = torch.Size((6, 2)), torch.float32

    def __len__(self) -> int:
        return 6

    def fetch(self, indices, *, seed=None, step=0) -> Tensor:
        return torch.zeros(len(indices), 2)

    def identity(self) -> str:
        return "zeros"


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"l2": -1.0}, ["l2=-1.0", ">= 0"]),
        ({"l2": math.nan}, ["l2=nan", ">= 0"]),
        ({"clip_norm": 0.0}, ["clip_norm=0.0", "above 0", "None to clip nothing"]),
        ({"clip_norm": math.nan}, ["clip_norm=nan", "above 0"]),
        ({"precision": "bfloat16"}, ["precision='bfloat16' is unknown", "'mixed'"]),
        ({"l2_scope": "biases"}, ["l2_scope='biases' is unknown", "'weights', 'all'"]),
        ({"norm_statistics": "batch"}, ["norm_statistics='batch' is unknown", "'reestimated', 'running'"]),
    ],
    ids=str,
)
def test_settings_nobody_knows(changes, words):
    refused(["'mine'", *words], **changes)


def images_task() -> Task:
    x = torch.zeros(8, 3, 8, 8, dtype=torch.uint8)
    y = torch.arange(8) % 3
    build = functools.partial(wide_resnet, depth=10, width=1, num_classes=3)
    transform = CropAndFlip(mean=(0.0,) * 3, std=(1.0,) * 3)
    return Task(name="images", model=build, train=(x, y), test=(x, y), transform=transform)


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


def test_batch_sizes_that_ghost_batch_norm_cannot_divide_are_refused_before_anything_runs():
    check_model(images_task(), [7, 64, 128])
    with pytest.raises(UserError, match=r"a batch of 100 cannot be split into ghost batches of 64; use .* 64 or 128"):
        check_model(images_task(), [64, 100])


def test_the_transform_is_tried_as_training_uses_it():
    with pytest.raises(UserError, match=r"pad=8 is not below the image size 8 x 8"):
        check_model(images_task().with_options(transform={"pad": 8}))


class FailsInTraining:
    def train(self, inputs, bits):
        raise KeyError("no such colour")

    def evaluate(self, inputs):
        return inputs.float()

    def targets(self, targets):
        return targets


def test_a_transform_that_raises_is_named():
    with pytest.raises(UserError, match=r"the transform cannot take inputs of shape .* KeyError: 'no such colour'"):
        check_model(dataclasses.replace(images_task(), transform=FailsInTraining()))
