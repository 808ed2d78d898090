"""How the ghost batch norm kernels split their work: from the shape alone, so that equal shapes sum in equal order.

The rows of a ghost batch are split into parts, the channels into blocks; a program handles one part and one block, in
tiles that fit into registers. The constants come from counting registers and bytes in flight on an H100 or H200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Multiprocessors of an H100 or H200; a constant, so that the order of summation depends on the shape alone.
NUM_PROCESSORS = 132
# A program of the second kernel reads all parts of its ghost batch.
MOST_PARTS = 128
# A block of 64 channels is a row of 128 bytes, one cache line.
MOST_CHANNELS = 64
# Parts added up at once.
PARTS_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Launch parameters of a kernel.

    Args:
        values_per_warp: of a tile; 1024 is 32 per thread, so that two sums of each stay in registers.
        num_warps: of a program, if there are enough programs to fill the GPU several times.
        num_programs: approximate number, if there is enough work; more if a program would have over 16 tiles.
    """

    values_per_warp: int = 1_024
    num_warps: int = 4
    num_programs: int = 1_024


LAUNCH = Launch()


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A batch split into programs.

    >>> Split.of(num_ghosts=16, num_rows=65_536, num_channels=64).num_programs  # WRN-16-4, B = 1024
    1024
    >>> Split.of(num_ghosts=1, num_rows=65_536, num_channels=64).num_programs  # B = 64, larger programs
    128
    """

    num_ghosts: int
    num_rows: int  # of a ghost
    num_channels: int
    num_parts: int  # of a ghost
    rows_of_part: int
    rows_of_tile: int
    channels_of_block: int
    num_warps: int

    @classmethod
    def of(cls, *, num_ghosts: int, num_rows: int, num_channels: int, launch: Launch = LAUNCH) -> Split:
        """Return how a batch is split.

        A large batch gives many programs, several at a time on each multiprocessor. A small one gives one program for
        each, with up to four times as many warps: just as many loads are in flight, and fewer parts are added up.
        """
        channels = min(num_channels & -num_channels, MOST_CHANNELS)  # a power of two that divides
        tile, num_warps = launch.values_per_warp * launch.num_warps, launch.num_warps
        num_tiles = num_ghosts * num_rows * num_channels / tile
        if num_tiles >= 16 * NUM_PROCESSORS:
            tiles = min(1 << max(round(math.log2(num_tiles / launch.num_programs)), 0), 16)
        else:
            factor = max(factor for factor in (1, 2, 4) if factor == 1 or num_tiles >= 0.9 * factor * NUM_PROCESSORS)
            tile, num_warps = factor * tile, factor * num_warps
            tiles = round(num_tiles / factor / NUM_PROCESSORS)
        rows = tile // channels
        in_ghost = _ceil(num_rows, rows)
        tiles = max(tiles, _ceil(in_ghost, MOST_PARTS), 1)
        split = cls(
            num_ghosts=num_ghosts,
            num_rows=num_rows,
            num_channels=num_channels,
            num_parts=_ceil(in_ghost, tiles),
            rows_of_part=tiles * rows,
            rows_of_tile=rows,
            channels_of_block=channels,
            num_warps=num_warps,
        )
        # Offsets within a part, and of the partial sums, are 32-bit in the kernels.
        assert (split.rows_of_part + rows) * num_channels < 2**31
        assert 2 * num_ghosts * split.num_parts * num_channels < 2**31
        return split

    @property
    def num_programs(self) -> int:
        """The number of programs of a kernel."""
        return self.num_ghosts * self.num_parts * (self.num_channels // self.channels_of_block)

    def arguments(self) -> dict[str, int | bool]:
        """Return the arguments common to all kernels."""
        return {
            "num_rows": self.num_rows,
            "num_parts": self.num_parts,
            "rows_of_part": self.rows_of_part,
            "C": self.num_channels,
            "BLOCK_R": self.rows_of_tile,
            "BLOCK_C": self.channels_of_block,
            "num_warps": self.num_warps,
            "enable_fp_fusion": True,  # in both directions, so that both see the same sign before a ReLU
        }


def parts_at_once(num_parts: int) -> int:
    """Return how many of the parts the second kernel adds up at once, a power of two."""
    return min(PARTS_AT_ONCE, 1 << (num_parts - 1).bit_length())


def _ceil(amount: int, size: int) -> int:
    return -(-amount // size)
