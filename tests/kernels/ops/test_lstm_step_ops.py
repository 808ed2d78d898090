"""One step of an LSTM cell: PyTorch's own cell and autograd, the operations in a trace, and the Triton kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from helpers_kernels import DEVICE, HALF, with_kernels
from isotherm.engine.graph.trace import trace
from isotherm.kernels import availability
from isotherm.kernels.ops import lstm_step as lstm_step_ops
from isotherm.kernels.ops.lstm_step import BACKWARD, FORWARD, backward_steps, step
from isotherm.models.lstm import LSTMLanguageModel

B, H = 3, 5


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def forward_inputs(*front: int, half: torch.dtype = torch.float64, cell: torch.dtype = torch.float64) -> list[Tensor]:
    return [
        normal(*front, B, 4 * H, seed=0, dtype=half),
        normal(*front, B, 4 * H, seed=1, dtype=half),
        normal(*front, B, H, seed=2, dtype=cell),
    ]


def backward_inputs(*front: int, half: torch.dtype = torch.float64, cell: torch.dtype = torch.float64) -> list[Tensor]:
    projected, product, before = forward_inputs(*front, half=half, cell=cell)
    after = step(projected.cpu(), product.cpu(), before.cpu())[1]
    later, gradient = (normal(*front, B, H, seed=seed, dtype=half) for seed in (3, 4))
    return [later, gradient, normal(*front, B, H, seed=5, dtype=cell), projected, product, before, after]


def step_backward(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    later, gradient, d_cell, projected, product, before, after = tensors
    back = backward_steps(gradient.unsqueeze(0), projected.unsqueeze(0), [product], [before, after])
    return back(0, later, d_cell)


# -- what is computed ---------------------------------------------------------------------------------------------


def test_a_step_is_that_of_pytorchs_cell():
    cell = nn.LSTMCell(4, H, dtype=torch.float64)
    x, hidden, before = normal(B, 4, seed=0), normal(B, H, seed=1), normal(B, H, seed=2)
    projected = x @ cell.weight_ih.t() + cell.bias_ih + cell.bias_hh
    found = step(projected, hidden @ cell.weight_hh.t(), before)
    for mine, theirs in zip(found, cell(x, (hidden, before)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_the_gradient_is_that_of_autograd():
    later, gradient, d_cell, projected, product, before, after = backward_inputs()
    product.requires_grad_()
    before.requires_grad_()
    hidden, cell = step(projected, product, before)
    expected = torch.autograd.grad((hidden, cell), (product, before), (later + gradient, d_cell))
    found = step_backward(later, gradient, d_cell, projected, product.detach(), before.detach(), after)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_types_in_mixed_precision():
    hidden, cell = step(*forward_inputs(half=torch.bfloat16, cell=torch.float32))
    assert (hidden.dtype, cell.dtype) == (torch.bfloat16, torch.float32)
    d_gates, d_before = step_backward(*backward_inputs(half=torch.bfloat16, cell=torch.float32))
    assert (d_gates.dtype, d_before.dtype) == (torch.bfloat16, torch.float32)


# -- as operations ------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, tuple[Callable[..., tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]], Callable]] = {
    "forward": (FORWARD, step, forward_inputs),
    "backward": (BACKWARD, step_backward, backward_inputs),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_computes_and_promises_what_the_function_gives(name):
    operation, function, inputs = OPERATIONS[name]
    for types in ({}, {"half": torch.bfloat16, "cell": torch.float32}):
        given = inputs(**types)
        found = operation(*given)
        promised = operation(*(t.to("meta") for t in given))
        for mine, theirs, promise in zip(found, function(*given), promised, strict=True):
            assert torch.equal(mine, theirs)
            assert (promise.shape, promise.dtype, promise.stride()) == (mine.shape, mine.dtype, mine.stride())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_many_runs_are_one_operation(name, dim):
    operation, function, inputs = OPERATIONS[name]
    given = inputs(4)
    moved = [t.movedim(0, dim) for t in given]
    program = trace(lambda *tensors: vmap(operation, in_dims=dim)(*tensors), *moved)
    calls = [node for node in program.graph.nodes if node.target is operation]
    assert len(calls) == 1
    for mine, theirs in zip(program(*moved), function(*given), strict=True):
        assert torch.equal(mine, theirs)


def test_runs_may_share_a_tensor():
    projected, product, cell = forward_inputs(4)
    found = vmap(FORWARD, in_dims=(0, None, 0))(projected, product[0], cell)
    expected = step(projected, product[:1].expand(4, B, 4 * H), cell)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("has_triton", "is_asked_for"), [(True, True), (True, False), (False, True)])
def test_kernels_are_for_bfloat16_on_a_gpu(has_triton, is_asked_for, monkeypatch):
    monkeypatch.setattr(availability, "HAS_TRITON", has_triton)
    monkeypatch.setattr(availability, "ENABLED", is_asked_for)

    class OnGpu:
        def __init__(self, dtype: torch.dtype, device: str = "cuda") -> None:
            self.dtype, self.device = dtype, torch.device(device)

    half, full = OnGpu(torch.bfloat16), OnGpu(torch.float32)
    assert lstm_step_ops.fits(half, full) == (has_triton and is_asked_for)
    assert not lstm_step_ops.fits(full, full)
    assert not lstm_step_ops.fits(half, OnGpu(torch.float64))
    assert not lstm_step_ops.fits(OnGpu(torch.bfloat16, device="cpu"), full)


@pytest.mark.parametrize("num_runs", [None, 3])
def test_a_model_of_operations_gives_the_same_gradients(num_runs, monkeypatch):
    """The model as a GPU would run it, with the operations in the trace."""
    torch.manual_seed(0)
    model = LSTMLanguageModel(vocabulary=11, width=6, num_layers=2, drop_probability=0.0)
    tokens = torch.randint(0, 11, (B, 4), generator=torch.Generator().manual_seed(0))
    names = [name for name, _ in model.named_parameters()]
    parameters = [p.detach() for p in model.parameters()]
    if num_runs is not None:
        parameters = [torch.stack([p * (1 + 0.1 * run) for run in range(num_runs)]) for p in parameters]

    def loss(*parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        logits, _ = torch.func.functional_call(model, given, (tokens, model.initial_state(B)))
        return logits.square().mean()

    def gradient(*parameters: Tensor) -> tuple[Tensor, ...]:
        of_run = torch.func.grad(loss, argnums=tuple(range(len(parameters))))
        return (of_run if num_runs is None else vmap(of_run))(*parameters)

    expected = gradient(*parameters)
    monkeypatch.setattr(lstm_step_ops, "fits", lambda *_: True)
    program = trace(gradient, *parameters)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 2 * 4
    assert sum(node.target is BACKWARD for node in program.graph.nodes) == 2 * 4
    for mine, theirs in zip(program(*parameters), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)


# -- the kernels ----------------------------------------------------------------------------------------------------


def strided(tensor: Tensor, *, kind: str) -> Tensor:
    """Return the same values on the device, laid out as a window's token or as a piece of something wider."""
    tensor = tensor.to(DEVICE)
    if kind == "token":
        wide = tensor.new_zeros(*tensor.shape[:-2], 2, *tensor.shape[-2:])
        wide[..., 1, :, :] = tensor
        return wide[..., 1, :, :]
    if kind == "piece":
        wide = tensor.new_zeros(*tensor.shape[:-1], tensor.shape[-1] + 3)
        wide[..., : tensor.shape[-1]] = tensor
        return wide[..., : tensor.shape[-1]]
    return tensor.contiguous()


