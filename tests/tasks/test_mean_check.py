"""A metric over examples is a mean over them, or refused; rounding refuses nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cases
from helpers_tasks import sequence_task
from isotherm.engine.fleet import run_fleet
from isotherm.engine.placed_task import place_task
from isotherm.engine.stack import scoring
from isotherm.errors import UserError
from isotherm.tasks.mean_check import check_means, first_difference, has_own_mean
from isotherm.tasks.metrics import METRICS, Metric
from isotherm.tasks.model_check import check_model
from isotherm.tasks.split_metrics import auc, macro_f1, r_squared
from isotherm.tasks.task import Task

WEIGHTS = torch.tensor([1.0, 5.0, 0.2])


def own(function, *, over: str = "examples", **changes) -> Task:
    metric = Metric(name="mine", function=function, direction="maximise", over=over)
    return cases.classification("mine", cases.build_mlp, metric=metric, **changes)


def regression(function, **changes) -> Task:
    metric = Metric(name="mine", function=function, direction="minimise", **changes)
    splits = {"train": cases.line(64, seed=0), "test": cases.line(30, seed=1)}
    return Task(name="line", model=lambda: nn.Linear(3, 1), loss="mse", metric=metric, **splits)


def refusal(task: Task) -> str:
    with pytest.raises(UserError) as caught:
        check_model(task)
    return str(caught.value)


def top2(output: Tensor, target: Tensor) -> Tensor:
    return (output.topk(2).indices == target[:, None]).any(dim=1).double().mean()


def error_in_half_precision(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) != target).half().mean()


def margin(output: Tensor, target: Tensor) -> Tensor:
    """Sums positive and negative values to about zero."""
    return (1e3 * (output - output.mean(dim=1, keepdim=True))).sum(dim=1).mean()


TRUE_MEANS = [METRICS["accuracy"].function, functional.cross_entropy, top2, error_in_half_precision, margin]


@pytest.mark.parametrize("function", TRUE_MEANS)
def test_a_mean_over_examples_passes(function):
    check_model(own(function))
    check_model(own(function, over="split"))


@pytest.mark.parametrize(
    "function",
    [lambda o, t: (o - t).abs().mean(), lambda o, t: (o - t).mean(), nn.SmoothL1Loss(), nn.functional.mse_loss],
)
def test_a_mean_over_real_targets_passes(function):
    check_model(regression(function))


NO_MEANS = [
    macro_f1,
    lambda o, t: functional.cross_entropy(o, t, weight=WEIGHTS),
    lambda o, t: functional.cross_entropy(o, t).sqrt(),
    lambda o, t: functional.cross_entropy(o, t, reduction="sum"),
    lambda o, t: (o.argmax(1) == t)[t == 2].float().mean(),  # recall of a class, which a part may lack
    lambda o, t: torch.corrcoef(torch.stack([o[:, 0], t.float()]))[0, 1],
]


@pytest.mark.parametrize("function", NO_MEANS)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_what_is_no_mean_is_refused_and_passes_over_the_split(function, is_sorted):
    x, y = cases.blobs(64, seed=0)
    order = y.argsort() if is_sorted else torch.arange(64)
    train = (x[order], y[order])
    said = refusal(own(function, train=train))
    assert "metric 'mine' is no mean over examples: " in said
    assert said.endswith("pass over='split' to Metric, so that it gets all outputs of a split at once")
    check_model(own(function, over="split", train=train))


@pytest.mark.parametrize("function", [lambda o, t: (o - t).square().mean().sqrt(), r_squared])
def test_what_is_no_mean_over_real_targets_is_refused(function):
    assert "is no mean over examples" in refusal(regression(function))
    check_model(regression(function, over="split"))


def test_the_order_of_the_test_set_decided_what_macro_f1_was():
    """As a mean over parts; over the split it has one value."""
    x, y = cases.blobs(60, seed=1)
    order = y.argsort()
    splits = {"train": cases.blobs(64, seed=0), "test": (x, y)}

    def scores(over: str, test: tuple[Tensor, Tensor]) -> float:
        task = own(macro_f1, over=over, **{**splits, "test": test})
        placed = place_task(task, precision="float64")
        return run_fleet(placed, [cases.spec(task, num_steps=40)])[0].test_metric

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scoring, "CHUNK", 20)
        assert scores("split", (x, y)) == pytest.approx(scores("split", (x[order], y[order])), abs=1e-14)
        assert abs(scores("examples", (x, y)) - scores("examples", (x[order], y[order]))) > 0.1
    check_model(cases.classification("mine", cases.build_mlp, metric="f1", **splits))


@pytest.mark.parametrize("function", [macro_f1, lambda o, t: functional.cross_entropy(o, t).exp()])
def test_a_model_that_starts_from_zero_hides_nothing(function):
    """All its outputs are equal, and so are the losses of all examples."""

    def build() -> nn.Module:
        module = nn.Linear(2, 3)
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)
        return module

    metric = Metric(name="mine", function=function, direction="maximise")
    assert "is no mean over examples" in refusal(cases.classification("mine", build, metric=metric))


@pytest.mark.parametrize("seed", range(20))
def test_rounding_refuses_no_mean_and_the_rest_is_always_seen(seed):
    generator = torch.Generator().manual_seed(seed)
    num, num_classes = (int(torch.randint(low, 20 * low, (), generator=generator)) for low in (6, 2))
    scale = 10.0 ** int(torch.randint(-5, 6, (), generator=generator))
    logits = scale * torch.randn(num, num_classes, generator=generator)
    labels = torch.randint(num_classes, (num,), generator=generator)
    output, target = (scale * torch.randn(num, generator=generator) for _ in range(2))
    for function in (functional.cross_entropy, METRICS["accuracy"].function, error_in_half_precision, margin):
        assert first_difference(function, logits, labels) is None
    for function in (functional.l1_loss, functional.mse_loss, lambda o, t: (o - t).mean(), lambda o, t: (o * t).mean()):
        assert first_difference(function, output, target) is None
    assert first_difference(lambda o, t: functional.cross_entropy(o, t).exp(), logits, labels) is not None
    for function in (r_squared, lambda o, t: (o - t).square().mean().sqrt()):
        assert first_difference(function, output, target) is not None


def test_a_loss_that_is_a_sum_is_refused():
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction="sum")

    task = cases.classification("mine", cases.build_mlp, loss=loss, metric="accuracy")
    assert "the loss is a sum over the batch" in refusal(task)
    check_model(cases.classification("mine", cases.build_mlp, loss=functional.cross_entropy, metric="accuracy"))


def test_a_loss_that_is_no_mean_is_judged_by_another_metric_or_over_the_split(monkeypatch):
    loss = nn.CrossEntropyLoss(weight=WEIGHTS)
    said = refusal(cases.classification("mine", cases.build_mlp, loss=loss))
    assert "the loss, which is the metric too, is no mean over examples" in said
    assert "metric=it.Metric(name='loss', function=..., direction='minimise', over='split')" in said
    check_model(cases.classification("mine", cases.build_mlp, loss=loss, metric="accuracy"))
    metric = Metric(name="loss", function=loss, direction="minimise", over="split")
    task = cases.classification("mine", cases.build_mlp, loss=loss, metric=metric)
    check_model(task)
    monkeypatch.setattr(scoring, "CHUNK", 7)
    result = run_fleet(place_task(task, precision="float32"), [cases.spec(task, num_steps=5, precision="float32")])[0]
    assert result.test_loss == result.test_metric


def test_metrics_by_name_cost_nothing():
    assert not any(has_own_mean(cases.classification("mine", cases.build_mlp, metric=m)) for m in ("accuracy", "f1"))
    assert has_own_mean(own(top2))
    assert not has_own_mean(own(top2, over="split"))


def test_a_sequence_is_checked_too():
    metric = Metric(
        name="mine", function=lambda o, t: functional.cross_entropy(o.flatten(0, 1), t.flatten()), direction="minimise"
    )
    tokens = torch.randint(4, (200,), generator=torch.Generator().manual_seed(0))
    data = {"train": (tokens[:-1], tokens[1:]), "test": (tokens[:-1], tokens[1:])}
    check_model(sequence_task(metric=metric, **data))
    root = Metric(name="mine", function=lambda o, t: metric.function(o, t).sqrt(), direction="minimise")
    with pytest.raises(UserError, match="is no mean over examples"):
        check_model(sequence_task(metric=root, **data))


def test_too_few_examples_and_values_that_are_no_numbers_say_nothing():
    output, target = torch.randn(3, 2), torch.tensor([0, 1, 1])
    assert first_difference(auc, output, target) is None
    assert first_difference(lambda o, t: o.sum() / 0, torch.randn(8, 2), torch.zeros(8)) is None


def test_neither_outputs_nor_targets_are_changed():
    task = own(lambda o, t: o.zero_().mean() + t.zero_().float().mean())
    output, target = torch.randn(8, 3), torch.ones(8).long()
    before = output.clone()
    check_means(task, output, target)
    assert torch.equal(output, before)
    assert target.min() == 1


def percent(output: Tensor, target: Tensor) -> Tensor:
    return 100 * (output.argmax(dim=-1) == target).float().mean()


def test_a_metric_stays_within_its_bounds_and_an_accuracy_is_a_fraction():
    def made(name: str, function=percent, **settings) -> Task:
        metric = Metric(name=name, function=function, direction="maximise", **settings)
        return cases.classification("mine", cases.build_mlp, metric=metric)

    said = refusal(made("accuracy"))
    assert said.endswith("and it lies from 0 to 1; return such a value, or give the metric another name")
    check_model(made("accuracy", METRICS["accuracy"].function))
    check_model(made("accuracy", lambda o, t: percent(o, t) / 100))
    check_model(made("percent right"))
    assert refusal(made("percent right", bounds=(0, 1))).endswith("lies from 0 to 1; correct bounds=")
    check_model(made("percent right", bounds=(0, 100)))
    assert "lies from 0 to 1" in refusal(made("percent right", bounds=(0, 1), over="split"))
