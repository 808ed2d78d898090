"""How convolutions of many runs are tiled: every pixel belongs to one tile, and all sizes are powers of two."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.kernels.tiling.convolution import (
    MOST_PARTS,
    PIXELS_BY_ROWS,
    Tile,
    cut_ghost,
    launch_for,
    parts_for,
    parts_of_ghost,
    result_size,
    row_weight_launch_for,
    tiles_of_part,
    weight_launch_for,
)

SIZES = st.integers(1, 70)
PIXELS = st.sampled_from([16, 64, 128, 256])


def is_power_of_two(number: int) -> bool:
    return number >= 1 and number & (number - 1) == 0


@given(pixels=PIXELS, num_images=st.integers(1, 300), height=SIZES, width=SIZES)
def test_tiles_are_powers_of_two_and_cover_all_pixels_once(pixels, num_images, height, width):
    tile = Tile.of(pixels, num_images=num_images, height=height, width=width)
    assert all(is_power_of_two(size) for size in (tile.images, tile.rows, tile.columns))
    assert num_images % tile.images == 0  # no tile has images of two runs
    assert tile.num_pixels == tile.images * tile.rows * tile.columns <= pixels
    down, across = -(-height // tile.rows), -(-width // tile.columns)
    assert (down - 1) * tile.rows < height <= down * tile.rows
    assert (across - 1) * tile.columns < width <= across * tile.columns
    assert tile.count(num_images=num_images, height=height, width=width) == num_images // tile.images * down * across


@given(pixels=PIXELS, num_images=st.integers(1, 300), height=SIZES, width=SIZES)
def test_tiles_are_as_large_as_they_may_be(pixels, num_images, height, width):
    """What `fits` counts on: products have as many pixels as there are, up to what was asked for."""
    tile = Tile.of(pixels, num_images=num_images, height=height, width=width)
    above = [1 << (size - 1).bit_length() for size in (height, width)]
    assert tile.num_pixels == min(pixels, (num_images & -num_images) * above[0] * above[1])
    # Whole rows first, whole images next.
    assert tile.rows == 1 or tile.columns >= width
    assert tile.images == 1 or tile.rows >= height


@pytest.mark.parametrize("pixels", [4, 16, 64])
def test_consecutive_tiles_are_those_whose_pixels_have_neighbouring_numbers(pixels):
    """Counted out. Parts of one row are neighbours too, which takes images wider than a tile and is not made use of."""
    seen = set()
    for num_images, height, width in itertools.product((1, 2, 3, 4), range(1, 10), range(1, 10)):
        tile = Tile.of(pixels, num_images=num_images, height=height, width=width)
        sizes = {"height": height, "width": width}
        numbers = [
            [(image * height + row) * width + column for image in images for row in rows for column in columns]
            for images in _ranges(num_images, tile.images)
            for rows in _ranges(height, tile.rows)
            for columns in _ranges(width, tile.columns)
        ]
        is_whole = all(len(own) == tile.num_pixels for own in numbers)
        are_neighbours = all(own == list(range(own[0], own[0] + len(own))) for own in numbers)
        assert len(numbers) == tile.count(num_images=num_images, **sizes)
        assert sorted(itertools.chain(*numbers)) == list(range(num_images * height * width))
        expected = is_whole and are_neighbours and tile.columns == width
        assert tile.is_consecutive(**sizes) == expected, (tile, sizes)
        seen.add(expected)
    assert seen == {True, False}


def test_parts_of_several_images_are_not_consecutive():
    assert Tile(images=2, rows=8, columns=8).is_consecutive(height=8, width=8)
    assert not Tile(images=2, rows=4, columns=8).is_consecutive(height=8, width=8)


def _ranges(number: int, size: int) -> list[range]:
    """Return ranges of a size that cover 0 .. number - 1; the last may be shorter."""
    return [range(first, min(first + size, number)) for first in range(0, number, size)]


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ({"num_images": 64, "height": 32, "width": 32}, Tile(images=1, rows=4, columns=32)),
        ({"num_images": 64, "height": 8, "width": 8}, Tile(images=2, rows=8, columns=8)),
        ({"num_images": 3, "height": 9, "width": 9}, Tile(images=1, rows=8, columns=16)),
        ({"num_images": 6, "height": 1, "width": 1}, Tile(images=2, rows=1, columns=1)),
        ({"num_images": 4, "height": 5, "width": 200}, Tile(images=1, rows=1, columns=128)),
    ],
    ids=str,
)
def test_tiles_by_hand(sizes, tile):
    assert Tile.of(128, **sizes) == tile


@pytest.mark.parametrize("num_inner", [16, 48, 64, 128, 256, 2048])
@pytest.mark.parametrize("num_outer", [16, 64, 128, 160, 256])
def test_launches_have_sizes_that_products_can_be_made_of(num_inner, num_outer):
    launch = launch_for(num_inner, num_outer)
    sizes = (launch.pixels, launch.channels, launch.inner, launch.num_warps)
    assert all(is_power_of_two(size) for size in sizes)
    assert launch.pixels * launch.channels <= 128 * launch.num_warps * 32  # a program's sums stay in registers
    if launch.channels == 128:
        assert num_outer % 128 == 0


@given(pixels=PIXELS, ghost_size=st.integers(1, 300), height=SIZES, width=SIZES)
def test_parts_of_ghosts_have_equal_numbers_of_full_tiles(pixels, ghost_size, height, width):
    tile = Tile.of(pixels, num_images=ghost_size, height=height, width=width)
    num_parts = parts_of_ghost(tile, ghost_size, height=height, width=width)
    is_filled = height % tile.rows == 0 and width % tile.columns == 0
    assert (num_parts is not None) == is_filled
    if num_parts is not None:
        num_tiles = tile.count(num_images=ghost_size, height=height, width=width)
        assert num_tiles * tile.num_pixels == ghost_size * height * width
        assert num_tiles % num_parts == 0
        assert is_power_of_two(num_tiles // num_parts)
        assert num_parts <= MOST_PARTS or num_parts % 2 == 1
        assert num_parts == num_tiles or 2 * num_parts > MOST_PARTS  # no more in a part than it takes


CHANNELS = st.sampled_from([16, 64, 128, 192, 256])


@given(num_inner=CHANNELS, num_outer=CHANNELS, ghost_size=st.integers(1, 130), height=SIZES, width=SIZES)
def test_parts_are_made_of_the_tiles_of_every_kernel(num_inner, num_outer, ghost_size, height, width):
    """Several tiles to a part, or where rows are read once, several parts to a tile."""
    sizes = {"height": height, "width": width}
    num_parts = parts_for(num_inner, num_outer, ghost_size, **sizes)
    pixels = launch_for(num_inner, num_outer).pixels
    own, by_rows = (Tile.of(number, num_images=ghost_size, **sizes) for number in (pixels, PIXELS_BY_ROWS))
    assert (num_parts is None) == (parts_of_ghost(own, ghost_size, **sizes) is None)
    if num_parts is not None:
        assert own.count(num_images=ghost_size, **sizes) % num_parts == 0
        in_ghost = by_rows.count(num_images=ghost_size, **sizes)
        is_filled = parts_of_ghost(by_rows, ghost_size, **sizes) is not None
        assert not is_filled or 0 in (in_ghost % num_parts, num_parts % in_ghost)


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 1024), st.integers(1, 64))
def test_gradients_of_filters_have_about_the_programs_that_are_asked_for(num_tiles, num_products, num_images, number):
    size = tiles_of_part(num_tiles, num_products, num_images, num_programs=number)
    assert 1 <= size <= num_tiles
    asked = number * num_images / 64
    if num_products <= asked <= num_tiles * num_products:
        assert abs(num_tiles * num_products / asked - size) <= 0.5


def test_tiles_larger_than_parts_are_refused():
    with pytest.raises(ValueError, match="64 tiles cannot be split into 128 parts"):
        cut_ghost(Tile(images=1, rows=16, columns=16), 128, 128, 64, height=16, width=16)


def test_tiles_of_other_ghosts_are_no_parts():
    assert parts_of_ghost(Tile(images=4, rows=8, columns=8), 6, height=8, width=8) is None


@given(sides=st.tuples(SIZES, SIZES), taps=st.tuples(st.integers(1, 5), st.integers(1, 5)), stride=st.integers(1, 3))
def test_the_size_of_a_result_is_how_often_the_taps_can_be_laid_down(sides, taps, stride):
    padding = 2
    expected = [
        sum(1 for first in range(-padding, side + padding, stride) if first + tap <= side + padding)
        for side, tap in zip(sides, taps, strict=True)
    ]
    assert list(result_size(sides, taps, stride=stride, padding=padding)) == expected


@pytest.mark.parametrize("num_inputs", [16, 48, 64, 128, 160, 256, 384, 2048])
@pytest.mark.parametrize("num_outputs", [16, 64, 128, 160, 256])
def test_launches_for_gradients_of_filters(num_inputs, num_outputs):
    launch = weight_launch_for(num_inputs, num_outputs)
    sizes = (launch.pixels, launch.outputs, launch.inputs, launch.num_warps, launch.num_programs)
    assert all(is_power_of_two(size) for size in sizes)
    num_sums = 3 if launch.takes_row else 1
    assert num_sums * launch.outputs * launch.inputs <= 128 * launch.num_warps * 32
    if launch.outputs == 128:  # else there would be tiles with nothing in them
        assert num_outputs % 128 == 0
    if launch.inputs > 64:
        assert num_inputs % launch.inputs == 0


@pytest.mark.parametrize("num_images", [16, 128, 1024])
@pytest.mark.parametrize(("num_outputs", "width"), [(64, 32), (192, 32), (128, 16), (256, 8)])
def test_launches_for_gradients_of_filters_by_rows(num_outputs, width, num_images):
    launch = row_weight_launch_for(num_outputs, num_images)
    assert num_outputs % launch.outputs == 0
    assert 3 * launch.outputs * 64 <= 4 * 32 * 192  # registers for sums, of four warps
    num_values = launch.pixels * launch.outputs + (launch.pixels + 2 * width) * 64
    assert 2 * launch.num_stages * num_values <= 113 * 1024  # shared memory, of two programs at a time
