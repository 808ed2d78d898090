"""`nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells written out, since `vmap` cannot take the calls that they make.

The equations are those of PyTorch's documentation, the order of the sums too.

Shape suffixes: T tokens, B batch, H hidden units, G gates: 4 H (LSTM), 3 H (GRU) or H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# What a cell returns: the new hidden state, and all states for the next token.
States = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, States], States]


@contextmanager
def weights_left_apart() -> Iterator[None]:
    """Within this context recurrent layers leave their weights where they are.

    On a GPU they move them into one piece of memory as soon as they are given others; under `torch.func` they cannot.
    """
    before = nn.RNNBase.flatten_parameters
    nn.RNNBase.flatten_parameters = lambda _: None  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.RNNBase.flatten_parameters = before  # type: ignore[method-assign]


def _lstm_cell(projected_BG: Tensor, recurrent_BG: Tensor, states: States) -> States:
    admit, forget, candidate, output = (projected_BG + recurrent_BG).chunk(4, dim=-1)
    cell_BH = forget.sigmoid() * states[1] + admit.sigmoid() * candidate.tanh()
    return output.sigmoid() * cell_BH.tanh(), cell_BH


def _gru_cell(projected_BG: Tensor, recurrent_BG: Tensor, states: States) -> States:
    (reset, keep, new), (reset_h, keep_h, new_h) = projected_BG.chunk(3, dim=-1), recurrent_BG.chunk(3, dim=-1)
    candidate = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    return (candidate + (keep + keep_h).sigmoid() * (states[0] - candidate),)


def _tanh_cell(projected_BG: Tensor, recurrent_BG: Tensor, _states: States) -> States:
    return ((projected_BG + recurrent_BG).tanh(),)


def _relu_cell(projected_BG: Tensor, recurrent_BG: Tensor, _states: States) -> States:
    return ((projected_BG + recurrent_BG).relu(),)


# The functions that the layers call, with their cells.
CELLS: dict[Callable[..., Any], Cell] = {
    torch.lstm: _lstm_cell,
    torch.gru: _gru_cell,
    torch.rnn_tanh: _tanh_cell,
    torch.rnn_relu: _relu_cell,
}
# The functions that the modules of one token call, `nn.LSTMCell` and others.
CELLS_ALONE: dict[Callable[..., Any], Cell] = {
    torch.lstm_cell: _lstm_cell,
    torch.gru_cell: _gru_cell,
    torch.rnn_tanh_cell: _tanh_cell,
    torch.rnn_relu_cell: _relu_cell,
}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RecurrentCall:
    """A call of one of these functions.

    Args:
        function: `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu`.
        data: inputs; of packed sequences the data and the batch sizes.
        states: initial hidden states (layers x directions, B, H), for an LSTM also the cells.
        weights: of all layers and directions in a row.
        has_biases: whether biases are among them.
        num_layers: of the module.
        dropout: probability of dropping a layer's output before the next one reads it.
        training: whether the module is in training mode.
        bidirectional: whether a layer also reads from the end.
        batch_first: whether inputs are (B, T, ...); None for packed sequences.
    """

    function: Callable[..., Any]
    data: tuple[Tensor, ...]
    states: States
    weights: tuple[Tensor, ...]
    has_biases: bool
    num_layers: int
    dropout: float
    training: bool
    bidirectional: bool
    batch_first: bool | None

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...]) -> RecurrentCall:
        """Return what the arguments of a call mean; those of packed sequences come in another order."""
        num_data = 1 if isinstance(args[3], bool) else 2
        states, weights, has_biases, num_layers, dropout, training, bidirectional, *rest = args[num_data:]
        return cls(
            function=function,
            data=tuple(args[:num_data]),
            states=(states,) if isinstance(states, Tensor) else tuple(states),
            weights=tuple(weights),
            has_biases=has_biases,
            num_layers=num_layers,
            dropout=dropout,
            training=training,
            bidirectional=bidirectional,
            batch_first=rest[0] if rest else None,
        )

    def __call__(self) -> tuple[Tensor, ...]:
        """Return output and last states, as the function does."""
        states = self.states if self.function is torch.lstm else self.states[0]
        order = () if self.batch_first is None else (self.batch_first,)
        how = self.has_biases, self.num_layers, self.dropout, self.training, self.bidirectional
        results: tuple[Tensor, ...] = self.function(*self.data, states, self.weights, *how, *order)
        return results

    @property
    def num_directions(self) -> int:
        """One, or two for a bidirectional module."""
        return 2 if self.bidirectional else 1

    @property
    def drops(self) -> bool:
        """Tell whether there is dropout between layers."""
        return self.training and self.dropout > 0 and self.num_layers > 1

    def layers(self) -> list[RecurrentCall]:
        """Return one call for every layer; each is to be given the output of the one before as its data."""
        num, size = len(self.weights) // self.num_layers, self.num_directions
        return [
            replace(
                self,
                states=tuple(state[size * layer : size * (layer + 1)] for state in self.states),
                weights=self.weights[num * layer : num * (layer + 1)],
                num_layers=1,
                dropout=0.0,
            )
            for layer in range(self.num_layers)
        ]

    def by_layers(
        self, between: Callable[[Tensor], Tensor], run: Callable[[RecurrentCall], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Return output and last states of the layers one after another.

        Args:
            between: what is done to a layer's output before the next one reads it.
            run: how a layer is computed.
        """
        x, ends = self.data[0], []
        for number, layer in enumerate(self.layers()):
            x = x if number == 0 else between(x)
            x, *end = run(replace(layer, data=(x, *self.data[1:])))
            ends.append(end)
        return x, *(torch.cat(states) for states in zip(*ends, strict=True))


