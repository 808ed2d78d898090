"""Small tasks on sequences, one for every layer of PyTorch that a fleet has to take in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.tasks.task import Task

VOCABULARY, LENGTH, WIDTH = 7, 5, 4


def tokens(num: int, *, seed: int) -> Tensor:
    """Return random sequences (num, LENGTH)."""
    return torch.randint(0, VOCABULARY, (num, LENGTH), generator=torch.Generator().manual_seed(seed))


def sequence_task(name: str, model: Callable[[], nn.Module], *, of_whole: bool = False) -> Task:
    """Return a task that labels every token, or a whole sequence, by what comes before it."""

    def split(num: int, seed: int) -> tuple[Tensor, Tensor]:
        x = tokens(num, seed=seed)
        labels = (x + x.roll(1, 1)) % VOCABULARY
        return x, labels[:, -1] if of_whole else labels

    return Task(name=name, model=model, train=split(40, 0), test=split(16, 1), loss="cross_entropy")


class Around(nn.Module):
    """An embedding, a layer, and logits of every token."""

    def __init__(self, layer: nn.Module, *, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(VOCABULARY, WIDTH), layer, nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        output = self.between(self.embedding(x), x)
        return self.head(output[0] if isinstance(output, tuple) else output)

    def between(self, z: Tensor, x: Tensor) -> Any:
        """Return the layer's output for embedded tokens."""
        return self.layer(z)


class Causal(Around):
    def between(self, z: Tensor, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=z.device, dtype=z.dtype)
        return self.layer(z, mask, is_causal=True)


class Padded(Around):
    def between(self, z: Tensor, x: Tensor) -> Tensor:
        return self.layer(z, src_key_padding_mask=(x == 0) & (torch.arange(LENGTH, device=x.device) > 0))


class SelfAttention(Around):
    need_weights = False

    def between(self, z: Tensor, x: Tensor) -> Tensor:
        return self.layer(z, z, z, need_weights=self.need_weights)[0]


class SelfAttentionWithWeights(SelfAttention):
    need_weights = True


class Function(Around):
    """Attention by the function alone, with options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nn.Linear(WIDTH, 3 * WIDTH))
        self.options = options

    def between(self, z: Tensor, x: Tensor) -> Tensor:
        query, key, value = self.layer(z).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        options = {**self.options, "dropout_p": self.options.get("dropout_p", 0.0) if self.training else 0.0}
        if options.pop("masked", False):
            options["attn_mask"] = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=z.device).tril()
        output = functional.scaled_dot_product_attention(query, key, value, **options)
        return output.transpose(1, 2).flatten(-2)


class Cells(Around):
    def between(self, z: Tensor, x: Tensor) -> Tensor:
        state, hiddens = None, []
        for token in z.unbind(1):
            state = self.layer(token, state)
            hiddens.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(hiddens, 1)


class LastStates(Around):
    """What an encoder hands to a decoder: the last hidden state and cell."""

    def between(self, z: Tensor, x: Tensor) -> Tensor:
        output, (hidden, cell) = self.layer(z)
        return output + (hidden * cell)[-1].unsqueeze(1)


class Bag(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(VOCABULARY, WIDTH, **options), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x))


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 8, **{"batch_first": True, **options})


def _recurrent(kind: type[nn.Module], *, width: int = WIDTH, around: type[Around] = Around, **options: Any) -> Any:
    return lambda: around(kind(WIDTH, WIDTH, batch_first=True, **options), width=width)


def _normed(dim: int | None) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH), dim=dim)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "encoder layer": lambda: Around(encoder_layer()),
    "causal encoder": lambda: Causal(nn.TransformerEncoder(encoder_layer(), 2)),
    "padded encoder": lambda: Padded(nn.TransformerEncoder(encoder_layer(dropout=0.0), 1)),
    "encoder, tokens first": lambda: Around(encoder_layer(batch_first=False, norm_first=True)),
    "multi-head attention": lambda: SelfAttention(nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True)),
    "weights of attention": lambda: SelfAttentionWithWeights(nn.MultiheadAttention(WIDTH, 2, 0.2, batch_first=True)),
    "attention": Function,
    "causal attention": lambda: Function(is_causal=True),
    "masked attention": lambda: Function(masked=True, scale=0.3),
    "causal attention with dropout": lambda: Function(is_causal=True, dropout_p=0.2),
    "masked attention with dropout": lambda: Function(masked=True, dropout_p=0.2),
    "LSTM": _recurrent(nn.LSTM),
    "LSTM, two ways, dropout": _recurrent(nn.LSTM, width=8, num_layers=2, dropout=0.3, bidirectional=True),
    "LSTM, projected": _recurrent(nn.LSTM, width=3, num_layers=2, proj_size=3, bias=False),
    "LSTM, last states": _recurrent(nn.LSTM, around=LastStates),
    "GRU": _recurrent(nn.GRU),
    "GRU, dropout": _recurrent(nn.GRU, num_layers=2, dropout=0.3),
    "RNN": _recurrent(nn.RNN, num_layers=2),
    "RNN of ReLUs": _recurrent(nn.RNN, nonlinearity="relu"),
    "LSTM cell": lambda: Cells(nn.LSTMCell(WIDTH, WIDTH)),
    "GRU cell": lambda: Cells(nn.GRUCell(WIDTH, WIDTH)),
    "embedding": lambda: Around(nn.Identity()),
    "weight norm": lambda: Around(_normed(0)),
    "weight norm, one in all": lambda: Around(_normed(None)),
}
BAGS: dict[str, Callable[[], nn.Module]] = {
    "bag": Bag,
    "bag of sums": lambda: Bag(mode="sum", padding_idx=0),
    "bag of means": lambda: Bag(mode="mean", padding_idx=0),
    "bag of maxima": lambda: Bag(mode="max"),
}
NAMES = (*MODELS, *BAGS)


def layer_task(name: str) -> Task:
    """Return the task of a name."""
    return sequence_task(name, MODELS[name]) if name in MODELS else sequence_task(name, BAGS[name], of_whole=True)
