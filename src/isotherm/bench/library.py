"""Our layers replaced by PyTorch's own where both compute the same, as users of PyTorch would write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.models.lstm import LSTMLanguageModel


class LibraryLSTM(nn.Module):
    """`LSTMLanguageModel` built from `nn.Embedding`, `nn.LSTM` and `nn.Linear`, with the same weights."""

    def __init__(self, model: LSTMLanguageModel) -> None:
        super().__init__()
        self._initial_state = model.initial_state
        vocabulary, width = model.embedding.shape
        self.drop_probability = model.drop_probability
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, model.num_layers, dropout=model.drop_probability)
        self.softmax = nn.Linear(width, vocabulary)
        ours = dict(model.named_parameters())
        pairs = [(self.embedding.weight, "embedding"), (self.softmax.weight, "softmax_weight")]
        pairs.append((self.softmax.bias, "softmax_bias"))
        for layer in range(model.num_layers):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                pairs.append((getattr(self.lstm, f"{name}_l{layer}"), f"{name}_{layer}"))
        with torch.no_grad():
            for theirs, name in pairs:
                theirs.copy_(ours[name])

    def initial_state(self, batch_size: int) -> Tensor:
        """Return the state before the first token."""
        return self._initial_state(batch_size)

    def forward(self, tokens_BT: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and state, as our model does."""
        x_TBH = functional.dropout(self.embedding(tokens_BT.t()), self.drop_probability, self.training)
        x_TBH, (hidden, cell) = self.lstm(x_TBH, (state[0::2].contiguous(), state[1::2].contiguous()))
        logits_TBV = self.softmax(functional.dropout(x_TBH, self.drop_probability, self.training))
        after = torch.stack((hidden, cell), dim=1).flatten(0, 1)
        return logits_TBV.transpose(0, 1), after.to(state.dtype).detach()


def why_no_library_layers(model: nn.Module, *, batch_size: int) -> str | None:
    """Return why nothing can be replaced, or None."""
    if isinstance(model, LSTMLanguageModel):
        return None
    sizes = {part.ghost_size for part in model.modules() if isinstance(part, GhostBatchNorm2d)}
    if not sizes:
        return "the model is made of PyTorch's own layers already"
    if min(sizes) < batch_size:
        return f"PyTorch has no layer for ghost batches of {min(sizes)} in a batch of {batch_size}"
    return None


def with_library_layers(model: nn.Module, *, batch_size: int) -> nn.Module:
    """Return the model with `nn.LSTM`, or `nn.BatchNorm2d` if a batch is one ghost batch, instead of ours."""
    if reason := why_no_library_layers(model, batch_size=batch_size):
        raise RuntimeError(reason)
    if isinstance(model, LSTMLanguageModel):
        return LibraryLSTM(model)
    for name, part in list(model.named_modules()):
        if isinstance(part, GhostBatchNorm2d):
            norm: nn.Module = nn.BatchNorm2d(part.num_features, eps=part.eps, momentum=float(part.update_rate))
            model.set_submodule(name, norm if part.activation is None else nn.Sequential(norm, nn.ReLU()))
    return model
