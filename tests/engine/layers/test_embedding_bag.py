"""Bags of embeddings by an embedding and a reduction against PyTorch's own."""

import pytest
import torch
from torch.nn import functional

from isotherm.engine.layers.embedding_bag import embedding_bag

TOKENS = torch.tensor([[1, 2, 2], [0, 0, 0], [3, 0, 1]])
TABLE = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("padding_idx", [None, 0, -4])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_values_and_gradients_are_pytorchs(mode, padding_idx):
    table = TABLE.clone().requires_grad_()
    options = {"mode": mode, "padding_idx": padding_idx}
    ours, expected = embedding_bag(TOKENS, table, **options), functional.embedding_bag(TOKENS, table, **options)
    torch.testing.assert_close(ours, expected)
    [gradient], [wanted] = (torch.autograd.grad(each.square().sum(), table) for each in (ours, expected))
    torch.testing.assert_close(gradient, wanted)


def test_weighted_sums():
    weights = torch.rand(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    options = {"mode": "sum", "per_sample_weights": weights}
    torch.testing.assert_close(
        embedding_bag(TOKENS, TABLE, **options), functional.embedding_bag(TOKENS, TABLE, **options)
    )


@pytest.mark.parametrize(
    "options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}, {"offsets": torch.tensor([0])}]
)
def test_other_calls_are_left_to_pytorch(options):
    tokens = TOKENS.flatten() if "offsets" in options else TOKENS
    assert embedding_bag(tokens, TABLE, **options) is None
