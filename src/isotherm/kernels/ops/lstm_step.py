"""One step of an LSTM cell as one operation, forward and backward: kernels on a GPU, PyTorch on a CPU.

    isotherm::lstm_step             input and recurrent projection of a token, previous cell -> hidden state, cell
    isotherm::lstm_step_backward    gradients from later tokens and this one -> gradients of gates and previous cell

Gates come in the order input, forget, cell, output. The two projections are added in the dtype of the matmuls; all else
is computed in the dtype of the cell.

Shape suffixes: M runs, T tokens of a window, B streams, H hidden units, G = 4 H gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from isotherm.kernels import availability
from isotherm.kernels.layout import with_runs_first
from isotherm.kernels.ops.registry import operation

BackwardStep = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def fits(projected: Tensor, cell: Tensor) -> bool:
    """Tell whether the kernels support the tensors of a step: on a GPU, matmuls in bfloat16, cells in float32."""
    return (
        availability.are_available(projected.device)
        and projected.dtype == torch.bfloat16
        and cell.dtype == torch.float32
    )


def step(projected_BG: Tensor, recurrent_BG: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden state, in the dtype of the matmuls, and the cell after a token.

    Args:
        projected_BG: the gates' projection of the layer's input, with biases.
        recurrent_BG: the gates' projection of the previous hidden state.
        cell_BH: the previous cell.
    """
    if fits(projected_BG, cell_BH):
        hidden_BH, cell_BH = FORWARD(projected_BG, recurrent_BG, cell_BH)
        return hidden_BH, cell_BH
    return _step_plainly(projected_BG, recurrent_BG, cell_BH)


def backward_steps(
    gradient_TBH: Tensor, projected_TBG: Tensor, recurrents: Sequence[Tensor], cells: Sequence[Tensor]
) -> BackwardStep:
    """Return a function that backpropagates through one token of a window.

    It takes the token's index, the gradient of its hidden state from later tokens and the gradient of its cell; it
    returns the gradients of the gates' pre-activations, in the dtype of the matmuls, and of the previous cell.

    Args:
        gradient_TBH: gradients of the hidden states from the layer's output.
        projected_TBG: input projections, as given to `step`.
        recurrents: recurrent projections, as given to `step`.
        cells: before the first token and after every token.
    """
    if not fits(projected_TBG, cells[0]):
        return _backward_steps_plainly(gradient_TBH, projected_TBG, recurrents, cells)

    def back(token: int, later_BH: Tensor, d_cell_BH: Tensor) -> tuple[Tensor, Tensor]:
        gradient_BH, projected_BG = gradient_TBH[token], projected_TBG[token]
        d_gates_BG, d_before_BH = BACKWARD(
            later_BH, gradient_BH, d_cell_BH, projected_BG, recurrents[token], cells[token], cells[token + 1]
        )
        return d_gates_BG, d_before_BH

    return back


# -- in PyTorch -------------------------------------------------------------------------------------------------------


