"""Programs of many small operations on a GPU, recorded once and played back: launching them one by one takes longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Between one recording and the next a GPU pauses for some microseconds, so that many are also one.
SEVERAL = 4


class Recording:
    """A function's operations, once and `SEVERAL` times in a row."""

    def __init__(self, once: torch.cuda.CUDAGraph, several: torch.cuda.CUDAGraph | None) -> None:
        self._once, self._several = once, several

    def play(self, times: int = 1) -> None:
        """Do it so many times."""
        num_several = 0 if self._several is None else times // SEVERAL
        for _ in range(num_several):
            assert self._several is not None
            self._several.replay()
        for _ in range(times - num_several * SEVERAL):
            self._once.replay()


def capture(
    function: Callable[[], None],
    *,
    keep: Sequence[Tensor],
    stream: torch.cuda.Stream | None = None,
    also_several: bool = False,
) -> Recording:
    """Return a function's operations as a recording; what it works on must stay where it is in memory.

    Args:
        function: without arguments or result; reads and writes tensors it holds.
        keep: tensors it changes; the trial calls that precede the recording leave no trace in them.
        stream: to record on.
        also_several: record it also as often as it is often played in a row.
    """
    before = [tensor.clone() for tensor in keep]
    side = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(2):
                function()
        side.synchronize()
        once = _graph(function, 1, side)
        several = _graph(function, SEVERAL, side, beside=once) if also_several else None
        for tensor, value in zip(keep, before, strict=True):
            tensor.copy_(value)
    torch.cuda.synchronize()
    return Recording(once, several)


def _graph(
    function: Callable[[], None], times: int, stream: torch.cuda.Stream, *, beside: torch.cuda.CUDAGraph | None = None
) -> torch.cuda.CUDAGraph:
    """Record a function; two that are never played at the same time share the memory of what they make on the way."""
    graph = torch.cuda.CUDAGraph()
    pool = None if beside is None else beside.pool()
    # What other threads do meanwhile, reading the next images for example, is no part of the recording.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        for _ in range(times):
            function()
    return graph