@with_kernels
@pytest.mark.parametrize("kind", ["contiguous", "token", "piece"])
@pytest.mark.parametrize("front", [(), (4,)], ids=["one run", "four runs"])
@pytest.mark.parametrize("width", [8, 300])
@pytest.mark.parametrize("name", OPERATIONS)
def test_kernels_compute_what_pytorch_does(name, width, front, kind, monkeypatch):
    from isotherm.kernels.triton import lstm_cell

    monkeypatch.setattr("test_lstm_ops.H", width)
    kernel = {"forward": lstm_cell.forward, "backward": lstm_cell.backward}[name]
    _, function, inputs = OPERATIONS[name]
    given = inputs(*front, half=HALF, cell=torch.float32)
    expected = function(*given)
    found = kernel(*(strided(t, kind=kind) for t in given))
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        rtol = 2**-7 if mine.dtype == HALF else 1e-5
        torch.testing.assert_close(mine.cpu(), theirs, rtol=rtol, atol=1e-6)


@with_kernels
def test_tensors_of_runs_of_runs_are_refused_by_the_kernels():
    from isotherm.kernels.triton import lstm_cell

    given = [t.expand(2, 2, *t.shape).to(DEVICE) for t in forward_inputs(half=HALF, cell=torch.float32)]
    with pytest.raises(ValueError, match=r"cells must have shape \(\[runs,\] streams, units\), not \(2, 2, 3, 5\)"):
        lstm_cell.forward(*given)


def test_values_of_a_stream_are_put_one_after_another():
    plain, turned = normal(2, 3, seed=0), normal(3, 2, seed=0).t()
    kept, copied = lstm_step_ops._rows(plain, turned)
    assert kept is plain
    assert copied.stride() == (3, 1)
    assert torch.equal(copied, turned)


@with_kernels
def test_kernels_do_not_overflow_where_gates_are_far_out():
    from isotherm.kernels.triton import lstm_cell

    projected = torch.tensor([[-200.0, 200.0, -200.0, 200.0] * 2], dtype=HALF).to(DEVICE)
    product, cell = torch.zeros_like(projected), torch.tensor([[3.0, -3.0]]).to(DEVICE)
    expected = step(projected.cpu(), product.cpu(), cell.cpu())
    for mine, theirs in zip(lstm_cell.forward(projected, product, cell), expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=2**-7, atol=1e-6)
