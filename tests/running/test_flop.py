"""Operations are counted, not guessed, and nobody's random numbers are disturbed."""

from __future__ import annotations

import torch

import cases
from cases_paper import UNROLL, language_task
from isotherm.running.flop import flop_per_example
from isotherm.tasks.builtin import made_task


def test_a_network_of_two_matrices() -> None:
    """Forward and the weights' gradients take 2 FLOP per weight each, the gradient of the hidden layer as many."""
    assert flop_per_example(cases.blobs_task()) == 2 * 2 * (2 * 8) + 3 * 2 * (8 * 3)


def test_the_mlp_by_hand() -> None:
    weights = (40 * 100, 100 * 100, 100 * 10)
    forward = 2 * sum(weights)
    gradient_of_weights = forward
    gradient_of_inputs = 2 * sum(weights[1:])  # those of the first layer are data
    counted = flop_per_example(made_task("mlp_mnist1d"))
    assert counted == forward + gradient_of_weights + gradient_of_inputs == 82_000


def test_of_a_sequence_a_window_of_tokens_counts() -> None:
    flop = [flop_per_example(language_task(unroll=unroll)) for unroll in (UNROLL, 2 * UNROLL)]
    assert flop[1] == 2 * flop[0] > 0


def test_dropout_disturbs_no_generator() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    flop_per_example(cases.dropout_task())
    assert torch.equal(torch.random.get_rng_state(), before)