def unrolled(call: RecurrentCall) -> tuple[Tensor, ...] | None:
    """Return output and last states, computed token by token; None for packed sequences."""
    if call.batch_first is None or call.drops:
        return None
    return call.by_layers(lambda x: x, _layer)


def one_token(
    function: Callable[..., Any],
    x_BI: Tensor,
    states: Tensor | Sequence[Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> Tensor | States:
    """Return the states after one token, as a function of a cell does."""
    before = (states,) if isinstance(states, Tensor) else tuple(states)
    projected_BG, recurrent_BG = (
        functional.linear(x_BI, weight_ih, bias_ih),
        functional.linear(before[0], weight_hh, bias_hh),
    )
    after = CELLS_ALONE[function](projected_BG, recurrent_BG, before)
    return after[0] if isinstance(states, Tensor) else after


def _layer(call: RecurrentCall) -> tuple[Tensor, ...]:
    """Return output and last states of one layer."""
    (x,), num = call.data, len(call.weights) // call.num_directions
    x_TBI = x.transpose(0, 1) if call.batch_first and x.ndim == 3 else x
    outputs, ends = [], []
    for direction in range(call.num_directions):
        weights = call.weights[num * direction : num * (direction + 1)]
        states = tuple(state[direction] for state in call.states)
        inputs = x_TBI if direction == 0 else x_TBI.flip(0)
        hiddens, end = _direction(CELLS[call.function], inputs, states, weights, has_biases=call.has_biases)
        outputs.append(torch.stack(hiddens if direction == 0 else hiddens[::-1]))
        ends.append(end)
    output_TBH = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
    output = output_TBH.transpose(0, 1) if call.batch_first and x.ndim == 3 else output_TBH
    return output, *(torch.stack(end) for end in zip(*ends, strict=True))


def _direction(
    cell: Cell, x_TBI: Tensor, states: States, weights: Sequence[Tensor], *, has_biases: bool
) -> tuple[list[Tensor], States]:
    """Return the hidden states of all tokens, and the last states."""
    weight_ih, weight_hh, *others = weights
    bias_ih, bias_hh = others[:2] if has_biases else (None, None)
    project = others[2:] if has_biases else others  # an LSTM's projection of its hidden state
    hiddens = []
    for projected_BG in functional.linear(x_TBI, weight_ih, bias_ih).unbind(0):
        states = cell(projected_BG, functional.linear(states[0], weight_hh, bias_hh), states)
        if project:
            states = functional.linear(states[0], project[0]), *states[1:]
        hiddens.append(states[0])
    return hiddens, states
