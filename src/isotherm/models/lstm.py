"""A word-level LSTM language model with dropout between its layers (Zaremba et al. 2014).

Written out so that many runs can be trained as one program: one batched matmul per token, and one per layer for the
gradient of the recurrent weights.

Shape suffixes: T tokens of a window, B streams, H hidden units, G = 4 H gates (input, forget, cell, output).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from isotherm.kernels.ops import lstm_step as lstm_step_ops

# Tensor cores need rows aligned to 16 bytes; the padding units are zero and stay zero.
_ALIGNED_UNITS = 8


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM layers with dropout before, between and after them, and a softmax layer with untied weights.

    Args:
        vocabulary: number of words.
        width: size of the embedding and of every layer.
        num_layers: number of LSTM layers.
        drop_probability: for the inputs of every layer and of the softmax layer, drawn anew for every token; there is
            no dropout on recurrent connections.
        initial_range: every parameter is drawn uniformly from [-initial_range, initial_range].
    """

    def __init__(
        self,
        *,
        vocabulary: int = 10_000,
        width: int = 650,
        num_layers: int = 2,
        drop_probability: float = 0.5,
        initial_range: float = 0.05,
    ) -> None:
        super().__init__()
        self.width, self.num_layers, self.drop_probability = width, num_layers, drop_probability
        self.embedding = nn.Parameter(torch.empty(vocabulary, width))
        for layer in range(num_layers):
            self.register_parameter(f"weight_ih_{layer}", nn.Parameter(torch.empty(4 * width, width)))
            self.register_parameter(f"weight_hh_{layer}", nn.Parameter(torch.empty(4 * width, width)))
            self.register_parameter(f"bias_ih_{layer}", nn.Parameter(torch.empty(4 * width)))
            self.register_parameter(f"bias_hh_{layer}", nn.Parameter(torch.empty(4 * width)))
        self.softmax_weight = nn.Parameter(torch.empty(vocabulary, width))
        self.softmax_bias = nn.Parameter(torch.empty(vocabulary))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -initial_range, initial_range)

    def initial_state(self, batch_size: int) -> Tensor:
        """Return the state before the first token: hidden states and cells of every layer, all zero."""
        return torch.zeros(2 * self.num_layers, batch_size, self.width)

    def forward(self, tokens_BT: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, T, vocabulary) and the detached state after the last token, (2 layers, B, H)."""
        dtype = _compute_dtype(self.embedding)
        extra = -self.width % _ALIGNED_UNITS if dtype == torch.bfloat16 else 0
        x_TBH = functional.pad(_apply(_Lookup, self.embedding, tokens_BT.t()).to(dtype), (0, extra))
        states = []
        for layer in range(self.num_layers):
            weight_ih, weight_hh, bias_ih, bias_hh = (
                _padded_gates(getattr(self, f"{name}_{layer}"), self.width, extra).to(dtype)
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            hidden_BH, cell_BH = (functional.pad(state[2 * layer + k], (0, extra)) for k in (0, 1))
            x_TBH = functional.dropout(x_TBH, self.drop_probability, self.training)
            projected_TBG = functional.linear(x_TBH, weight_ih, bias_ih + bias_hh)
            x_TBH, *others = _apply(_Recurrence, projected_TBG, weight_hh, hidden_BH.to(dtype), cell_BH)
            states += [x_TBH[-1].to(state.dtype), others[len(x_TBH) - 1]]
        x_TBH = functional.dropout(x_TBH, self.drop_probability, self.training)
        weight = functional.pad(self.softmax_weight.to(dtype), (0, extra))
        logits_TBV = functional.linear(x_TBH, weight, self.softmax_bias.to(dtype))
        return logits_TBV.transpose(0, 1), torch.stack(states)[..., : self.width].detach()


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _compute_dtype(parameter: Tensor) -> torch.dtype:
    """Return the dtype of matmuls: autocast's, or the parameter's own."""
    kind = parameter.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype


def _padded_gates(weight: Tensor, width: int, extra: int) -> Tensor:
    """Return a layer's weights or biases padded with zeros for `extra` hidden units, and as many inputs."""
    if not extra:
        return weight
    gates = weight.view(4, width, *weight.shape[1:])
    return functional.pad(gates, (0, extra) if weight.ndim == 1 else (0, extra, 0, extra)).flatten(0, 1)


