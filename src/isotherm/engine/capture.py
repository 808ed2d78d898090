"""Programs of many small operations on a GPU, recorded once and played back: launching them one by one takes longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def capture(
    function: Callable[[], None], *, keep: Sequence[Tensor], stream: torch.cuda.Stream | None = None
) -> torch.cuda.CUDAGraph:
    """Return a function's operations as a graph; what it works on must stay where it is in memory.

    Args:
        function: without arguments or result; reads and writes tensors it holds.
        keep: tensors it changes; the trial calls that precede the recording leave no trace in them.
        stream: to record on.
    """
    before = [tensor.clone() for tensor in keep]
    side = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(2):
                function()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile, reading the next images for example, is no part of the recording.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            function()
        for tensor, value in zip(keep, before, strict=True):
            tensor.copy_(value)
    torch.cuda.synchronize()
    return graph
