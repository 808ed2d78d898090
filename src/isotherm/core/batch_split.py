"""How a batch is cut into parts that are computed one after another, or on several devices.

Ghost batch norm normalises groups of examples, so parts are made of whole groups; then the mean over parts, weighted by
their sizes, is the mean over the batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable


def unit_of(batch_size: int, ghost_sizes: Iterable[int] = ()) -> int:
    """Return the number of consecutive examples that have to stay together.

    Args:
        batch_size: examples of an update.
        ghost_sizes: of the network's ghost batch norm layers; a smaller batch is one ghost batch.

    >>> unit_of(256), unit_of(256, [64, 32]), unit_of(16, [64])
    (1, 64, 16)
    """
    return math.lcm(*(min(size, batch_size) for size in ghost_sizes))


def split_batch(batch_size: int, num_parts: int, *, unit: int = 1) -> tuple[range, ...]:
    """Return the positions of each part: consecutive, of whole units, sizes at most one unit apart, the larger first.

    Args:
        batch_size: a multiple of `unit`.
        num_parts: at most as many as there are units.
        unit: examples that stay together.

    >>> split_batch(256, 3, unit=64)
    (range(0, 128), range(128, 192), range(192, 256))
    """
    num_units, rest = divmod(batch_size, unit)
    assert rest == 0, f"{batch_size} examples are no whole units of {unit}"
    assert 1 <= num_parts <= num_units, f"{num_units} units cannot be {num_parts} parts"
    each, larger = divmod(num_units, num_parts)
    bounds = [unit * (each * part + min(part, larger)) for part in range(num_parts + 1)]
    return tuple(range(start, stop) for start, stop in itertools.pairwise(bounds))


def part_sizes(batch_size: int, *, unit: int = 1) -> list[int]:
    """Return the sizes that equal parts of a batch can have, the largest first.

    >>> part_sizes(256, unit=64), part_sizes(6)
    ([256, 128, 64], [6, 3, 2, 1])
    """
    num_units = batch_size // unit
    return [batch_size // num for num in range(1, num_units + 1) if num_units % num == 0]
