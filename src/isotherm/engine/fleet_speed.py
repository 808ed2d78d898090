"""How much faster a fleet is than slower ways to train, for what the log says of slow paths.

Measured on other networks than the user's: tables "CPU", "Number of runs and batch size" and "GPU" of
docs/performance.md, and there "What was tried" for streams.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

# How many times as many updates a second a fleet makes as a plain loop, by batch size.
SPEED_OF_FLEETS = {8: 29, 32: 12, 128: 4}
_ON_CPU: dict[str, Mapping[int, float]] = {"a small MLP": SPEED_OF_FLEETS}
_ON_GPU: dict[str, Mapping[int, float]] = {"an autoencoder": {64: 121, 4096: 20}, "a WRN-16-4": {64: 39, 1024: 3.6}}
# How many times as many with kernels for the convolutions of all runs as with every run on its own stream.
_SPEED_OF_KERNELS = 2.0


def one_by_one(device: torch.device | str = "cpu") -> str:
    """Return how much longer runs take one at a time.

    >>> one_by_one()
    'a small MLP takes 29 times as long that way at B = 8, 12 times at B = 32, 4 times at B = 128 (on one CPU core)'
    """
    is_on_gpu = torch.device(device).type == "cuda"
    networks = (_factors(*pair) for pair in (_ON_GPU if is_on_gpu else _ON_CPU).items())
    return f"{'; '.join(networks)} ({'on an H200' if is_on_gpu else 'on one CPU core'})"


def _factors(network: str, speeds: Mapping[int, float]) -> str:
    (first, factor), *others = speeds.items()
    rest = "".join(f", {times:g} times at B = {batch_size:,}" for batch_size, times in others)
    return f"{network} takes {factor:g} times as long that way at B = {first}{rest}"


def run_by_run() -> str:
    """Return how much longer runs take whose convolutions are computed run by run.

    >>> run_by_run()
    'a WRN-16-4 takes 2 times as long that way at B = 64 (12 runs, on an H200)'
    """
    return f"a WRN-16-4 takes {_SPEED_OF_KERNELS:g} times as long that way at B = 64 (12 runs, on an H200)"
