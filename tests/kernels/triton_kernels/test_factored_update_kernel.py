"""The Triton kernel of the factored update against PyTorch: interpreted on a CPU, or on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers_kernels import DEVICE, HALF, IS_INTERPRETED, with_kernels

pytestmark = with_kernels


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_kernel(states: list[Tensor], shape: tuple[int, ...], *rest: Tensor | None, small: bool = True) -> list[Tensor]:
    """Update by the kernel, with tiles so small that there are several of them, or with those in use."""
    from isotherm.kernels.triton.factored_update import TILE, Tile, update

    ours = [t.to(DEVICE, copy=True) for t in states]
    given = [None if t is None else t.to(DEVICE) for t in rest]
    update(
        *(t.view(shape) for t in ours), *given, tile=Tile(rows=32, columns=16, inner=16, num_warps=2) if small else TILE
    )
    return [t.cpu() for t in ours]


def exactly(left: Tensor, right: Tensor) -> Tensor:
    """Return the gradient (M, N) in float64; not every CPU adds up products in half precision well."""
    return torch.bmm(left.double(), right.double()).flatten(1)


def by_torch(
    states: list[Tensor], left: Tensor, right: Tensor, rate: Tensor, momentum: Tensor, l2: Tensor | None
) -> list[Tensor]:
    value, velocity, _ = states
    velocity = exactly(left, right).to(HALF).float() + momentum * velocity
    if l2 is not None:
        velocity = velocity + l2 * value
    value = value - rate * velocity
    return [value, velocity, value.bfloat16()]


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("l2", [None, torch.tensor([[0.0], [0.01], [0.1]])], ids=["no L2", "L2"])
@pytest.mark.parametrize(("rows", "columns", "inner"), [(32, 16, 16), (8, 8, 8), (40, 72, 24), (64, 104, 64)])
def test_the_kernel_updates_as_pytorch_does(rows, columns, inner, l2, turned, small):
    num_runs = 3
    value, velocity = normal(num_runs, rows * columns, seed=0), normal(num_runs, rows * columns, seed=1)
    left = normal(num_runs, *((inner, rows) if turned[0] else (rows, inner)), seed=2).to(HALF)
    right = normal(num_runs, *((columns, inner) if turned[1] else (inner, columns)), seed=3).to(HALF)
    left, right = (t.transpose(1, 2) if turn else t for t, turn in zip((left, right), turned, strict=True))
    rate, momentum = torch.tensor([[0.1], [0.2], [0.0]]), torch.tensor([[0.0], [0.9], [0.5]])
    states = [value, velocity, torch.zeros_like(value, dtype=torch.bfloat16)]
    rest = (left, right, rate, momentum, l2)
    ours, expected = by_kernel(states, (num_runs, rows, columns), *rest, small=small), by_torch(states, *rest)
    # The gradient is rounded: where sums in another order round otherwise, by at most 2^-7 of it.
    gradient = exactly(left, right).abs()
    allowed = 2**-7 * gradient + 1e-4
    assert bool(((ours[1] - expected[1]).abs() <= allowed).all())
    assert bool(((ours[0] - expected[0]).abs() <= rate * allowed + 1e-6).all())
    # One rounding of bfloat16, which the interpreter makes towards zero.
    torch.testing.assert_close(ours[2].float(), ours[0], rtol=2**-7 if IS_INTERPRETED else 2**-8, atol=0)
    rounded_otherwise = (ours[1] - expected[1]).abs() > 1e-4
    assert float(rounded_otherwise.float().mean()) < 0.02
    assert not torch.equal(ours[0][:2], value[:2])
    assert torch.equal(ours[0][2], value[2])  # at a learning rate of zero


@pytest.mark.parametrize(("rows", "columns"), [(12, 8), (8, 12)])
def test_sides_that_are_not_aligned_are_refused(rows, columns):
    states = [torch.zeros(1, rows * columns), torch.zeros(1, rows * columns), torch.zeros(1, rows * columns)]
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match=f"{rows} x {columns} does not have sides in multiples of 8"):
        by_kernel(states, (1, rows, columns), torch.zeros(1, rows, 8), torch.zeros(1, 8, columns), one, one, None)


IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@pytest.mark.skipif(IS_INTERPRETED or not IS_HOPPER, reason="needs a GPU of the generation Hopper")
@pytest.mark.parametrize("options", [{}, {"num_programs": 3}, {"num_stages": 3, "num_programs": 3}], ids=str)
@pytest.mark.parametrize("l2", [None, torch.tensor([[0.0], [0.01], [0.1]])], ids=["no L2", "L2"])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (504, 1000), (1000, 784), (72, 136)])
def test_a_stream_of_tiles_updates_as_pytorch_does(rows, columns, l2, options):
    streamed_update = pytest.importorskip("isotherm.kernels.gluon.streamed_update")
    states = [normal(3, rows * columns, seed=0), normal(3, rows * columns, seed=1)]
    states.append(torch.zeros(3, rows * columns, dtype=torch.bfloat16))
    left, right = normal(3, 64, rows, seed=2).bfloat16(), normal(3, 64, columns, seed=3).bfloat16()
    rate = torch.tensor([[0.1], [0.2], [0.0]])
    rest = (left.transpose(1, 2), right, rate, torch.tensor([[0.0], [0.9], [0.5]]), l2)
    given = [None if t is None else t.cuda() for t in rest]
    ours = [t.cuda() for t in states]
    shape = 3, rows, columns
    assert streamed_update.fits(ours[0].view(shape), *given[:2])
    streamed_update.update(*(t.view(shape) for t in ours), *given, **options)
    value, velocity, half = (t.cpu() for t in ours)
    expected, expected_velocity, _ = by_torch(states, *rest)
    allowed = 2**-7 * exactly(*rest[:2]).abs() + 1e-4
    assert bool(((velocity - expected_velocity).abs() <= allowed).all())
    assert float(((velocity - expected_velocity).abs() > 1e-4).float().mean()) < 0.02
    assert bool(((value - expected).abs() <= rate * allowed + 1e-6).all())
    torch.testing.assert_close(value, states[0] - rate * velocity, rtol=0, atol=1e-6)
    assert torch.equal(half, value.bfloat16())


@pytest.mark.skipif(IS_INTERPRETED or not IS_HOPPER, reason="needs a GPU of the generation Hopper")
def test_a_stream_of_tiles_is_taken_where_it_can_be(monkeypatch):
    streamed_update = pytest.importorskip("isotherm.kernels.gluon.streamed_update")
    from isotherm.kernels.triton.factored_update import TILE, update

    taken = []
    monkeypatch.setattr(streamed_update, "update", lambda *given: taken.append(given))
    one = torch.ones(2, 1, device="cuda")
    for num_inner, options in ((64, {}), (64, {"tile": TILE}), (32, {})):
        left = torch.zeros(2, num_inner, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        right = torch.zeros(2, num_inner, 72, device="cuda", dtype=torch.bfloat16)
        states = [
            torch.zeros(2, 64, 72, device="cuda", dtype=dtype) for dtype in (torch.float32,) * 2 + (torch.bfloat16,)
        ]
        update(*states, left, right, one, one, None, **options)
    assert len(taken) == 1


def spread(factor: Tensor) -> Tensor:
    """Return the same values on the device with rows that begin at odd places."""
    wide = torch.zeros(len(factor), factor.shape[1], factor.shape[2] + 3, dtype=factor.dtype, device=DEVICE)
    wide[..., : factor.shape[2]] = factor.to(DEVICE)
    return wide[..., : factor.shape[2]]


@pytest.mark.parametrize("inner", [8, 13])
def test_factors_may_lie_in_memory_in_any_way(inner):
    left, right = normal(2, 16, inner, seed=2).to(HALF), normal(2, inner, 8, seed=3).to(HALF)
    states = [normal(2, 128, seed=0), normal(2, 128, seed=1), torch.zeros(2, 128, dtype=torch.bfloat16)]
    one = torch.ones(2, 1)
    rest = 0.1 * one, 0.5 * one, None
    expected = by_torch(states, left, right, *rest)
    ours = by_kernel(states, (2, 16, 8), spread(left), spread(right), *rest)
    torch.testing.assert_close(ours[1], expected[1], rtol=2**-7, atol=1e-4)


def test_a_run_that_overflows_leaves_the_others_alone():
    value, velocity = normal(2, 64, seed=0), normal(2, 64, seed=1)
    left, right = normal(2, 8, 8, seed=2).to(HALF), normal(2, 8, 8, seed=3).to(HALF)
    left[0] = torch.inf
    one = torch.ones(2, 1)
    states = [value, velocity, torch.zeros_like(value, dtype=torch.bfloat16)]
    ours = by_kernel(states, (2, 8, 8), left, right, 0.1 * one, 0.5 * one, None)
    assert not ours[0][0].isfinite().all()
    assert ours[0][1].isfinite().all()
