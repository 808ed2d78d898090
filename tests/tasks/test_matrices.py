"""Which parameters Muon trains, and that it needs some."""

import dataclasses

import pytest
from torch import nn

import cases
from isotherm.core.optimizers import SGD, AdamW, Muon
from isotherm.errors import UserError
from isotherm.tasks.matrices import check_matrices, muon_matrices


def test_matrices_are_trained_by_muon_and_nothing_else():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    model[4].weight.requires_grad_(False)
    assert muon_matrices(model) == ("2.weight",)


def test_a_head_that_is_tied_to_an_embedding_is_one():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    assert muon_matrices(model) == ()


def test_muon_is_refused_for_a_network_without_matrices():
    filters = dataclasses.replace(cases.blobs_task(), name="mine", model=lambda: nn.Conv2d(1, 1, 3))
    with pytest.raises(UserError, match=r"'mine' has none besides embeddings.*use AdamW"):
        check_matrices(filters, [AdamW(), Muon()])
    check_matrices(filters, [AdamW(), SGD()])
    check_matrices(cases.blobs_task(), [Muon()])
