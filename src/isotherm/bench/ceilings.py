"""The limits of a machine: FLOP per second of a matmul, bytes per second of a copy, and floors from both."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from isotherm.core.machine import num_cores
from isotherm.core.records import Precision
from isotherm.engine.placed_task import matmuls_in_tf32
from isotherm.tasks.seeding import seeded

# Sides of square matrices; the fastest counts.
SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "mixed": torch.bfloat16, "tf32": torch.float32}
BYTES_PER_VALUE = 4
# Reads and writes of every parameter in an update; see `bytes_per_step`.
TRANSFERS = 8
NUM_TRIES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """The least work of one update of one run, and how fast the machine could do it.

    Args:
        flop: of a forward and a backward pass.
        num_bytes: see `bytes_per_step`.
        flop_per_second: of a large matmul in the workload's precision.
        bytes_per_second: of a copy as large as the states of all runs together.
    """

    flop: float
    num_bytes: float
    flop_per_second: float
    bytes_per_second: float

    @property
    def run_steps_per_second(self) -> float:
        """The largest speed that both limits allow.

        >>> Floor(flop=10.0, num_bytes=4.0, flop_per_second=100.0, bytes_per_second=20.0).run_steps_per_second
        5.0
        """
        return min(self.flop_per_second / self.flop, self.bytes_per_second / self.num_bytes)


def bytes_per_step(num_parameters: int, precision: Precision = "float32") -> int:
    """Return the least memory traffic of one update of one run: 8 transfers per parameter, of 4 bytes in float32.

    SGD with momentum reads the weight twice (forward and backward pass), writes the gradient and reads it again, reads
    and writes the velocity, and reads and writes the weight. In mixed precision the first four are of 2 bytes, and a
    bfloat16 copy of the weight is written, another 2. Activations and whatever stays in registers are left out; no
    network larger than the registers can avoid these transfers.

    >>> bytes_per_step(15_210), bytes_per_step(1, "mixed")
    (486720, 26)
    """
    if precision == "mixed":
        half = BYTES_PER_VALUE // 2
        return (TRANSFERS // 2 * half + TRANSFERS // 2 * BYTES_PER_VALUE + half) * num_parameters
    width = 2 * BYTES_PER_VALUE if precision == "float64" else BYTES_PER_VALUE
    return TRANSFERS * width * num_parameters


def matmul_flop_per_second(device: str, precision: Precision) -> float:
    """Return the FLOP per second of the fastest large matmul of normally distributed numbers.

    Equal numbers flip fewer bits, which saves power, and a power-limited GPU multiplies them faster than real data.
    """
    best = 0.0
    for size in SIZES[device]:
        left, right = _normal(2, size, size, device=device, dtype=DTYPES[precision])
        out = torch.empty_like(left)
        product = Repeated(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), device)  # type: ignore[misc]
        with matmuls_in_tf32(precision == "tf32"):
            best = max(best, 2.0 * size**3 / product.least_seconds())
    return best


def copy_bytes_per_second(device: str, num_bytes: int) -> float:
    """Return bytes read and written per second by a copy, source and target together as large as `num_bytes`.

    As large as the training state, since a smaller copy would run in the cache.
    """
    num = max(2**18, num_bytes // 2 // BYTES_PER_VALUE)
    source = _normal(num, device=device, dtype=torch.float32)
    target = torch.empty_like(source)
    return 2.0 * BYTES_PER_VALUE * num / Repeated(lambda: target.copy_(source), device).least_seconds()


def _normal(*shape: int, device: str, dtype: torch.dtype) -> Tensor:
    with seeded(0, "ceilings"):  # a generator of its own, so that no other random numbers change
        return torch.randn(shape, device=device, dtype=dtype)


class Repeated:
    """An operation to be timed."""

    def __init__(self, operation: Callable[[], object], device: str) -> None:
        self._operation, self._device = operation, device

    def least_seconds(self, *, seconds: float = 0.02) -> float:
        """Return the shortest time of one call over a few windows of calls, on a CPU with all threads and with one."""
        return min(self._least_seconds(num, seconds) for num in ({num_cores(), 1} if self._device == "cpu" else {1}))

    def _least_seconds(self, num_threads: int, seconds: float) -> float:
        with _threads(num_threads):
            self.time(2)
            num = max(1, min(100, int(seconds / self.time(1))))
            return min(self.time(num) for _ in range(NUM_TRIES)) / num

    def time(self, num: int) -> float:
        """Return the seconds of a number of calls."""
        self._wait()
        start = time.perf_counter()
        for _ in range(num):
            self._operation()
        self._wait()
        return max(1e-9, time.perf_counter() - start)

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def _threads(num: int) -> Iterator[None]:
    """Let PyTorch use this many threads within this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)
