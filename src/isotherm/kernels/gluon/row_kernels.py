"""The Gluon kernels of `row_convolution`: how boxes of rows are copied, multiplied and accumulated.

A program copies ahead of the matmuls; every copy in flight has a barrier to wait on. In shared memory a box is stored
row by row, so that it can be read starting at any row. To that end a row is reinterpreted as the start of a larger
buffer, which Triton 3.6 and 3.7 allow and later versions do not.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from isotherm.kernels.gluon.shared_memory import as_box, give_up, new_barriers

# Shared-memory slots for boxes of pixels and for filters, in use or in flight.
_BOXES = gl.constexpr(2)
_FILTERS = gl.constexpr(4)


@gluon.jit(do_not_specialize=("ghosts_of_run", "images_of_run", "height"))
def convolve_rows(
    source,
    source_ends,
    filters,
    other,
    target,
    first_ptr,
    second_ptr,
    normalised,
    mean_ptr,
    var_ptr,
    weight_ptr,
    bias_ptr,
    eps,
    ghosts_of_run,
    images_of_run,
    height,
    C: gl.constexpr,
    O: gl.constexpr,  # noqa: E741
    IS_GRADIENT: gl.constexpr,
    TILES: gl.constexpr,
    PARTS: gl.constexpr,
    RELU: gl.constexpr,
    ROW_LAYOUT: gl.constexpr,
    FILTER_LAYOUT: gl.constexpr,
    TILE_LAYOUT: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Compute tiles of the target (O channels) from the source (C channels).

    Channels are read and written in blocks. If the last block is partial, it is read as zeros and not written.

    If there are pointers for them, also store two sums over all tiles by channel: the moments of the target, or, if the
    target is the gradient of a norm's output, the sums that the norm's gradient needs. Parts may be smaller than a
    tile, which several of them then share equally.
    """
    ROWS: gl.constexpr = source.block_shape[0]
    IMAGES: gl.constexpr = source.block_shape[1]
    WIDTH: gl.constexpr = source.block_shape[2]
    BLOCK_C: gl.constexpr = source.block_shape[3]
    BLOCK_O: gl.constexpr = target.block_shape[3]
    PIXELS: gl.constexpr = ROWS * IMAGES * WIDTH
    NUM_BOXES: gl.constexpr = 3 * ((C + BLOCK_C - 1) // BLOCK_C)
    NUM_BLOCKS: gl.constexpr = (O + BLOCK_O - 1) // BLOCK_O
    # A matmul has at least 64 rows: channels or, with fewer channels than that, pixels.
    PIXELS_FIRST: gl.constexpr = BLOCK_O < 64
    OVER_PIXELS: gl.constexpr = 0 if PIXELS_FIRST else 1
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_O if PIXELS_FIRST else PIXELS, 16]
    )
    BY_CHANNEL: gl.constexpr = gl.SliceLayout(OVER_PIXELS, SUMS)
    # A tile that is read back reuses the slot of a box, if that is large enough.
    HAS_PLACES: gl.constexpr = BLOCK_O > BLOCK_C
    NUM_READ: gl.constexpr = (other is not None) + (normalised is not None)
    NUM_PLACES: gl.constexpr = 1 if NUM_READ == 0 else 2
    place = gl.program_id(0)
    channel = place % NUM_BLOCKS * BLOCK_O
    program = place // NUM_BLOCKS
    channels = channel + gl.arange(0, BLOCK_O, BY_CHANNEL)
    is_channel = channels < O
    first = gl.zeros([BLOCK_O], gl.float32, BY_CHANNEL)
    second = gl.zeros([BLOCK_O], gl.float32, BY_CHANNEL)
    rows = gl.allocate_shared_memory(source.dtype, [_BOXES * (ROWS + 2), IMAGES * WIDTH, BLOCK_C], ROW_LAYOUT)
    some = gl.allocate_shared_memory(
        filters.dtype, [_FILTERS, filters.block_shape[1], filters.block_shape[3]], FILTER_LAYOUT
    )
    places = rows
    if HAS_PLACES:
        places = gl.allocate_shared_memory(target.dtype, [NUM_PLACES, PIXELS, BLOCK_O], TILE_LAYOUT)
    boxes_ready = new_barriers(_BOXES)
    filters_ready = new_barriers(_FILTERS)
    tiles_ready = boxes_ready
    if NUM_READ > 0:
        tiles_ready = new_barriers(NUM_READ)
    for number in range(TILES):
        tile = program * TILES + number
        down = height // ROWS
        image = tile // down * IMAGES
        row = tile % down * ROWS
        run = image // images_of_run
        at = [row, image, 0, channel]
        before = number * NUM_BOXES
        _copy_box(source, source_ends, rows, boxes_ready, image, row, 0, before, IS_GRADIENT)
        for early in gl.static_range(_FILTERS - 1):
            _copy_filter(filters, some, filters_ready, run, channel, early, 3 * before, IS_GRADIENT)
        total = gl.zeros([PIXELS, BLOCK_O] if PIXELS_FIRST else [BLOCK_O, PIXELS], gl.float32, SUMS)
        # The slots that the residual and the norm's input are copied to, early and late; boxes alternate.
        early_at = 0 if HAS_PLACES else (before + NUM_BOXES) % _BOXES * (ROWS + 2)
        late_at = NUM_PLACES - 1 if HAS_PLACES else (before + NUM_BOXES + 1) % _BOXES * (ROWS + 2)
        for box in range(NUM_BOXES):
            at_box = (before + box) % _BOXES
            mbarrier.wait(boxes_ready.index(at_box), (before + box) // _BOXES & 1)
            for y in gl.static_range(3):
                step = 3 * (before + box) + y
                mbarrier.wait(filters_ready.index(step % _FILTERS), step // _FILTERS & 1)
                moved = at_box * (ROWS + 2) + (2 - y if IS_GRADIENT else y)
                pixels = _matrix(rows, moved, PIXELS, BLOCK_C, ROW_LAYOUT)
                taps = some.index(step % _FILTERS)
                if IS_GRADIENT != PIXELS_FIRST:
                    taps = taps.permute((1, 0))
                if PIXELS_FIRST:
                    total = hopper.warpgroup_mma(pixels, taps, total, is_async=True)
                else:
                    total = hopper.warpgroup_mma(taps, pixels.permute((1, 0)), total, is_async=True)
                # The previous matmul has finished and its slot is free.
                total = hopper.warpgroup_mma_wait(1, deps=[total])
                ahead = 3 * box + y + _FILTERS - 1
                if ahead < 3 * NUM_BOXES:
                    _copy_filter(filters, some, filters_ready, run, channel, ahead, 3 * before, IS_GRADIENT)
                if y == 0:
                    if box + 1 < NUM_BOXES:
                        _copy_box(source, source_ends, rows, boxes_ready, image, row, box + 1, before, IS_GRADIENT)
                    elif other is not None:
                        _copy(other, at, tiles_ready.index(0), places, early_at)
                    elif normalised is not None:
                        _copy(normalised, at, tiles_ready.index(0), places, early_at)
        total = hopper.warpgroup_mma_wait(0, deps=[total])
        if other is not None:
            if normalised is not None:
                _copy(normalised, at, tiles_ready.index(1), places, late_at)
            mbarrier.wait(tiles_ready.index(0), number & 1)
            total += _tile(places, early_at, PIXELS, BLOCK_O, TILE_LAYOUT, PIXELS_FIRST).load(SUMS).to(gl.float32)
        result = total.to(target.dtype)
        result_at = late_at if other is None else early_at
        _tile(places, result_at, PIXELS, BLOCK_O, TILE_LAYOUT, PIXELS_FIRST).store(result)
        fence_async_shared()
        tma.async_copy_shared_to_global(target, at, as_box(target, places, result_at))
        if normalised is not None:
            ghost = image // (images_of_run // ghosts_of_run)
            inverse = gl.rsqrt(gl.load(var_ptr + (ghost * O + channels), mask=is_channel, other=1.0) + eps)
            mean = gl.load(mean_ptr + (ghost * O + channels), mask=is_channel, other=0.0)
            mbarrier.wait(tiles_ready.index(NUM_READ - 1), number & 1)
            normalised_at = early_at if other is None else late_at
            centred = _tile(places, normalised_at, PIXELS, BLOCK_O, TILE_LAYOUT, PIXELS_FIRST).load(SUMS).to(gl.float32)
            centred -= gl.expand_dims(mean, OVER_PIXELS)
            dz = result.to(gl.float32)
            if RELU:
                scale = gl.load(weight_ptr + (run * O + channels), mask=is_channel, other=0.0).to(gl.float32) * inverse
                bias = gl.load(bias_ptr + (run * O + channels), mask=is_channel, other=0.0).to(gl.float32)
                z = centred * gl.expand_dims(scale, OVER_PIXELS) + gl.expand_dims(bias, OVER_PIXELS)
                dz = gl.where(z <= 0.0, 0.0, dz)
            first += gl.sum(dz, axis=OVER_PIXELS)
            second += gl.sum(dz * centred, axis=OVER_PIXELS) * inverse
        elif first_ptr is not None:
            # Merge the mean and the squared deviations of each tile into the running ones.
            values = result.to(gl.float32)
            mean = gl.sum(values, axis=OVER_PIXELS) / PIXELS
            values -= gl.expand_dims(mean, OVER_PIXELS)
            away = mean - first
            first += away / (number + 1)
            second += gl.sum(values * values, axis=OVER_PIXELS) + away * away * (PIXELS * number / (number + 1))
        tma.store_wait(0)
    places._keep_alive()  # the compiler does not know that pending stores still read them
    give_up(boxes_ready, _BOXES)
    give_up(filters_ready, _FILTERS)
    if NUM_READ > 0:
        give_up(tiles_ready, NUM_READ)
    if first_ptr is not None:
        if normalised is not None:
            first /= PARTS
        for share in gl.static_range(PARTS):
            to = (program * PARTS + share) * O + channels
            gl.store(first_ptr + to, first, mask=is_channel)
            gl.store(second_ptr + to, second / PARTS, mask=is_channel)


@gluon.jit(do_not_specialize=("num_runs", "images_of_run", "height", "num_tiles", "tiles_of_part"))
def sum_rows(
    gradients,
    source,
    source_ends,
    parts_ptr,
    num_runs,
    images_of_run,
    height,
    num_tiles,
    tiles_of_part,
    C: gl.constexpr,
    O: gl.constexpr,  # noqa: E741
    STAGES: gl.constexpr,
    LAYOUT: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Store one part of the gradient of a column of taps, for one block of channels in and out."""
    ROWS: gl.constexpr = source.block_shape[0]
    IMAGES: gl.constexpr = source.block_shape[1]
    WIDTH: gl.constexpr = source.block_shape[2]
    BLOCK_C: gl.constexpr = source.block_shape[3]
    BLOCK_O: gl.constexpr = gradients.block_shape[3]
    PIXELS: gl.constexpr = ROWS * IMAGES * WIDTH
    # Input channels are the rows of the matmul, output channels its columns.
    SUMS: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_O, 16]
    )
    NUM_INNER: gl.constexpr = (C + BLOCK_C - 1) // BLOCK_C
    NUM_BLOCKS: gl.constexpr = (O + BLOCK_O - 1) // BLOCK_O
    place = gl.program_id(0)
    inner = place % NUM_INNER * BLOCK_C
    place = place // NUM_INNER
    channel = place % NUM_BLOCKS * BLOCK_O
    place = place // NUM_BLOCKS
    x = place % 3
    place = place // 3
    run = place % num_runs
    part = place // num_runs
    rows = gl.allocate_shared_memory(source.dtype, [STAGES * (ROWS + 2), IMAGES * WIDTH, BLOCK_C], LAYOUT)
    some = gl.allocate_shared_memory(gradients.dtype, [STAGES, PIXELS, BLOCK_O], LAYOUT)
    ready = new_barriers(STAGES)
    down = height // ROWS
    begin = run * (images_of_run // IMAGES * down) + part * tiles_of_part
    count = gl.minimum(tiles_of_part, num_tiles - part * tiles_of_part)
    for early in gl.static_range(STAGES - 1):
        if early < count:
            _copy_pair(gradients, source, source_ends, some, rows, ready, begin, early, down, x, inner, channel)
    total0 = gl.zeros([BLOCK_C, BLOCK_O], gl.float32, SUMS)
    total1 = gl.zeros([BLOCK_C, BLOCK_O], gl.float32, SUMS)
    total2 = gl.zeros([BLOCK_C, BLOCK_O], gl.float32, SUMS)
    for number in range(count):
        stage = number % STAGES
        mbarrier.wait(ready.index(stage), number // STAGES & 1)
        gradient = some.index(stage)
        top = stage * (ROWS + 2)
        pixels0 = _matrix(rows, top, PIXELS, BLOCK_C, LAYOUT).permute((1, 0))
        pixels1 = _matrix(rows, top + 1, PIXELS, BLOCK_C, LAYOUT).permute((1, 0))
        pixels2 = _matrix(rows, top + 2, PIXELS, BLOCK_C, LAYOUT).permute((1, 0))
        total0 = hopper.warpgroup_mma(pixels0, gradient, total0, is_async=True)
        total1 = hopper.warpgroup_mma(pixels1, gradient, total1, is_async=True)
        total2 = hopper.warpgroup_mma(pixels2, gradient, total2, is_async=True)
        # The previous matmuls have finished and their slots are free.
        total0, total1, total2 = hopper.warpgroup_mma_wait(3, deps=[total0, total1, total2])
        ahead = number + STAGES - 1
        if ahead < count:
            _copy_pair(gradients, source, source_ends, some, rows, ready, begin, ahead, down, x, inner, channel)
    total0, total1, total2 = hopper.warpgroup_mma_wait(0, deps=[total0, total1, total2])
    give_up(ready, STAGES)
    parts_ptr += (part * num_runs + run).to(gl.int64) * (O * 9 * C)
    columns = channel + gl.arange(0, BLOCK_O, gl.SliceLayout(0, SUMS))
    inputs = inner + gl.arange(0, BLOCK_C, gl.SliceLayout(1, SUMS))
    at = gl.expand_dims(columns * (9 * C), 0) + gl.expand_dims(x * C + inputs, 1)
    inside = gl.expand_dims(columns < O, 0) & gl.expand_dims(inputs < C, 1)
    gl.store(parts_ptr + at, total0, mask=inside)
    gl.store(parts_ptr + at + 3 * C, total1, mask=inside)
    gl.store(parts_ptr + at + 6 * C, total2, mask=inside)


# -- copies and slots -------------------------------------------------------------------------------------------------


@gluon.jit
def _matrix(places, first, NUM_ROWS: gl.constexpr, NUM_COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return a slot, and as many following ones as needed, as a matrix."""
    return places.index(first)._reinterpret(places.dtype, [NUM_ROWS, NUM_COLUMNS], LAYOUT)


@gluon.jit
def _tile(
    places, first, PIXELS: gl.constexpr, CHANNELS: gl.constexpr, LAYOUT: gl.constexpr, PIXELS_FIRST: gl.constexpr
):
    """Return the slot of a tile as a matrix laid out like the accumulator."""
    matrix = _matrix(places, first, PIXELS, CHANNELS, LAYOUT)
    return matrix if PIXELS_FIRST else matrix.permute((1, 0))


@gluon.jit
def _copy(boxes, at, barrier, places, first):
    """Start copying one box to a slot and as many following ones as needed."""
    mbarrier.expect(barrier, boxes.block_type.nbytes)
    tma.async_copy_global_to_shared(boxes, at, barrier, as_box(boxes, places, first))


@gluon.jit
def _copy_with_ends(source, source_ends, image, row, column, inner, barrier, rows, first):
    """Start copying a box with the row above it and the row below."""
    ROWS: gl.constexpr = source.block_shape[0]
    tma.async_copy_global_to_shared(source, [row - 1, image, column, inner], barrier, as_box(source, rows, first))
    below = as_box(source_ends, rows, first + ROWS)
    tma.async_copy_global_to_shared(source_ends, [row + ROWS - 1, image, column, inner], barrier, below)


@gluon.jit
def _copy_box(source, source_ends, rows, ready, image, row, box, before, IS_GRADIENT: gl.constexpr):
    """Start copying the pixels that a column of taps reads; `before` counts the boxes of earlier tiles."""
    ROWS: gl.constexpr = source.block_shape[0]
    BLOCK_C: gl.constexpr = source.block_shape[3]
    at_box = (before + box) % _BOXES
    column = 1 - box % 3 if IS_GRADIENT else box % 3 - 1
    barrier = ready.index(at_box)
    mbarrier.expect(barrier, source.block_type.nbytes + source_ends.block_type.nbytes)
    inner = box // 3 * BLOCK_C
    _copy_with_ends(source, source_ends, image, row, column, inner, barrier, rows, at_box * (ROWS + 2))


@gluon.jit
def _copy_filter(filters, some, ready, run, channel, step, before, IS_GRADIENT: gl.constexpr):
    """Start copying the filters of one tap; `before` counts those of earlier tiles."""
    BLOCK_C: gl.constexpr = filters.block_shape[1 if IS_GRADIENT else 3]
    place = (before + step) % _FILTERS
    tap = step % 3 * 3 + step // 3 % 3
    inner = step // 9 * BLOCK_C
    _copy(
        filters,
        [run, inner, tap, channel] if IS_GRADIENT else [run, channel, tap, inner],
        ready.index(place),
        some,
        place,
    )


@gluon.jit
def _copy_pair(gradients, source, source_ends, some, rows, ready, begin, number, down, x, inner, channel):
    """Start copying a tile of gradients and the pixels that a column of taps multiplies it with."""
    ROWS: gl.constexpr = source.block_shape[0]
    IMAGES: gl.constexpr = source.block_shape[1]
    STAGES: gl.constexpr = some.shape[0]
    stage = number % STAGES
    image = (begin + number) // down * IMAGES
    row = (begin + number) % down * ROWS
    barrier = ready.index(stage)
    mbarrier.expect(barrier, gradients.block_type.nbytes + source.block_type.nbytes + source_ends.block_type.nbytes)
    tma.async_copy_global_to_shared(gradients, [row, image, 0, channel], barrier, as_box(gradients, some, stage))
    _copy_with_ends(source, source_ends, image, row, x - 1, inner, barrier, rows, stage * (ROWS + 2))
