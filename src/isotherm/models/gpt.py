"""A small causal transformer for text (after Radford et al. 2019): layer norm first, learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.errors import UserError

_INITIAL_DEVIATION = 0.02


class GPT(nn.Module):
    """Tokens (B, T) to the logits of every next token (B, T, vocabulary); T may be at most `context`.

    Args:
        vocabulary: number of tokens.
        context: tokens of a window.
        width: of the residual stream, a multiple of `num_heads`.
        num_layers: blocks of attention and MLP.
        num_heads: of every attention.
        drop_probability: of embeddings, attention weights and what a block adds.

    >>> sum(p.numel() for p in GPT(vocabulary=30, context=32, width=32, num_layers=2, num_heads=4).parameters())
    28416
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        context: int = 32,
        width: int = 32,
        num_layers: int = 2,
        num_heads: int = 4,
        drop_probability: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"context": context, "width": width, "num_layers": num_layers, "num_heads": num_heads}
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name}={value!r} of a transformer is not a positive whole number")
        if width % num_heads:
            raise UserError(f"num_heads={num_heads} does not divide width={width}; every head has an equal part of it")
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(drop_probability)
        blocks = [_Block(width, num_heads=num_heads, drop_probability=drop_probability) for _ in range(num_layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # What is added to the residual stream is smaller the more often something is added.
                adds = name.endswith(("attend.leave.weight", "widen.2.weight"))
                nn.init.normal_(parameter, std=_INITIAL_DEVIATION / ((2 * num_layers) ** 0.5 if adds else 1.0))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits (B, T, vocabulary)."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x = self.drop(self.tokens(tokens_BT) + self.positions(positions_T))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class _Block(nn.Module):
    """Adds attention over earlier tokens, then an MLP of every token."""

    def __init__(self, width: int, *, num_heads: int, drop_probability: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = _Attention(width, num_heads=num_heads, drop_probability=drop_probability)
        self.widen = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(drop_probability)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attend(self.norm_1(x)))
        x = x + self.drop(self.widen(self.norm_2(x)))
        return x


class _Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, *, num_heads: int, drop_probability: float) -> None:
        super().__init__()
        self.num_heads, self.drop_probability = num_heads, drop_probability
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.enter(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        p = self.drop_probability if self.training else 0.0
        seen: Tensor = functional.scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=True)
        left: Tensor = self.leave(seen.transpose(1, 2).flatten(-2))
        return left
