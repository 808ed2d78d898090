"""Optimisers as records: what they refuse, their labels and lines, JSON, and betas at other batch sizes."""

import copy
import dataclasses
import inspect
import json
import pickle

import pytest

from isotherm.core.optimizers import (
    OPTIMIZERS,
    SGD,
    Adam,
    AdamW,
    Muon,
    decays_weights,
    has_temperature,
    heavy_ball_momentum,
    kind_of,
    num_moments,
    optimizer_json,
    optimizer_of,
)
from isotherm.errors import UserError

EVERY = (SGD(), SGD(momentum=0.5, nesterov=True), Adam(), AdamW(weight_decay=0.1), Muon(adjustment="original"))


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_an_optimiser_comes_back_from_json(optimizer):
    content = json.loads(json.dumps(optimizer_json(optimizer)))
    assert optimizer_of(content) == optimizer
    assert content["name"] in OPTIMIZERS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "has no name"),
        ({"name": "adamww"}, "'adamww' is no optimiser; did you mean 'adamw'"),
        ({"name": 3}, "3 is no optimiser"),
        ({"name": "adamw", "momentum": 0.9}, "AdamW has no option 'momentum', which is one of SGD and Muon"),
        ({"name": "sgd", "beta1": 0.9}, "SGD has no option 'beta1', which is one of Adam and AdamW and Muon"),
        ({"name": "adamw", "weight_deacy": 0.1}, "did you mean 'weight_decay'"),
        ({"name": "adamw", "beta2": 1.0}, r"beta2=1.0 is not in \[0, 1\)"),
        ({"name": "adam", "epsilon": 0}, "epsilon=0 is not a positive number"),
        ({"name": "adamw", "weight_decay": -0.1}, "weight_decay=-0.1 is not a number >= 0"),
        ({"name": "muon", "adjustment": "none"}, "adjustment='none' is unknown"),
        ({"name": "muon", "nesterov": 1}, "nesterov=1 is neither True nor False"),
        ({"name": "muon", "adamw_ratio": float("inf")}, "adamw_ratio=inf is not a positive number"),
        ({"name": "sgd", "momentum": "0.9"}, r"momentum='0.9' is not in \[0, 1\)"),
        ({"name": "sgd", "momentum": 0.0, "nesterov": True}, "plain SGD"),
        ({"name": "adamw", "reference_batch_size": 0.5}, "reference_batch_size must be a whole number"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_refused(content, words):
    with pytest.raises(UserError, match=words):
        optimizer_of(content)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AdamW(momentum=0.9), "^AdamW has no option 'momentum', which is one of SGD and Muon; known: beta1"),
        (lambda: Adam(weight_decay=0.1), "^Adam has no option 'weight_decay', .*: use AdamW, or for L2 .* l2="),
        (lambda: SGD(weight_decay=0.1), "use AdamW, or for L2 give the sweep or the task l2="),
        (lambda: SGD(momentun=0.1), "did you mean 'momentum'"),
        (lambda: AdamW(0.9), r"^AdamW takes its options by name, e\.g\. AdamW\(beta1=0\.9\); 0\.9 has none"),
    ],
)
def test_options_of_another_optimiser_are_refused_in_words(make, words):
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize("optimizer", EVERY, ids=str)
def test_optimisers_stay_frozen_records(optimizer):
    assert (
        pickle.loads(pickle.dumps(optimizer)) == copy.deepcopy(optimizer) == dataclasses.replace(optimizer) == optimizer
    )
    assert hash(pickle.loads(pickle.dumps(optimizer))) == hash(optimizer)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(optimizer, dataclasses.fields(optimizer)[0].name, 0.5)
    assert list(inspect.signature(type(optimizer)).parameters) == [f.name for f in dataclasses.fields(optimizer)]


def test_whole_numbers_are_the_same_setting():
    assert AdamW(weight_decay=1) == AdamW(weight_decay=1.0)
    assert json.dumps(optimizer_json(AdamW(weight_decay=1))) == json.dumps(optimizer_json(AdamW(weight_decay=1.0)))


@pytest.mark.parametrize("optimizer", [Adam, AdamW, Muon])
def test_betas_keep_their_half_life_in_examples(optimizer):
    scaled = optimizer(reference_batch_size=64)
    for batch_size in (16, 64, 256, 4096):
        there = scaled.at(batch_size)
        assert there.reference_batch_size is None
        for name in ("beta1", "beta2", "momentum"):
            if hasattr(scaled, name):
                # After as many examples the same part of an old gradient is left.
                assert getattr(there, name) ** (4096 / batch_size) == pytest.approx(getattr(scaled, name) ** 64)
                assert 0 <= getattr(there, name) < 1
    assert scaled.at(64) == optimizer()
    assert optimizer().at(8) == optimizer()


def test_betas_are_scaled_in_proportion_to_first_order():
    assert 1 - AdamW(reference_batch_size=64).at(128).beta2 == pytest.approx(2 * (1 - 0.999), rel=1e-3)


def test_labels_name_what_differs_from_the_defaults():
    labels = [one.label for one in (*EVERY, SGD(momentum=0.0), AdamW(beta2=0.95, reference_batch_size=8))]
    assert labels == [
        "momentum 0.9",
        "Nesterov momentum 0.5",
        "Adam",
        "AdamW(weight_decay=0.1)",
        "Muon(adjustment=original)",
        "SGD",
        "AdamW(beta2=0.95, reference_batch_size=8)",
    ]


def test_what_runs_of_a_fleet_share():
    assert kind_of(AdamW()) == kind_of(AdamW(beta1=0.5, weight_decay=1.0))
    assert len({kind_of(one) for one in (*EVERY, Muon())}) == len(EVERY) + 1


def test_properties():
    assert [has_temperature(one) for one in EVERY] == [True, True, False, False, False]
    assert [heavy_ball_momentum(one) for one in EVERY] == [0.9, None, None, None, None]
    assert [decays_weights(one) for one in EVERY] == [False, False, False, True, True]
    assert [num_moments(one) for one in EVERY] == [1, 1, 2, 2, 2]
    assert all(dataclasses.is_dataclass(one) and one.__dataclass_params__.frozen for one in EVERY)
