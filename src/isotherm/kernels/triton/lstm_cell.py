"""One step of an LSTM cell as Triton kernels: every value is read once and written once, with float32 arithmetic.

A program handles some hidden units of one stream of one run. The gates are not saved for the backward pass: recomputing
them from the two projections reads no more bytes than loading them would.

Shape suffixes: M runs, B streams, H hidden units, G = 4 H gates. A single run may come without M.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from isotherm.kernels.availability import device_of

# Hidden units per program: 8 bytes of a gate for each thread.
_LAUNCH = {"UNITS": 256, "num_warps": 2}


def forward(projected_MBG: Tensor, product_MBG: Tensor, cell_MBH: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden state and the cell after a token."""
    hidden_MBH = torch.empty(cell_MBH.shape, dtype=projected_MBG.dtype, device=cell_MBH.device)
    after_MBH = torch.empty(cell_MBH.shape, dtype=cell_MBH.dtype, device=cell_MBH.device)
    tensors = (projected_MBG, product_MBG, cell_MBH, hidden_MBH, after_MBH)
    with device_of(cell_MBH):
        _forward[_grid(cell_MBH)](*tensors, *_strides(tensors), *cell_MBH.shape[-2:], **_LAUNCH)
    return hidden_MBH, after_MBH


def backward(
    later_MBH: Tensor,
    gradient_MBH: Tensor,
    d_cell_MBH: Tensor,
    projected_MBG: Tensor,
    product_MBG: Tensor,
    before_MBH: Tensor,
    cell_MBH: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gates' pre-activations and of the previous cell."""
    d_gates_MBG = torch.empty(product_MBG.shape, dtype=product_MBG.dtype, device=cell_MBH.device)
    d_before_MBH = torch.empty(cell_MBH.shape, dtype=cell_MBH.dtype, device=cell_MBH.device)
    tensors = (
        *(later_MBH, gradient_MBH, d_cell_MBH, projected_MBG, product_MBG, before_MBH, cell_MBH),
        *(d_gates_MBG, d_before_MBH),
    )
    with device_of(cell_MBH):
        _backward[_grid(cell_MBH)](*tensors, *_strides(tensors), *cell_MBH.shape[-2:], **_LAUNCH)
    return d_gates_MBG, d_before_MBH


def _grid(cell_MBH: Tensor) -> tuple[int, int]:
    if cell_MBH.ndim not in (2, 3):
        raise ValueError(f"cells must have shape ([runs,] streams, units), not {tuple(cell_MBH.shape)}")
    return cell_MBH.shape[:-1].numel(), triton.cdiv(cell_MBH.shape[-1], _LAUNCH["UNITS"])


def _strides(tensors: tuple[Tensor, ...]) -> list[int]:
    """Return the strides from run to run and from stream to stream of every tensor."""
    return [step for t in tensors for step in ((t.stride(0) if t.ndim == 3 else 0), t.stride(-2))]


# -- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """Return tanh, accurate to about 1e-7 and without overflow."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def _gate(projected_ptr, product_ptr, inside):
    """Return the sum of both projections, rounded as a half-precision sum is, in float32."""
    projected = tl.load(projected_ptr, mask=inside, other=0.0)
    product = tl.load(product_ptr, mask=inside, other=0.0)
    return (projected.to(tl.float32) + product.to(tl.float32)).to(projected.dtype).to(tl.float32)


@triton.jit
def _gates(projected_ptr, product_ptr, unit, width, inside):
    """Return the activated gates."""
    keep = _sigmoid(_gate(projected_ptr + unit, product_ptr + unit, inside))
    unit += width
    forget = _sigmoid(_gate(projected_ptr + unit, product_ptr + unit, inside))
    unit += width
    candidate = _tanh(_gate(projected_ptr + unit, product_ptr + unit, inside))
    unit += width
    output = _sigmoid(_gate(projected_ptr + unit, product_ptr + unit, inside))
    return keep, forget, candidate, output


@triton.jit
def _place(num_streams, width, UNITS: tl.constexpr):
    """Return a program's run and stream (64 bits), its hidden units, and a mask of those that exist."""
    row = tl.program_id(0)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    return (row // num_streams).to(tl.int64), (row % num_streams).to(tl.int64), unit, unit < width


@triton.jit
def _forward(
    projected_ptr,
    product_ptr,
    cell_ptr,
    hidden_ptr,
    after_ptr,
    projected_by_run,
    projected_by_stream,
    product_by_run,
    product_by_stream,
    cell_by_run,
    cell_by_stream,
    hidden_by_run,
    hidden_by_stream,
    after_by_run,
    after_by_stream,
    num_streams,
    width,
    UNITS: tl.constexpr,
):
    run, stream, unit, inside = _place(num_streams, width, UNITS)
    keep, forget, candidate, output = _gates(
        projected_ptr + run * projected_by_run + stream * projected_by_stream,
        product_ptr + run * product_by_run + stream * product_by_stream,
        unit,
        width,
        inside,
    )
    before = tl.load(cell_ptr + run * cell_by_run + stream * cell_by_stream + unit, mask=inside, other=0.0)
    cell = forget * before + keep * candidate
    hidden = (output * _tanh(cell)).to(hidden_ptr.dtype.element_ty)
    tl.store(hidden_ptr + run * hidden_by_run + stream * hidden_by_stream + unit, hidden, mask=inside)
    tl.store(after_ptr + run * after_by_run + stream * after_by_stream + unit, cell, mask=inside)


@triton.jit
def _backward(
    later_ptr,
    gradient_ptr,
    d_cell_ptr,
    projected_ptr,
    product_ptr,
    before_ptr,
    cell_ptr,
    d_gates_ptr,
    d_before_ptr,
    later_by_run,
    later_by_stream,
    gradient_by_run,
    gradient_by_stream,
    d_cell_by_run,
    d_cell_by_stream,
    projected_by_run,
    projected_by_stream,
    product_by_run,
    product_by_stream,
    before_by_run,
    before_by_stream,
    cell_by_run,
    cell_by_stream,
    d_gates_by_run,
    d_gates_by_stream,
    d_before_by_run,
    d_before_by_stream,
    num_streams,
    width,
    UNITS: tl.constexpr,
):
    run, stream, unit, inside = _place(num_streams, width, UNITS)
    keep, forget, candidate, output = _gates(
        projected_ptr + run * projected_by_run + stream * projected_by_stream,
        product_ptr + run * product_by_run + stream * product_by_stream,
        unit,
        width,
        inside,
    )
    later = tl.load(later_ptr + run * later_by_run + stream * later_by_stream + unit, mask=inside, other=0.0)
    own = tl.load(gradient_ptr + run * gradient_by_run + stream * gradient_by_stream + unit, mask=inside, other=0.0)
    d_after = tl.load(d_cell_ptr + run * d_cell_by_run + stream * d_cell_by_stream + unit, mask=inside, other=0.0)
    before = tl.load(before_ptr + run * before_by_run + stream * before_by_stream + unit, mask=inside, other=0.0)
    tanh = _tanh(tl.load(cell_ptr + run * cell_by_run + stream * cell_by_stream + unit, mask=inside, other=0.0))
    d_hidden = later.to(tl.float32) + own.to(tl.float32)
    d_cell = d_after + d_hidden * (output * (1.0 - tanh * tanh))
    half = d_gates_ptr.dtype.element_ty
    d_gates_at = d_gates_ptr + run * d_gates_by_run + stream * d_gates_by_stream + unit
    tl.store(d_gates_at, (d_cell * (candidate * keep * (1.0 - keep))).to(half), mask=inside)
    tl.store(d_gates_at + width, (d_cell * (before * forget * (1.0 - forget))).to(half), mask=inside)
    tl.store(d_gates_at + 2 * width, (d_cell * (keep * (1.0 - candidate * candidate))).to(half), mask=inside)
    tl.store(d_gates_at + 3 * width, (d_hidden * (tanh * output * (1.0 - output))).to(half), mask=inside)
    d_before_at = d_before_ptr + run * d_before_by_run + stream * d_before_by_stream + unit
    tl.store(d_before_at, d_cell * forget, mask=inside)
