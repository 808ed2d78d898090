"""Attention with dropout against PyTorch's function, where nothing or a known part is dropped."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from isotherm.engine.layers.attention_dropout import attention_with_dropout


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


QUERY, KEY, VALUE = drawn(2, 4, 5, 6, seed=0), drawn(2, 4, 7, 6, seed=1), drawn(2, 4, 7, 3, seed=2)
SEEN = torch.ones(5, 7, dtype=torch.bool).tril()
HIDDEN = SEEN & (torch.arange(5) != 2).unsqueeze(1)  # the third query sees no key
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.1},
    "masked": {"attn_mask": SEEN},
    "a query that sees nothing": {"attn_mask": HIDDEN},
    "added": {"attn_mask": drawn(2, 1, 5, 7, seed=3)},
}


@pytest.mark.parametrize("name", CASES)
def test_without_drops_it_is_pytorchs_function(name):
    query = QUERY.clone().requires_grad_()
    ours = attention_with_dropout(query, KEY, VALUE, drop=lambda weights: weights, **CASES[name])
    expected = functional.scaled_dot_product_attention(query, KEY, VALUE, **CASES[name])
    torch.testing.assert_close(ours, expected)
    [gradient], [wanted] = (torch.autograd.grad(each.square().sum(), query) for each in (ours, expected))
    torch.testing.assert_close(gradient, wanted)


def test_grouped_queries():
    key, value = KEY[:, :2], VALUE[:, :2]
    ours = attention_with_dropout(QUERY, key, value, drop=lambda weights: weights, enable_gqa=True)
    torch.testing.assert_close(ours, functional.scaled_dot_product_attention(QUERY, key, value, enable_gqa=True))


def test_weights_are_dropped_after_the_softmax():
    kept = drawn(2, 4, 5, 7, seed=4) > 0
    ours = attention_with_dropout(QUERY, KEY, VALUE, drop=lambda weights: weights * kept)
    weights = (QUERY @ KEY.transpose(-1, -2) / 6**0.5).softmax(-1)
    torch.testing.assert_close(ours, (weights * kept) @ VALUE)