class _Recurrence(torch.autograd.Function):
    """The recurrent part of one layer over a window.

    Autograd through the loop would accumulate the gradient of the recurrent weights token by token; here it is one
    matmul. Cells keep the dtype of the initial cell, whatever the dtype of the matmuls.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(projected_TBG: Tensor, weight_hh_GH: Tensor, hidden_BH: Tensor, cell_BH: Tensor) -> tuple[Tensor, ...]:
        """Return the hidden states of all tokens, then their cells, then their recurrent projections."""
        weight_HG = weight_hh_GH.t()
        hiddens, cells, recurrents = [], [], []
        for projected_BG in projected_TBG.unbind(0):
            recurrent_BG = hidden_BH @ weight_HG
            hidden_BH, cell_BH = lstm_step_ops.step(projected_BG, recurrent_BG, cell_BH)
            hiddens.append(hidden_BH)
            cells.append(cell_BH)
            recurrents.append(recurrent_BG)
        return torch.stack(hiddens), *cells, *recurrents

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Save what the gradient needs; only the hidden states are differentiable."""
        projected_TBG, weight_hh_GH, hidden_BH, cell_BH = inputs
        hiddens_TBH, *by_token = output
        ctx.mark_non_differentiable(*by_token)
        ctx.save_for_backward(weight_hh_GH, hidden_BH, projected_TBG, hiddens_TBH, cell_BH, *by_token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients of projections, recurrent weights and initial state."""
        return _apply(_RecurrenceGradient, gradients[0], *ctx.saved_tensors)


class _RecurrenceGradient(torch.autograd.Function):
    """Backward through a window, a function of its own so that a second derivative is refused and not wrong."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        gradient_TBH: Tensor,
        weight_hh_GH: Tensor,
        hidden_BH: Tensor,
        projected_TBG: Tensor,
        hiddens_TBH: Tensor,
        *cells_and_recurrents: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Backpropagate from the last token to the first."""
        num_tokens = gradient_TBH.shape[0]
        cells, recurrents = cells_and_recurrents[: num_tokens + 1], cells_and_recurrents[num_tokens + 1 :]
        back = lstm_step_ops.backward_steps(gradient_TBH, projected_TBG, recurrents, cells)
        d_hidden, d_cell = torch.zeros_like(hidden_BH), torch.zeros_like(cells[0])
        by_token = []
        for token in range(num_tokens - 1, -1, -1):
            d_gates, d_cell = back(token, d_hidden, d_cell)
            by_token.append(d_gates)
            d_hidden = d_gates @ weight_hh_GH
        d_projected_TBG = torch.stack(by_token[::-1])
        before_TBH = torch.cat((hidden_BH.unsqueeze(0), hiddens_TBH[:-1]))
        d_weight = d_projected_TBG.flatten(0, 1).t() @ before_TBH.flatten(0, 1)
        return d_projected_TBG, d_weight, d_hidden, d_cell

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Refuse a second derivative."""
        raise NotImplementedError(
            "LSTMLanguageModel has no second derivative: its recurrence is differentiated by hand"
        )


class _Lookup(torch.autograd.Function):
    """Embedding lookup; many runs' tables are one table with shifted tokens."""

    @staticmethod
    def forward(table_VH: Tensor, tokens: Tensor) -> Tensor:
        """Return table[tokens]."""
        return functional.embedding(tokens, table_VH)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save the tokens."""
        ctx.save_for_backward(inputs[1])
        ctx.num_rows = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradient of the table."""
        (tokens,) = ctx.saved_tensors
        return _apply(_ScatteredSum, gradients[0], tokens, ctx.num_rows), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], table: Tensor, tokens: Tensor) -> tuple[Tensor, int]:
        """Look up in all runs' tables at once."""
        table_MVH, tokens_M = (
            _runs_first(t, d, info.batch_size) for t, d in zip((table, tokens), in_dims, strict=True)
        )
        shifted = _shifted(tokens_M, table_MVH.shape[1])
        return _apply(_Lookup, table_MVH.flatten(0, 1), shifted), 0


class _ScatteredSum(torch.autograd.Function):
    """The adjoint of `_Lookup`: add rows up by token."""

    @staticmethod
    def forward(rows: Tensor, tokens: Tensor, num_rows: int) -> Tensor:
        """Return a table (num_rows, H)."""
        table = rows.new_zeros(num_rows, rows.shape[-1])
        return table.index_add(0, tokens.reshape(-1), rows.reshape(-1, rows.shape[-1]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        """Save the tokens."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradient of the rows."""
        (tokens,) = ctx.saved_tensors
        return _apply(_Lookup, gradients[0], tokens), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None, None], rows: Tensor, tokens: Tensor, num_rows: int
    ) -> tuple[Tensor, int]:
        """Add up into all runs' tables at once."""
        rows_M, tokens_M = (
            _runs_first(t, d, info.batch_size) for t, d in zip((rows, tokens), in_dims[:2], strict=True)
        )
        table = _apply(_ScatteredSum, rows_M, _shifted(tokens_M, num_rows), info.batch_size * num_rows)
        return table.view(info.batch_size, num_rows, -1), 0


def _runs_first(tensor: Tensor, dim: int | None, num_runs: int) -> Tensor:
    return tensor.expand(num_runs, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _shifted(tokens_M: Tensor, num_rows: int) -> Tensor:
    """Return the tokens of run m shifted by m tables."""
    offsets = torch.arange(tokens_M.shape[0], device=tokens_M.device) * num_rows
    return tokens_M + offsets.view(-1, *[1] * (tokens_M.ndim - 1))
