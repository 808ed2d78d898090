"""A sigmoid or softmax before a loss or metric that applies it again: refused, and leaving it out helps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from helpers_tasks import X, task
from isotherm.errors import UserError
from isotherm.tasks.model_check import check_model
from isotherm.tasks.task import Task

HALVES = torch.tensor([0, 1, 0, 1, 0, 1])


def made(y: Tensor, *layers: nn.Module, **changes) -> Task:
    return task(train=(X, y), test=(X, y), model=lambda: nn.Sequential(*layers), **changes)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(x))[:, 0]


@pytest.mark.parametrize("loss", ["bce", nn.BCEWithLogitsLoss(), nn.functional.binary_cross_entropy_with_logits])
def test_a_sigmoid_before_bce_is_refused_and_leaving_it_out_helps(loss):
    y = HALVES.float()
    for layers in ((nn.Linear(2, 1), nn.Sigmoid(), nn.Flatten(0)), (Functional(),)):
        with pytest.raises(UserError, match="takes logits, but the model ends in a sigmoid; leave the sigmoid out"):
            check_model(made(y, *layers, loss=loss, metric="mse"))
    check_model(made(y, nn.Linear(2, 1), nn.Flatten(0), loss=loss, metric="mse"))


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_a_softmax_before_cross_entropy_is_refused_and_leaving_it_out_helps(loss):
    with pytest.raises(UserError, match="takes logits, but the model ends in a softmax; leave the softmax out"):
        check_model(made(HALVES, nn.Linear(2, 2), nn.Softmax(dim=1), loss=loss, metric="accuracy"))
    check_model(made(HALVES, nn.Linear(2, 2), loss=loss, metric="accuracy"))
    check_model(made(HALVES, nn.Linear(2, 2), nn.LogSoftmax(dim=1), loss=loss, metric="accuracy"))


@pytest.mark.parametrize("metric", ["bce", "f1"])
def test_nor_does_a_metric_of_logits_take_probabilities(metric):
    y = HALVES.float() if metric == "bce" else HALVES
    own = {"loss": lambda o, t: nn.functional.binary_cross_entropy(o, t.to(o.dtype)), "metric": metric}
    with pytest.raises(UserError, match=f"metric '{metric}' takes logits.* sigmoid out and use loss='bce'"):
        check_model(made(y, nn.Linear(2, 1), nn.Sigmoid(), nn.Flatten(0), **own))
    check_model(made(y, nn.Linear(2, 1), nn.Flatten(0), loss="bce", metric=metric))


def test_probabilities_elsewhere_are_fine():
    y = HALVES.float()
    check_model(made(y, nn.Linear(2, 1), nn.Sigmoid(), nn.Flatten(0), loss="mean_squared_error", metric="mse"))
    check_model(made(y, nn.Linear(2, 1), nn.Sigmoid(), nn.Flatten(0), nn.Identity(), loss=nn.BCELoss(), metric="mse"))
    gated = (nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 1), nn.Flatten(0))
    check_model(made(y, *gated, loss="bce", metric="bce"))
