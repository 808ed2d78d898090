"""How convolutions of many runs are split into programs, from the shape of one run's tensors alone.

The constants are the best of those that `benchmarks/convolutions.py` tries on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# The kernel that needs a ghost batch's sums reads those of all its parts.
MOST_PARTS = 128
# Pixels of a tile whose rows are read once for three taps.
PIXELS_BY_ROWS = 256
# Channels of such a tile, and channels summed over at once: 128 bytes, the widest that tensor cores read.
CHANNELS_BY_ROWS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launch parameters of `forward` and `input_gradient`.

    Args:
        pixels: of a tile, at most.
        channels: of a tile, at most.
        inner: channels summed over at once, at most.
        num_warps: of a program.
        num_stages: matmuls whose operands are in flight.
    """

    pixels: int
    channels: int
    inner: int = 64
    num_warps: int
    num_stages: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightLaunch:
    """Launch parameters of `weight_gradient`.

    Args:
        pixels: summed over at once, at most.
        outputs: output channels of a tile, at most.
        inputs: input channels of a tile, at most.
        takes_row: compute all taps of a filter's row, if it has three, reading the gradient once.
        num_warps: of a program.
        num_stages: matmuls whose operands are in flight.
        num_programs: approximate number per run and 64 of its examples; sets how many parts the pixels are split into.
    """

    pixels: int
    outputs: int
    inputs: int
    takes_row: bool
    num_warps: int
    num_stages: int = 3
    num_programs: int = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RowWeightLaunch:
    """Launch parameters of `row_convolution.weight_gradient`.

    Args:
        pixels: summed over at once.
        outputs: output channels of a tile.
        num_stages: pairs of tiles in use or in flight.
        num_programs: approximate number per run and 64 of its examples; sets how many parts the pixels are split into.
    """

    pixels: int = 64
    outputs: int
    num_stages: int = 4
    num_programs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """A box of pixels, powers of two.

    >>> Tile.of(256, num_images=64, height=8, width=8)
    Tile(images=4, rows=8, columns=8)
    """

    images: int
    rows: int
    columns: int

    @classmethod
    def of(cls, pixels: int, *, num_images: int, height: int, width: int) -> Tile:
        """Return a box of at most this many pixels: whole rows first, then whole images."""
        columns = min(_power_above(width), pixels)
        rows = min(_power_above(height), pixels // columns)
        return cls(images=min(num_images & -num_images, pixels // (columns * rows)), rows=rows, columns=columns)

    @property
    def num_pixels(self) -> int:
        """The number of pixels."""
        return self.images * self.rows * self.columns

    def count(self, *, num_images: int, height: int, width: int) -> int:
        """Return how many tiles cover this many images."""
        return num_images // self.images * math.ceil(height / self.rows) * math.ceil(width / self.columns)

    def is_consecutive(self, *, height: int, width: int) -> bool:
        """Tell whether the pixels are contiguous in memory."""
        return self.columns == width and height % self.rows == 0 and (self.images == 1 or self.rows == height)


def parts_of_ghost(tile: Tile, ghost_size: int, *, height: int, width: int) -> int | None:
    """Return how many parts of equally many tiles a ghost batch is split into; None if tiles do not fill it.

    >>> parts_of_ghost(Tile(images=1, rows=4, columns=32), 64, height=32, width=32)
    128
    """
    if ghost_size % tile.images or height % tile.rows or width % tile.columns:
        return None
    num_parts = tile.count(num_images=ghost_size, height=height, width=width)
    while num_parts > MOST_PARTS and num_parts % 2 == 0:
        num_parts //= 2
    return num_parts


def result_size(sides: Sequence[int], taps: Sequence[int], *, stride: int, padding: int) -> tuple[int, int]:
    """Return the height and width of a convolution's result.

    >>> result_size((32, 32), (3, 3), stride=2, padding=1)
    (16, 16)
    """
    height, width = ((side + 2 * padding - tap) // stride + 1 for side, tap in zip(sides, taps, strict=True))
    return height, width


def parts_for(num_inner: int, num_outer: int, ghost_size: int, *, height: int, width: int) -> int | None:
    """Return how many parts a ghost batch of `num_outer` channels, summed over `num_inner`, is split into, or None."""
    launch = launch_for(num_inner, num_outer)
    tile = Tile.of(launch.pixels, num_images=ghost_size, height=height, width=width)
    return parts_of_ghost(tile, ghost_size, height=height, width=width)


def cut_ghost(
    tile: Tile, num_inner: int, num_outer: int, ghost_size: int, *, height: int, width: int
) -> tuple[int, int]:
    """Return the number of parts of a ghost batch, as `parts_for` does, and the tiles per part.

    >>> cut_ghost(Tile(images=1, rows=4, columns=32), 64, 64, 64, height=32, width=32)
    (128, 4)
    """
    num_parts = parts_for(num_inner, num_outer, ghost_size, height=height, width=width)
    num_tiles = tile.count(num_images=ghost_size, height=height, width=width)
    if num_parts is None or num_tiles % num_parts:
        raise ValueError(f"{num_tiles} tiles cannot be split into {num_parts} parts")
    return num_parts, num_tiles // num_parts


def launch_for(num_inner: int, num_outer: int) -> Launch:
    """Return the launch parameters for results of `num_outer` channels computed from `num_inner`."""
    if num_inner < 64:
        return Launch(pixels=256, channels=64, num_warps=4)
    if num_outer % 128:
        return Launch(pixels=128, channels=64, num_warps=4, num_stages=2)
    return Launch(pixels=128, channels=128, num_warps=8)


def weight_launch_for(num_inputs: int, num_outputs: int) -> WeightLaunch:
    """Return the launch parameters for gradients of filters with these numbers of channels."""
    if num_outputs % 128:
        return WeightLaunch(pixels=128, outputs=64, inputs=64, takes_row=True, num_warps=4)
    if num_inputs % 128:
        return WeightLaunch(pixels=128, outputs=128, inputs=64, takes_row=False, num_warps=4, num_stages=4)
    if num_inputs % 256:
        return WeightLaunch(pixels=128, outputs=128, inputs=128, takes_row=False, num_warps=8)
    return WeightLaunch(pixels=64, outputs=128, inputs=256, takes_row=False, num_warps=8)


def are_blocks(num_channels: int) -> bool:
    """Tell whether channels fill blocks of 64 well: padding the last block adds at most a fifth.

    >>> [number for number in range(16, 400, 16) if are_blocks(number)]
    [64, 112, 128, 160, 176, 192, 224, 240, 256, 272, 288, 304, 320, 336, 352, 368, 384]
    """
    in_blocks = -(-num_channels // CHANNELS_BY_ROWS) * CHANNELS_BY_ROWS
    return 5 * in_blocks <= 6 * num_channels


def row_weight_launch_for(num_outputs: int, num_images: int) -> RowWeightLaunch:
    """Return the launch parameters for filter gradients where rows are read once.

    Small batches are split into more parts; with many channels that is too many matmuls, so tiles are smaller instead.
    """
    is_cut_by_channels = num_outputs % 128 or (num_outputs >= 256 and num_images < 256)
    return RowWeightLaunch(outputs=64 if is_cut_by_channels else 128, num_programs=22 if num_images < 128 else 16)


def tiles_of_part(num_tiles: int, num_products: int, num_images: int, *, num_programs: int) -> int:
    """Return how many tiles a program adds up, if a run has about `num_programs` programs for each 64 images.

    >>> tiles_of_part(1024, 3, 64, num_programs=16)
    192
    """
    return max(1, min(num_tiles, round(num_tiles * num_products / (num_programs * num_images / 64))))


def _power_above(number: int) -> int:
    return 1 << (number - 1).bit_length()
