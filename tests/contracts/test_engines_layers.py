"""PyTorch's transformers, recurrent layers, embeddings and weight norm: a fleet's numbers are those of `reference`.

`ISOTHERM_LAYER_UPDATES=200` trains every layer for as long as the first ones are always trained.
"""

import logging
import os

import pytest
from torch import nn

import cases
from cases_layers import BAGS, NAMES, Bag, layer_task, sequence_task
from helpers_engines import assert_same, by_fleet, by_reference
from isotherm.core.records import Outcome
from isotherm.engine.placed_task import place_task

LONG = ("causal attention", "GRU", "weight norm")
NUM_UPDATES = int(os.environ.get("ISOTHERM_LAYER_UPDATES", "8"))


def specs_of(task, *, num_steps):
    members = ({"seed": 0}, {"seed": 1, "effective_learning_rate": 0.3, "momentum": 0.5})
    return [cases.spec(task, num_steps=num_steps, num_evaluations=1, **member) for member in members]


@pytest.mark.parametrize("name", NAMES)
def test_fleet_equals_reference(name, caplog, recwarn):
    task = layer_task(name)
    placed = place_task(task, precision="float64")
    specs = specs_of(task, num_steps=200 if name in LONG else NUM_UPDATES)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = by_fleet(placed, specs)
    expected = [by_reference(placed, spec) for spec in specs]
    assert_same(ours, expected)
    assert caplog.text == ""  # a fleet indeed, no operation run by run
    assert not recwarn.list
    assert {result.outcome for result, _ in expected} == {Outcome.FINISHED}
    assert expected[0][0].train_loss != expected[1][0].train_loss


@pytest.mark.parametrize("name", ["encoder layer", "GRU, dropout"])
def test_numbers_depend_on_no_neighbour(name):
    task = layer_task(name)
    placed = place_task(task, precision="float64")
    specs = [cases.spec(task, seed=seed, num_steps=4) for seed in (0, 1, 2)]
    together = by_fleet(placed, specs)
    assert_same(by_fleet(placed, [specs[2], specs[0]]), [together[2], together[0]])
    assert_same(by_fleet(placed, specs[1:2]), together[1:2])  # without `vmap`


@pytest.mark.parametrize("name", ["LSTM", "GRU, dropout"])
@pytest.mark.parametrize("num_runs", [2, 1])
def test_weights_of_recurrent_layers_are_not_laid_out_for_cudnn(name, num_runs, caplog, monkeypatch):
    """On a GPU PyTorch asks the weights of a call where they are, and those of many runs are nowhere."""

    def lay_out(module: nn.RNNBase) -> None:
        for weights in module._flat_weights:
            weights.data_ptr()

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lay_out)
    task = layer_task(name)
    placed = place_task(task, precision="float64")
    specs = specs_of(task, num_steps=4)[:num_runs]
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        ours = by_fleet(placed, specs)
    assert_same(ours, [by_reference(placed, spec) for spec in specs])
    assert caplog.text == ""
    assert nn.RNNBase.flatten_parameters is lay_out  # left as it was found


def test_what_is_slow_is_named_with_its_layer_and_a_remedy(caplog):
    task = sequence_task("limited", lambda: Bag(max_norm=1.0), of_whole=True)
    placed = place_task(task, precision="float64")
    specs = specs_of(task, num_steps=3)
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        assert_same(by_fleet(placed, specs), [by_reference(placed, spec) for spec in specs])
    [record] = caplog.records
    assert "in layer 'bag' (EmbeddingBag)" in record.getMessage()
    assert "leave max_norm out" in record.getMessage()
    assert "times as fast as one run after another does (measured" in record.getMessage()


def test_bags_are_among_them():
    assert set(BAGS) < set(NAMES)
