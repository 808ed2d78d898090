"""What kernels in Gluon keep in a multiprocessor's own memory: barriers, and places of boxes that the GPU copies."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def new_barriers(NUM: gl.constexpr):
    """Return barriers that wait for one announcement each, and the bytes that it announces."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUM, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(NUM):
        mbarrier.init(barriers.index(index), count=1)
    return barriers


@gluon.jit
def give_up(barriers, NUM: gl.constexpr):
    """Let the memory of barriers be used for something else, for which they must be given up even if nobody waits.

    The compiler sees only that nobody does, and would have sums exchanged through that memory. The bits of a barrier
    are no number.
    """
    for index in gl.static_range(NUM):
        mbarrier.invalidate(barriers.index(index))


@gluon.jit
def as_box(boxes, places, first):
    """Return a place, and those after it that it takes, as that of a box."""
    return places.index(first)._reinterpret(boxes.dtype, boxes.block_shape, boxes.layout)
