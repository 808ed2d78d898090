"""How much faster a fleet is than a plain loop, for what the log says of slow paths."""

from __future__ import annotations

# How many times as many updates a second a fleet makes on one core as a plain loop, by batch size: an MLP
# 40-100-100-10, tables "CPU" and "Number of runs and batch size" of docs/performance.md.
SPEED_OF_FLEETS = {8: 29, 32: 12, 128: 4}


def one_by_one() -> str:
    """Return how much longer runs take one at a time.

    >>> one_by_one()
    'a small MLP takes 29 times as long that way at B = 8, 12 times at B = 32, 4 times at B = 128 (on one CPU core)'
    """
    (first, factor), *others = SPEED_OF_FLEETS.items()
    rest = "".join(f", {times} times at B = {batch_size}" for batch_size, times in others)
    return f"a small MLP takes {factor} times as long that way at B = {first}{rest} (on one CPU core)"
