"""Losses against PyTorch's and against sums by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from isotherm.tasks.losses import LOSSES
from isotherm.tasks.metrics import METRICS


def test_losses_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(LOSSES["cross_entropy"](logits, labels), nn.functional.cross_entropy(logits, labels))
    torch.testing.assert_close(
        LOSSES["mean_squared_error"](logits, logits.flip(0)), nn.functional.mse_loss(logits, logits.flip(0))
    )


def flat(values: Tensor) -> list[list[float]]:
    return values.flatten(1).tolist()


def test_squared_errors_are_summed_over_outputs_and_averaged_over_examples():
    generator = torch.Generator().manual_seed(0)
    output, target = (torch.randn(4, 2, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    sums = [
        sum((o - t) ** 2 for o, t in zip(a, b, strict=True)) for a, b in zip(flat(output), flat(target), strict=True)
    ]
    assert float(METRICS["squared_error"].function(output, target)) == pytest.approx(sum(sums) / 4)
    assert float(LOSSES["half_squared_error"](output, target)) == pytest.approx(sum(sums) / 8)


def test_cross_entropy_of_a_sequence_is_the_mean_over_streams_and_tokens():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (3, 4), generator=generator)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(LOSSES["cross_entropy"](logits, labels), expected)
    assert METRICS["perplexity"].exponential
    assert METRICS["perplexity"].function is LOSSES["cross_entropy"]
