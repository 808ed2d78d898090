import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import cases
from isotherm.core.records import CurvePoint, Outcome
from isotherm.engine.evaluation import Evaluator, Scores, diverged, evaluate_all, evaluate_split, final_result
from isotherm.engine.placed_task import PlacedTask, place_task
from isotherm.tasks.losses import cross_entropy
from isotherm.tasks.metrics import accuracy

POINTS = (
    CurvePoint(step=1, test_loss=1.0, test_metric=0.5),
    CurvePoint(step=2, test_loss=math.inf, test_metric=0.25),
    CurvePoint(step=3, test_loss=math.nan, test_metric=0.25),
)


def scores_of_one(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = torch.cat([x, -x.sum(dim=1, keepdim=True)], dim=1)
    return cross_entropy(logits, y), accuracy(logits, y)


def scores_of_three(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    scales = torch.tensor([1.0, 2.0, -1.0], dtype=x.dtype)
    return vmap(lambda scale: scores_of_one(scale * x, y))(scales)


def placed_of(num: int) -> PlacedTask:
    """Return a problem with so many test examples."""
    task = cases.classification("evaluated", cases.build_mlp, test=cases.blobs(num, seed=0))
    return place_task(task, precision="float64")


def scores_over_test(batch, num: int) -> list[Scores]:
    return evaluate_split(placed_of(num), Evaluator(batch=batch), "test")


def values(scores: list[Scores]) -> list[float]:
    return [value for score in scores for value in (score.loss, score.metric)]


@pytest.mark.parametrize("chunk", [1, 7, 64, 65, 1000])
@pytest.mark.parametrize("batch", [scores_of_one, scores_of_three])
def test_chunks_add_up_to_the_whole(batch, chunk):
    loss, metric = batch(*placed_of(65).splits["test"])
    whole = torch.stack([loss.reshape(-1), metric.reshape(-1)], dim=1).flatten().tolist()
    sizes: list[int] = []

    def counted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(y))
        return batch(x, y)

    found = evaluate_split(placed_of(65), Evaluator(batch=counted, chunk=chunk), "test")
    assert values(found) == pytest.approx(whole, rel=1e-13)
    assert (len(sizes), sum(sizes)) == (-(-65 // chunk), 65)


def test_one_run_gives_one_score_and_three_give_three():
    assert len(scores_over_test(scores_of_one, 9)) == 1
    assert len(scores_over_test(scores_of_three, 9)) == 3


def test_loss_and_metric_may_differ_in_type():
    def counts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum().double() * 0 + 0.5, (y == 0).sum() / len(y)

    assert values(scores_over_test(counts, 9)) == pytest.approx([0.5, 1 / 3])


def test_no_gradient_is_kept():
    seen: list[bool] = []

    def watch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(torch.is_grad_enabled())
        return scores_of_one(x, y)

    scores_over_test(watch, 9)
    assert seen == [False]


def test_every_split_is_evaluated():
    placed = place_task(cases.blobs_task().with_validation(0.25), precision="float64")
    scores = evaluate_all(placed, Evaluator(batch=scores_of_one))
    assert list(scores) == ["train", "validation", "test"]
    for name, (x, y) in placed.splits.items():
        assert scores[name][0].loss == pytest.approx(float(cross_entropy(*logits_and(x, y))))


def logits_and(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cat([x, -x.sum(dim=1, keepdim=True)], dim=1), y


def finished(scores: dict[str, Scores], *, beats_constant=lambda _metric: True):
    return final_result(
        scores,
        loss_at_start=1.0,
        beats_constant=beats_constant,
        num_steps=10,
        train_loss_running=0.5,
        last_batch_loss=0.6,
        l2_penalty=0.1,
        weight_norm_squared=4.0,
        curve=POINTS[:1],
        clipped_fraction=0.125,
        test_metric_running=0.25,
    )


def test_a_final_result_has_every_quantity():
    result = finished(
        {
            "train": Scores(loss=1.0, metric=0.1),
            "validation": Scores(loss=2.0, metric=0.2),
            "test": Scores(loss=3.0, metric=0.3),
        }
    )
    assert result.outcome is Outcome.FINISHED
    assert (result.train_loss_running, result.last_batch_loss) == (0.5, 0.6)
    assert (result.train_loss, result.train_metric) == (1.0, 0.1)
    assert (result.l2_penalty, result.weight_norm_squared) == (0.1, 4.0)
    assert (result.validation_loss, result.validation_metric) == (2.0, 0.2)
    assert (result.test_loss, result.test_metric, result.test_metric_running) == (3.0, 0.3, 0.25)
    assert result.clipped_fraction == 0.125
    assert (result.curve, result.divergence_step, result.error) == (POINTS[:1], None, None)


def test_without_a_validation_set_there_are_no_validation_scores():
    result = finished({"train": Scores(loss=1.0, metric=0.1), "test": Scores(loss=3.0, metric=0.3)})
    assert (result.validation_loss, result.validation_metric) == (None, None)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_final_loss_that_is_not_finite_is_a_divergence_at_the_end(split, value):
    scores = {name: Scores(loss=1.0, metric=0.5) for name in ("train", "validation", "test")}
    result = finished({**scores, split: Scores(loss=value, metric=0.5)})
    assert (result.outcome, result.divergence_step) == (Outcome.DIVERGED, 10)
    assert result.train_loss is None


@pytest.mark.parametrize(("loss", "outcome"), [(100.0, Outcome.FINISHED), (100.1, Outcome.DIVERGED)])
def test_a_training_loss_far_above_the_start_is_a_divergence_at_the_end(loss, outcome):
    scores = {name: Scores(loss=1e9, metric=0.5) for name in ("validation", "test")}  # these alone say nothing
    result = finished({**scores, "train": Scores(loss=loss, metric=0.5)})
    assert result.outcome is outcome
    assert result.divergence_step == (10 if outcome is Outcome.DIVERGED else None)


@pytest.mark.parametrize(
    ("loss", "beats", "outcome", "num_asked"),
    [
        (2.0, False, Outcome.FINISHED, 0),
        (2.1, True, Outcome.FINISHED, 1),
        (2.1, False, Outcome.DIVERGED, 1),
        (99.0, True, Outcome.FINISHED, 1),
        (101.0, True, Outcome.DIVERGED, 1),
        (math.inf, True, Outcome.DIVERGED, 0),
    ],
)
def test_the_training_metric_is_asked_where_the_loss_does_not_decide(loss, beats, outcome, num_asked):
    asked: list[float] = []

    def beats_constant(metric: float) -> bool:
        asked.append(metric)
        return beats

    far = Scores(loss=1e9, metric=0.9)  # held-out scores have no say
    result = finished({"train": Scores(loss=loss, metric=0.3), "test": far}, beats_constant=beats_constant)
    assert result.outcome is outcome
    assert asked == [0.3] * num_asked


def test_the_curve_of_a_diverged_run_keeps_its_finite_points():
    result = diverged(2, curve=POINTS)
    assert (result.outcome, result.divergence_step, result.curve) == (Outcome.DIVERGED, 2, POINTS[:1])
