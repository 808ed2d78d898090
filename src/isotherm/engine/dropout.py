"""Dropout whose masks depend on nothing but seed, update and position in the network.

PyTorch draws dropout masks from one global stream, so a run's masks would depend on its neighbours in a fleet.
Here every element's random number is a hash of the run's key, the update, the call and the element's index. The
hash is plain tensor arithmetic, so it works one run at a time and under `vmap`, on any device, with equal bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from isotherm.engine.layers.attention_dropout import attention_with_dropout
from isotherm.engine.layers.recurrent import CELLS, RecurrentCall
from isotherm.tasks.seeding import derive

_MASK = 0xFFFFFFFF
# Dimensions of an input without a batch, which the channel-wise functions take too. PyTorch reads three dimensions in
# `dropout2d` as (batch, channels, length).
_UNBATCHED: dict[Callable[..., Tensor], int | None] = {
    functional.dropout: None,
    functional.dropout1d: 2,
    functional.dropout2d: None,
    functional.dropout3d: 4,
}


def _seen_within(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of `torch.nn.functional` whose calls a context sees one by one, in place of the whole."""
    assert isinstance(function, FunctionType)
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__)


_attention_of_module = _seen_within(functional.multi_head_attention_forward)


def noise_key(seed: int, purpose: str = "noise") -> Tensor:
    """Return the key of a run's random numbers for a purpose: two 32-bit words in an int64 tensor, shape (2,)."""
    bits = derive(seed, purpose)
    return torch.tensor([bits & _MASK, bits >> 32], dtype=torch.int64)


def run_keys(seed: int) -> Tensor:
    """Return a run's keys for dropout and for augmentation, shape (2, 2)."""
    return torch.stack([noise_key(seed), noise_key(seed, "augmentation")])


# Number of the call, shape of the result, device -> index of every element in the result for the whole batch.
IndexOf = Callable[[int, torch.Size, torch.device], Tensor]


def index_in_whole_batch(_call: int, shape: torch.Size, device: torch.device) -> Tensor:
    """Return the index of every element of a result for all examples of an update."""
    return torch.arange(shape.numel(), device=device).reshape(shape)


class RandomIndices(NamedTuple):
    """Where the elements that random bits are drawn for are in the whole batch: by default, it is the whole batch."""

    dropout: IndexOf = index_in_whole_batch
    augmentation: IndexOf = index_in_whole_batch


WHOLE_BATCH = RandomIndices()


def uniform_bits(
    key: Tensor, step: Tensor, call: int, shape: torch.Size, *, index_of: IndexOf = index_in_whole_batch
) -> Tensor:
    """Return 32 random bits per element, as int64, for one call in one update.

    Args:
        key: the run's key, shape (2,).
        step: the update, a scalar.
        call: how many draws came before in this forward pass.
        shape: of the result.
        index_of: where its elements are, if they are for a part of the batch.
    """
    low = _hash(_hash(key[0] ^ step) ^ (call + 1))
    high = _hash(low ^ key[1])
    return _hash(_hash(index_of(call, shape, key.device) ^ low) ^ high)


class KeyedBits:
    """Random bits for one update of one run, new ones with every call."""

    def __init__(self, key: Tensor, step: Tensor, index_of: IndexOf = index_in_whole_batch) -> None:
        self._key, self._step, self._index_of = key, step, index_of
        self._num_calls = 0

    def __call__(self, shape: tuple[int, ...]) -> Tensor:
        """Return 32 random bits per element, as int64."""
        bits = uniform_bits(self._key, self._step, self._num_calls, torch.Size(shape), index_of=self._index_of)
        self._num_calls += 1
        return bits


class KeyedDropout(TorchFunctionMode):
    """Within this context the dropout functions of `torch.nn.functional` draw from the run's key."""

    def __init__(self, key: Tensor, step: Tensor, index_of: IndexOf = index_in_whole_batch) -> None:
        super().__init__()
        self._bits = KeyedBits(key, step, index_of)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace the dropout functions and what calls them, pass everything else on."""
        if func in _UNBATCHED:
            bound = inspect.signature(func).bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            x = bound.arguments["input"]
            num_own = x.ndim if func is functional.dropout else 1 if x.ndim == _UNBATCHED[func] else 2
            return self._dropout(num_own, **bound.arguments)
        if func is functional.multi_head_attention_forward:
            with self:  # for the dropout within
                return _attention_of_module(*args, **(kwargs or {}))
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **(kwargs or {}))
        if func in CELLS and (call := RecurrentCall.of(func, args)).drops:
            return call.by_layers(partial(self._drop, p=call.dropout), RecurrentCall.__call__)
        return func(*args, **(kwargs or {}))

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> Tensor:
        if dropout_p == 0.0:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal, **others)
        drop = partial(self._drop, p=dropout_p)
        return attention_with_dropout(query, key, value, attn_mask, drop=drop, is_causal=is_causal, **others)

    def _drop(self, x: Tensor, *, p: float) -> Tensor:
        return self._dropout(x.ndim, input=x, p=p, training=True, inplace=False)

    def _dropout(self, num_own: int, *, input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        """Drop with one draw per index of the first `num_own` dimensions."""
        if not training or p == 0.0:
            return input
        shape = torch.Size([*input.shape[:num_own], *[1] * (input.ndim - num_own)])
        bits = self._bits(tuple(shape))
        keep = bits >= round(p * 2**32)
        scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
        mask = keep.to(input.dtype) * scale
        return input.mul_(mask) if inplace else input * mask


def _hash(value: Tensor) -> Tensor:
    """Return a well-mixed 32-bit hash. Multipliers stay below 2^31, so nothing overflows an int64."""
    value = ((value ^ (value >> 16)) * 0x21F0AAAD) & _MASK
    value = ((value ^ (value >> 15)) * 0x735A2D97) & _MASK
    return value ^ (value >> 15)
