"""The gradient of a matrix and its SGD update as one stream of tiles, in Gluon, for Hopper.

Like `triton.factored_update`, with the same memory traffic, but TMA copies the tiles of weights and velocities: while
one tile is updated, the next is loaded and the one before is stored. Programs are persistent and take tile after tile.

Shape suffixes: M runs, R rows, C columns, I inner dimension.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from isotherm.kernels.availability import device_of
from isotherm.kernels.gluon.shared_memory import as_box, give_up, new_barriers
from isotherm.kernels.kernel_check import KernelCheck

# Rows and columns of a tile, and the inner dimension: rows of 128 bytes in bfloat16.
_SIDE = 64
# Programs per multiprocessor, and tiles of each in shared memory or in flight.
_PROGRAMS_AT_ONCE = 2
_STAGES = 2


def fits(value_MRC: Tensor, left_MRI: Tensor, right_MIC: Tensor) -> bool:
    """Tell whether the kernel supports a matrix and its factors: left one transposed, both with inner dimension 64."""
    num_rows, num_inner = left_MRI.shape[1:]
    num_columns = right_MIC.shape[2]
    are_laid_out = (
        left_MRI.stride() == (num_inner * num_rows, 1, num_rows)
        and right_MIC.stride() == (num_inner * num_columns, num_columns, 1)
        and all(factor.data_ptr() % 16 == 0 for factor in (left_MRI, right_MIC))
    )
    is_large = num_inner == _SIDE and min(num_rows, num_columns) >= _SIDE
    return is_large and are_laid_out and left_MRI.dtype == torch.bfloat16 and CHECK.passes(value_MRC.device)


def update(
    value_MRC: Tensor,
    velocity_MRC: Tensor,
    half_MRC: Tensor,
    left_MRI: Tensor,
    right_MIC: Tensor,
    rate_M1: Tensor,
    momentum_M1: Tensor,
    l2_M1: Tensor | None,
    *,
    num_stages: int = _STAGES,
    programs_at_once: int = _PROGRAMS_AT_ONCE,
    num_programs: int | None = None,
) -> None:
    """Take a heavy-ball step in place with the gradient left @ right, rounded as a half-precision matmul rounds it.

    Args:
        value_MRC: weights.
        velocity_MRC: velocities.
        half_MRC: bfloat16 weights.
        left_MRI: left factor of the gradient.
        right_MIC: right factor of the gradient.
        rate_M1: learning rates.
        momentum_M1: momentum.
        l2_M1: L2 coefficients, or None.
        num_stages: tiles in shared memory or in flight, at least two; with three, only one program fits on a
            multiprocessor.
        programs_at_once: programs per multiprocessor.
        num_programs: total number of programs; overrides `programs_at_once`.
    """
    assert num_stages > 1
    num_runs, num_rows, num_columns = value_MRC.shape
    down, across = triton.cdiv(num_rows, _SIDE), triton.cdiv(num_columns, _SIDE)
    num_tiles = num_runs * down * across
    if num_programs is None:
        num_processors = torch.cuda.get_device_properties(value_MRC.device).multi_processor_count
        num_programs = programs_at_once * num_processors
    with device_of(value_MRC):
        _update_stream[(min(num_tiles, num_programs),)](
            *(_tiles(matrix) for matrix in (value_MRC, velocity_MRC, half_MRC)),
            _tiles(left_MRI.transpose(1, 2)),
            _tiles(right_MIC),
            rate_M1,
            momentum_M1,
            l2_M1,
            num_tiles,
            down,
            across,
            STAGES=num_stages,
            LAYOUTS=tuple(_layout(matrix, rank=2) for matrix in (value_MRC, half_MRC)),
            num_warps=4,
        )


def _tiles(matrices: Tensor) -> TensorDescriptor:
    """Return a descriptor of all runs' matrices for tiles; reads beyond the edges give zeros."""
    shape, strides = list(matrices.shape), list(matrices.stride())
    return TensorDescriptor(matrices, shape, strides, [1, _SIDE, _SIDE], _layout(matrices, rank=3))


def _layout(matrices: Tensor, *, rank: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8 * matrices.element_size(), rank=rank)


