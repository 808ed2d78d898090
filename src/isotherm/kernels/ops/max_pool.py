"""Max pooling of many runs' images by windows that do not overlap, in plain PyTorch that a compiler fuses.

PyTorch's own gradient reads 64-bit indices, one for every window, in another memory layout than that of the images, and
a compiler leaves it as it is. Here a window remembers in one byte which of its pixels is the largest.

Shape suffixes: B examples, C channels, H x W pixels; windows have Y x X pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isotherm.kernels import availability
from isotherm.kernels.layout import has_channels_last, is_under_one_vmap, of_all_runs, runs_first

# Up to this many pixels Inductor writes a reduction out, and fuses it with what comes before and after.
LARGEST_WINDOW = 7


def max_pool(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """Return what `functional.max_pool2d` returns for a run's images, or None where PyTorch is to be asked itself."""
    sides = _pair(kernel_size)
    is_plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not return_indices
    if not is_plain or (stride and _pair(stride) != sides) or not fits(input, *sides):
        return None
    y: Tensor
    y, _ = _MaxPool.apply(input, *sides)  # type: ignore[no-untyped-call]
    return y


def fits(x: Tensor, rows: int, columns: int) -> bool:
    """Tell whether windows of this size tile images of many runs, which have their channels last, on a GPU."""
    if not (availability.are_available(x.device) and x.ndim == 4 and x.is_floating_point() and is_under_one_vmap()):
        return False
    tiles = not (x.shape[-2] % rows or x.shape[-1] % columns)
    images = of_all_runs(x)
    return tiles and rows * columns <= LARGEST_WINDOW and images is not None and has_channels_last(images)


def _pair(values: int | Sequence[int]) -> tuple[int, int]:
    """Return a number for rows and one for columns.

    >>> _pair(2), _pair([3]), _pair((1, 2))
    ((2, 2), (3, 3), (1, 2))
    """
    given = [values] if isinstance(values, int) else list(values)
    return given[0], given[-1]


def pooled(x: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the largest pixel of every window, and its number in the window, row by row; of several the first.

    Both have the shape (..., C, H/Y, W/X) and the channels last in memory.
    """
    *others, num_channels, height, width = x.shape
    shape = (*others, height // rows, rows, width // columns, columns, num_channels)
    windows = x.movedim(-3, -1).view(shape)
    y = windows.amax((-4, -2))
    is_smaller = windows != y.unsqueeze(-3).unsqueeze(-2)
    numbers = _numbers(x, rows, columns).expand(windows.shape)
    first = numbers.masked_fill(is_smaller, rows * columns).amin((-4, -2))
    return y.movedim(-1, -3), first.movedim(-1, -3)


def gradient(dy: Tensor, first: Tensor, rows: int, columns: int) -> Tensor:
    """Return the gradient of the images: that of a window goes to its largest pixel."""
    of_windows, largest = (values.movedim(-3, -1).unsqueeze(-3).unsqueeze(-2) for values in (dy, first))
    is_smaller = largest != _numbers(dy, rows, columns)
    windows = of_windows.expand(is_smaller.shape).masked_fill(is_smaller, 0.0)
    return windows.flatten(-5, -4).flatten(-3, -2).movedim(-1, -3)


def _numbers(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return the numbers of the pixels of a window, shape (Y, 1, X, 1)."""
    return torch.arange(rows * columns, dtype=torch.uint8, device=x.device).view(rows, 1, columns, 1)


class _MaxPool(torch.autograd.Function):
    """The operation, differentiable once; the pixels' numbers are not differentiable."""

    @staticmethod
    def forward(x: Tensor, rows: int, columns: int) -> Any:
        return pooled(x, rows, columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, ctx.rows, ctx.columns = inputs
        _, first = output
        ctx.mark_non_differentiable(first)
        ctx.save_for_backward(first)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        (first,) = ctx.saved_tensors
        dx: Tensor = _Gradient.apply(dy, first, ctx.rows, ctx.columns)  # type: ignore[no-untyped-call]
        return dx, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _MaxPool.apply(*runs_first(info, in_dims, arguments)), (0, 0)  # type: ignore[no-untyped-call]


class _Gradient(torch.autograd.Function):
    """The gradient, a function of its own so that a second derivative is refused and not wrong."""

    @staticmethod
    def forward(dy: Tensor, first: Tensor, rows: int, columns: int) -> Tensor:
        return gradient(dy, first, rows, columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "max pooling of many runs has no second derivative; set ISOTHERM_KERNELS=0 to run without kernels"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return _Gradient.apply(*runs_first(info, in_dims, arguments)), 0  # type: ignore[no-untyped-call]
