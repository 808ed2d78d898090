"""CUDA graphs: many small operations captured once and replayed, which is faster than launching each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isotherm.kernels.building import built_first

# Between two replays a GPU pauses for some microseconds, so several calls are also captured as one graph.
SEVERAL = 4


class Recording:
    """A function's operations as a CUDA graph, and perhaps `SEVERAL` calls in a row as another."""

    def __init__(self, once: torch.cuda.CUDAGraph, several: torch.cuda.CUDAGraph | None) -> None:
        self._once, self._several = once, several

    def play(self, times: int = 1) -> None:
        """Replay the function a number of times."""
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
    """Capture a function; the tensors it works on must stay where they are in memory.

    Args:
        function: takes and returns nothing; reads and writes tensors that it holds.
        keep: the tensors it changes; they are restored after the calls that precede the capture: one that finds out
            which kernels to build, and two to warm up.
        stream: to capture on.
        also_several: capture `SEVERAL` calls as one graph too.
    """
    before = [tensor.clone() for tensor in keep]
    side = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(side):
            built_first(function, side.device)
            _restore(keep, before)
            for _ in range(2):
                function()
        side.synchronize()
        once = _graph(function, 1, side)
        several = _graph(function, SEVERAL, side, beside=once) if also_several else None
        _restore(keep, before)
    torch.cuda.synchronize()
    return Recording(once, several)


def _restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def _graph(
    function: Callable[[], None], times: int, stream: torch.cuda.Stream, *, beside: torch.cuda.CUDAGraph | None = None
) -> torch.cuda.CUDAGraph:
    """Capture a number of calls. Two graphs that are never replayed at the same time share their temporary memory."""
    graph = torch.cuda.CUDAGraph()
    pool = None if beside is None else beside.pool()
    # What other threads do meanwhile, such as reading the next images, is not captured.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        for _ in range(times):
            function()
    return graph
