"""Shared memory of Gluon kernels: barriers, and slots for the boxes that TMA copies."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def new_barriers(NUM: gl.constexpr):
    """Return barriers that each wait for one announcement and the bytes it announces."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(NUM):
        mbarrier.init(barriers.index(index), count=1)
    return barriers


@gluon.jit
def give_up(barriers, NUM: gl.constexpr):
    """Invalidate barriers so that their memory can be reused, even if nothing waits on them any more.

    The compiler only sees that nothing waits, and would reuse that memory for exchanging sums. The bits of a barrier
    are no number.
    """
    for index in gl.static_range(NUM):
        mbarrier.invalidate(barriers.index(index))


@gluon.jit
def as_box(boxes, places, first):
    """Return a slot, and as many following ones as needed, as the destination of a box."""
    return places.index(first)._reinterpret(boxes.dtype, boxes.block_shape, boxes.layout)
