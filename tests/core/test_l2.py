"""Which parameters L2 covers."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

import cases
from isotherm.core.l2 import L2Scope, is_penalised


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_weights_have_at_least_two_dimensions(make):
    shapes = [(), (3,), (3, 1), (2, 3, 4), (2, 3, 4, 5)]
    assert [is_penalised(make(shape), scope="weights") for shape in shapes] == [False, False, True, True, True]
    assert all(is_penalised(make(shape), scope="all") for shape in shapes)


def test_biases_and_scales_of_a_network_are_no_weights():
    module = cases.build_batch_norm()
    penalised = [name for name, p in module.named_parameters() if is_penalised(p, scope="weights")]
    assert penalised == ["0.weight", "3.weight"]
    assert all(is_penalised(p, scope="all") for p in module.parameters())


def test_there_are_two_scopes():
    assert get_args(L2Scope) == ("weights", "all")