@operation("lstm_step", "(Tensor projected, Tensor recurrent, Tensor cell) -> (Tensor, Tensor)")
def _step(projected_BG: Tensor, recurrent_BG: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
    hidden_BH, cell_BH = _step_plainly(projected_BG, recurrent_BG, cell_BH)
    return hidden_BH.contiguous(), cell_BH.contiguous()


@operation(
    "lstm_step_backward",
    "(Tensor later, Tensor gradient, Tensor d_cell, Tensor projected, Tensor recurrent, Tensor before, Tensor cell)"
    " -> (Tensor, Tensor)",
)
def _step_backward(
    later_BH: Tensor,
    gradient_BH: Tensor,
    d_cell_BH: Tensor,
    projected_BG: Tensor,
    recurrent_BG: Tensor,
    before_BH: Tensor,
    cell_BH: Tensor,
) -> tuple[Tensor, Tensor]:
    window = gradient_BH.unsqueeze(0), projected_BG.unsqueeze(0), [recurrent_BG], [before_BH, cell_BH]
    d_gates_BG, d_before_BH = _backward_steps_plainly(*window)(0, later_BH, d_cell_BH)
    return d_gates_BG.contiguous(), d_before_BH.contiguous()


def _step_plainly(projected_BG: Tensor, recurrent_BG: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
    keep, forget, candidate, output = _gates(projected_BG, recurrent_BG, cell_BH.dtype)
    cell_BH = forget * cell_BH + keep * candidate
    return (output * cell_BH.tanh()).to(projected_BG.dtype), cell_BH


def _backward_steps_plainly(
    gradient_TBH: Tensor, projected_TBG: Tensor, recurrents: Sequence[Tensor], cells: Sequence[Tensor]
) -> BackwardStep:
    dtype = cells[0].dtype
    # Everything that does not depend on later tokens, for the whole window at once.
    keep, forget, candidate, output = _gates(projected_TBG, torch.stack(list(recurrents)), dtype)
    tanh = torch.stack(list(cells[1:])).tanh()
    by_hidden_TBH = output * (1 - tanh.square())
    to_gates_TBG = torch.cat(
        (
            candidate * keep * (1 - keep),
            torch.stack(list(cells[:-1])) * forget * (1 - forget),
            keep * (1 - candidate.square()),
            tanh * output * (1 - output),
        ),
        dim=-1,
    )

    def back(token: int, later_BH: Tensor, d_cell_BH: Tensor) -> tuple[Tensor, Tensor]:
        d_hidden = later_BH.to(dtype) + gradient_TBH[token].to(dtype)
        d_cell = d_cell_BH + d_hidden * by_hidden_TBH[token]
        d_gates = torch.cat((d_cell, d_cell, d_cell, d_hidden), dim=-1) * to_gates_TBG[token]
        return d_gates.to(projected_TBG.dtype), d_cell * forget[token]

    return back


def _gates(projected: Tensor, recurrent: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the four activated gates (..., H)."""
    raw = (projected + recurrent).to(dtype)
    width = raw.shape[-1] // 4
    keep_and_forget, candidate, output = torch.split(raw, [2 * width, width, width], dim=-1)
    keep, forget = torch.split(keep_and_forget.sigmoid(), width, dim=-1)
    return keep, forget, candidate.tanh(), output.sigmoid()


# The operations as they appear in a trace.
FORWARD = torch.ops.isotherm.lstm_step.default
BACKWARD = torch.ops.isotherm.lstm_step_backward.default


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@_step.register_kernel("cuda")
def _(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    from isotherm.kernels.triton import lstm_cell

    return lstm_cell.forward(*_rows(*tensors))


@_step_backward.register_kernel("cuda")
def _(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    from isotherm.kernels.triton import lstm_cell

    return lstm_cell.backward(*_rows(*tensors))


def _rows(*tensors: Tensor) -> list[Tensor]:
    """Return tensors that are contiguous in their last dimension."""
    return [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in tensors]


# -- fakes and vmap rules ---------------------------------------------------------------------------------------------


@_step.register_fake
def _(projected: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    return cell.new_empty(cell.shape, dtype=projected.dtype), cell.new_empty(cell.shape)


@_step_backward.register_fake
def _(
    later: Tensor,
    gradient: Tensor,
    d_cell: Tensor,
    projected: Tensor,
    recurrent: Tensor,
    before: Tensor,
    cell: Tensor,
) -> tuple[Tensor, Tensor]:
    return recurrent.new_empty(recurrent.shape), cell.new_empty(cell.shape)


@_step.register_vmap
def _(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    return FORWARD(*_runs_first(info, in_dims, tensors)), (0, 0)


@_step_backward.register_vmap
def _(info: Any, in_dims: Any, *tensors: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    return BACKWARD(*_runs_first(info, in_dims, tensors)), (0, 0)


def _runs_first(info: Any, in_dims: Any, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [with_runs_first(t, dim, info.batch_size) for t, dim in zip(tensors, in_dims, strict=True)]