def _is_right(device: torch.device) -> bool:
    """Compare with PyTorch on integers, of which only gradients and copies are rounded, with many tiles per program."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator).to(device, torch.float32)

    shape = num_runs, num_rows, num_columns = 3, 136, 200
    are_equal = []
    for has_l2 in (True, False):
        left, right = numbers(num_runs, _SIDE, num_rows).bfloat16(), numbers(num_runs, _SIDE, num_columns).bfloat16()
        value, velocity = numbers(*shape), numbers(*shape)
        half = torch.zeros(shape, device=device, dtype=torch.bfloat16)
        settings = [1.0, 2.0, 0.0], [0.0, 1.0, 2.0], [2.0, 0.0, 1.0]
        rate, momentum, l2 = (torch.tensor(values, device=device).unsqueeze(1) for values in settings)
        gradient = (left.double().transpose(1, 2) @ right.double()).bfloat16().float()
        moved = gradient + velocity * momentum.unsqueeze(2)
        if has_l2:
            moved += value * l2.unsqueeze(2)
        expected = value - moved * rate.unsqueeze(2)
        given = left.transpose(1, 2), right, rate, momentum, l2 if has_l2 else None
        update(value, velocity, half, *given, num_programs=4)
        pairs = (value, expected), (velocity, moved), (half, expected.bfloat16())
        are_equal += [torch.equal(ours, theirs) for ours, theirs in pairs]
    return all(are_equal)


CHECK = KernelCheck("matrix updates", _is_right)


@gluon.jit(do_not_specialize=("num_tiles", "down", "across"))
def _update_stream(
    values,
    velocities,
    halves,
    lefts,
    rights,
    rate_ptr,
    momentum_ptr,
    l2_ptr,
    num_tiles,
    down,
    across,
    STAGES: gl.constexpr,
    LAYOUTS: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Update tiles, each program taking every `num_programs`-th."""
    SIDE: gl.constexpr = values.block_shape[1]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, SIDE, 16]
    )
    program = gl.program_id(0)
    num_programs = gl.num_programs(0)
    # Per stage: weights and velocities; left factor, right factor and bfloat16 weights.
    wide_at = gl.allocate_shared_memory(values.dtype, [2 * STAGES, SIDE, SIDE], LAYOUTS[0])
    thin_at = gl.allocate_shared_memory(halves.dtype, [3 * STAGES, SIDE, SIDE], LAYOUTS[1])
    ready = new_barriers(STAGES)
    count = (num_tiles - program + num_programs - 1) // num_programs
    for early in gl.static_range(STAGES - 1):
        if early < count:
            tile = program + early * num_programs
            _copy(values, velocities, lefts, rights, wide_at, thin_at, ready, tile, early, down, across)
    for number in range(count):
        stage = number % STAGES
        run, row, column = _place(program + number * num_programs, down, across, SIDE)
        rate = gl.load(rate_ptr + run)
        momentum = gl.load(momentum_ptr + run)
        l2 = 0.0
        if l2_ptr is not None:
            l2 = gl.load(l2_ptr + run)
        mbarrier.wait(ready.index(stage), number // STAGES & 1)
        total = gl.zeros([SIDE, SIDE], gl.float32, SUMS)
        left = thin_at.index(3 * stage).permute((1, 0))
        total = hopper.warpgroup_mma(left, thin_at.index(3 * stage + 1), total, is_async=True)
        # The previous store has left its slot: load the next tile there.
        tma.store_wait(0)
        ahead = number + STAGES - 1
        if ahead < count:
            tile = program + ahead * num_programs
            _copy(values, velocities, lefts, rights, wide_at, thin_at, ready, tile, ahead % STAGES, down, across)
        value = wide_at.index(2 * stage).load(SUMS)
        velocity = wide_at.index(2 * stage + 1).load(SUMS)
        total = hopper.warpgroup_mma_wait(0, deps=[total])
        velocity = total.to(lefts.dtype).to(gl.float32) + velocity * momentum
        if l2_ptr is not None:
            velocity += value * l2
        value -= velocity * rate
        wide_at.index(2 * stage).store(value)
        wide_at.index(2 * stage + 1).store(velocity)
        thin_at.index(3 * stage + 2).store(value.to(halves.dtype))
        fence_async_shared()
        at = [run, row, column]
        tma.async_copy_shared_to_global(values, at, as_box(values, wide_at, 2 * stage))
        tma.async_copy_shared_to_global(velocities, at, as_box(velocities, wide_at, 2 * stage + 1))
        tma.async_copy_shared_to_global(halves, at, as_box(halves, thin_at, 3 * stage + 2))
    tma.store_wait(0)
    give_up(ready, STAGES)


@gluon.jit
def _place(tile, down, across, SIDE: gl.constexpr):
    """Return the run, first row and first column of a tile."""
    return tile // (down * across), tile // across % down * SIDE, tile % across * SIDE


@gluon.jit
def _copy(values, velocities, lefts, rights, wide_at, thin_at, ready, tile, stage, down, across):
    """Start copying the inputs of a tile."""
    SIDE: gl.constexpr = values.block_shape[1]
    run, row, column = _place(tile, down, across, SIDE)
    at = [run, row, column]
    barrier = ready.index(stage)
    mbarrier.expect(barrier, 2 * values.block_type.nbytes + 2 * lefts.block_type.nbytes)
    tma.async_copy_global_to_shared(values, at, barrier, as_box(values, wide_at, 2 * stage))
    tma.async_copy_global_to_shared(velocities, at, barrier, as_box(velocities, wide_at, 2 * stage + 1))
    tma.async_copy_global_to_shared(lefts, [run, 0, row], barrier, as_box(lefts, thin_at, 3 * stage))
    tma.async_copy_global_to_shared(rights, [run, 0, column], barrier, as_box(rights, thin_at, 3 * stage + 1))
