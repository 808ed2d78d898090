"""Metrics over a split against definitions by hand, in NumPy and float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from isotherm.tasks.split_metrics import auc, macro_f1, r_squared


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels_of(*shape: int, num_classes: int, seed: int = 1) -> Tensor:
    return torch.randint(num_classes, shape, generator=torch.Generator().manual_seed(seed))


def f1_by_hand(found: np.ndarray, labels: np.ndarray) -> float:
    values = []
    for kind in np.union1d(found, labels):
        hits = np.sum((found == kind) & (labels == kind))
        precision = hits / max(1, np.sum(found == kind))
        recall = hits / max(1, np.sum(labels == kind))
        values.append(0.0 if hits == 0 else 2 * precision * recall / (precision + recall))
    return float(np.mean(values))


@pytest.mark.parametrize("num_classes", [2, 5, 40])
def test_macro_f1_is_that_of_precision_and_recall(num_classes):
    logits, labels = normal(60, num_classes), labels_of(60, num_classes=num_classes)
    by_hand = f1_by_hand(logits.argmax(dim=1).numpy(), labels.numpy())
    assert float(macro_f1(logits, labels)) == pytest.approx(by_hand, abs=1e-15)


def test_macro_f1_of_one_logit_per_example_and_of_labels_in_rows():
    logits, labels = normal(50), labels_of(50, num_classes=2)
    assert float(macro_f1(logits, labels)) == pytest.approx(f1_by_hand((logits > 0).numpy(), labels.numpy()), abs=1e-15)
    logits, labels = normal(9, 7, 3), labels_of(9, 7, num_classes=3)
    by_hand = f1_by_hand(logits.argmax(dim=-1).numpy().ravel(), labels.numpy().ravel())
    assert float(macro_f1(logits, labels)) == pytest.approx(by_hand, abs=1e-15)


def auc_by_hand(scores: np.ndarray, labels: np.ndarray) -> float:
    positive, negative = scores[labels == 1][:, None], scores[labels == 0][None, :]
    return float(np.mean((positive > negative) + 0.5 * (positive == negative)))


@pytest.mark.parametrize("digits", [0, 1, 6])
def test_auc_counts_pairs_in_the_right_order_and_half_of_the_ties(digits):
    scores, labels = normal(70).round(decimals=digits), labels_of(70, num_classes=2)
    assert float(auc(scores, labels)) == pytest.approx(auc_by_hand(scores.numpy(), labels.numpy()), abs=1e-15)


def test_auc_of_two_logits_is_that_of_their_difference():
    logits, labels = normal(40, 2), labels_of(40, num_classes=2)
    by_hand = auc_by_hand((logits[:, 1] - logits[:, 0]).numpy(), labels.numpy())
    assert float(auc(logits, labels)) == pytest.approx(by_hand, abs=1e-15)


def test_auc_needs_both_classes():
    assert [
        float(auc(torch.tensor([0.0, 1.0]), torch.tensor([0, 1]))),
        float(auc(torch.zeros(4), labels_of(4, num_classes=2))),
    ] == [1.0, 0.5]
    assert math.isnan(float(auc(torch.tensor([0.0, 1.0]), torch.tensor([1, 1]))))


@pytest.mark.parametrize("shape", [(30,), (30, 4)])
def test_r_squared_compares_with_the_mean_of_the_targets(shape):
    output, target = normal(*shape), normal(*shape, seed=3) + 2
    x, y = output.double().numpy(), target.double().numpy()
    by_hand = 1 - np.sum((x - y) ** 2) / np.sum((y - y.mean(axis=0)) ** 2)
    assert float(r_squared(output, target)) == pytest.approx(by_hand, rel=1e-14)
    mean = target.double().mean(dim=0).expand_as(target)
    assert float(r_squared(mean, target)) == pytest.approx(0.0, abs=1e-14)
    assert float(r_squared(target, target)) == 1.0


def test_r_squared_of_constant_targets_is_undefined():
    assert math.isnan(float(r_squared(torch.zeros(3), torch.ones(3))))
