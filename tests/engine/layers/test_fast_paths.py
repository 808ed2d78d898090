"""Transformers in evaluation compute what they do in training."""

import pytest
import torch
from torch import nn

from isotherm.engine.layers.fast_paths import without_fast_paths


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_positions_are_computed_as_in_training():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 1)
    x, hidden = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, False, False]])
    training = encoder(x, src_key_padding_mask=hidden)
    encoder.eval()
    with torch.no_grad():
        with without_fast_paths():
            ours = encoder(x, src_key_padding_mask=hidden)
        fast = encoder(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(ours, training)
    assert not torch.allclose(fast, training)  # what the fast path does to them


def test_the_setting_of_others_is_restored():
    torch.backends.mha.set_fastpath_enabled(False)
    with without_fast_paths():
        pass
    assert not torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(True)
    with without_fast_paths():
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
