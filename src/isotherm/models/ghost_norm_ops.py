"""Ghost batch norm with ReLU as single operations, which a trace records whole: kernels on a GPU, PyTorch on a CPU.

`GhostBatchNorm2d` is the definition and says in its own file what is computed; here is the same for images with the
channels last, computed in fewer passes over memory. What is in this file and in `kernels` therefore is no part of a
run's identity, as little as the rest of the engine is.

    isotherm::ghost_norm             x -> y, means, variances
    isotherm::ghost_norm_of_sum      a, b -> a + b, y, means, variances
    isotherm::ghost_norm_backward    gradient of y -> gradients of x (plus one given), of weight and of bias by ghost

Shape suffixes: G ghosts, N examples of each, C channels, H x W pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isotherm.models.kernels import ARE_ASKED_FOR, HAS_TRITON
from isotherm.models.operations import operation

_FULL = (torch.float32, torch.float64)
_SETTINGS = "Tensor weight, Tensor bias, int ghost_size, float eps, bool relu"


def fits(x: Tensor) -> bool:
    """Tell whether the kernels are made for a batch of images: on a GPU, in bfloat16, channels last, not under `vmap`.

    Channels come in multiples of 16, or the kernels would read memory in small pieces.
    """
    return (
        x.is_cuda
        and HAS_TRITON
        and ARE_ASKED_FOR
        and x.dtype == torch.bfloat16
        and x.ndim == 4
        and x.shape[1] % 16 == 0
        and not _is_under_vmap()
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def ghost_norm(
    x: Tensor, weight: Tensor, bias: Tensor, *, ghost_size: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x normalised by ghosts, scaled, shifted and rectified if asked for; means and variances (G, C).

    Args:
        x: images (batch, channels, height, width), channels last in memory.
        weight: scale by channel.
        bias: shift by channel.
        ghost_size: examples that share their statistics; divides the batch.
        eps: added to the variances, which are the biased ones.
        relu: replace what is negative by zero.
    """
    y, mean_GC, var_GC = _GhostNorm.apply(x, weight, bias, ghost_size, eps, relu)  # type: ignore[no-untyped-call]
    return y, mean_GC, var_GC


class _GhostNorm(torch.autograd.Function):
    """The operations, differentiable once; statistics are no function of anything to the derivative."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, relu: bool) -> Any:
        return FORWARD(x, weight, bias, ghost_size, eps, relu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, _, ctx.eps, ctx.relu = inputs
        _, mean_GC, var_GC = output
        ctx.mark_non_differentiable(mean_GC, var_GC)
        ctx.save_for_backward(x, weight, bias, mean_GC, var_GC)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean_GC, var_GC = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)  # a mean over pixels gives back something else
        gradient = _Gradient.forward if torch.compiler.is_compiling() else _Gradient.apply  # a compiler reads one level
        dx, weight_GC, bias_GC = gradient(dy, x, mean_GC, var_GC, weight, bias, ctx.eps, ctx.relu)
        return dx, weight_GC.sum(dim=0).to(weight.dtype), bias_GC.sum(dim=0).to(bias.dtype), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *_: Any) -> Any:
        raise RuntimeError(
            "ghost_norm has no kernels for several runs at once; GhostBatchNorm2d itself works under vmap"
        )


class _Gradient(torch.autograd.Function):
    """The gradient; a function of its own, as `torch.func` would differentiate it again if asked to."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return BACKWARD(*arguments, None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("ghost_norm has no second derivative; GhostBatchNorm2d has one where it uses no kernels")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *_: Any) -> Any:
        raise RuntimeError("ghost_norm has no kernels for several gradients at once")


def _is_under_vmap() -> bool:
    """Tell whether `vmap` is anywhere around; a compiler that reads this code is told no."""
    if torch.compiler.is_compiling():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in stack)


# -- the operations on a CPU ------------------------------------------------------------------------------------------


@operation("ghost_norm", f"(Tensor x, {_SETTINGS}) -> (Tensor, Tensor, Tensor)")
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, bias)
    return _normalised(x, weight, bias, _num_ghosts(x, ghost_size), eps, relu)


@operation("ghost_norm_of_sum", f"(Tensor a, Tensor b, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)")
def _forward_of_sum(
    a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(a, weight, bias, b)
    total = a + b
    return total, *_normalised(total, weight, bias, _num_ghosts(a, ghost_size), eps, relu)


@operation(
    "ghost_norm_backward",
    "(Tensor dy, Tensor x, Tensor mean_GC, Tensor var_GC, Tensor weight, Tensor bias, float eps, bool relu, "
    "Tensor? other)"
    " -> (Tensor, Tensor, Tensor)",
)
def _backward(
    dy: Tensor,
    x: Tensor,
    mean_GC: Tensor,
    var_GC: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    other: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, weight, bias, dy, *(() if other is None else (other,)))
    wide = var_GC.dtype
    mean_G1C11, var_G1C11 = (t.view(len(t), 1, -1, 1, 1) for t in (mean_GC, var_GC))
    inverse_G1C11 = torch.rsqrt(var_G1C11 + eps)
    scale_G1C11 = weight.to(wide).view(-1, 1, 1) * inverse_G1C11
    dz_GNCHW, x_GNCHW = (t.to(wide).view(len(mean_GC), -1, *x.shape[1:]) for t in (dy, x))
    centred = x_GNCHW - mean_G1C11
    if relu:
        z = centred * scale_G1C11 + bias.to(wide).view(-1, 1, 1)
        dz_GNCHW = torch.where(z <= 0, 0, dz_GNCHW)
    pixels = (1, 3, 4)
    sums_GC = dz_GNCHW.sum(dim=pixels)
    products_GC = (dz_GNCHW * centred).sum(dim=pixels) * inverse_G1C11.view(len(mean_GC), -1)
    num = x.numel() // mean_GC.numel()
    mean_dz, mean_product = (t.view(len(t), 1, -1, 1, 1) / num for t in (sums_GC, products_GC))
    dx = (scale_G1C11 * (dz_GNCHW - mean_dz - centred * inverse_G1C11 * mean_product)).view(x.shape)
    return _stored_like(x, dx if other is None else dx + other), products_GC, sums_GC


def _normalised(
    x: Tensor, weight: Tensor, bias: Tensor, num_ghosts: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.dtype if x.dtype in _FULL else torch.float32
    x_GNCHW = x.to(wide).view(num_ghosts, -1, *x.shape[1:])
    var_G1C11, mean_G1C11 = torch.var_mean(x_GNCHW, dim=(1, 3, 4), correction=0, keepdim=True)
    scale_G1C11 = weight.to(wide).view(-1, 1, 1) * torch.rsqrt(var_G1C11 + eps)
    y = (x_GNCHW - mean_G1C11) * scale_G1C11 + bias.to(wide).view(-1, 1, 1)
    y = _stored_like(x, (y.relu() if relu else y).view(x.shape))
    return y, mean_G1C11.view(num_ghosts, -1), var_G1C11.view(num_ghosts, -1)


def _stored_like(x: Tensor, values: Tensor) -> Tensor:
    return torch.empty_like(x).copy_(values)


def _num_ghosts(x: Tensor, ghost_size: int) -> int:
    if ghost_size < 1 or len(x) == 0 or len(x) % ghost_size:
        raise ValueError(f"a batch of {len(x)} cannot be cut into ghosts of {ghost_size}")
    return len(x) // ghost_size


def _check(x: Tensor, weight: Tensor, bias: Tensor, *others: Tensor) -> None:
    """Refuse what the kernels would read wrongly."""
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(f"images (batch, channels, height, width) are normalised, not {tuple(x.shape)} of {x.dtype}")
    if not weight.shape == bias.shape == x.shape[1:2] or not (weight.is_contiguous() and bias.is_contiguous()):
        raise ValueError(f"{x.shape[1]} channels need as many scales and shifts, one after another in memory")
    for tensor in (x, *others):
        if tensor.shape != x.shape or tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(f"tensors of shape {tuple(tensor.shape)} and {tuple(x.shape)} do not go together")
        if not tensor.is_contiguous(memory_format=torch.channels_last):
            raise ValueError(f"images of strides {tensor.stride()} do not have their channels last in memory")


# As a traced program names them.
FORWARD = torch.ops.isotherm.ghost_norm.default
FORWARD_OF_SUM = torch.ops.isotherm.ghost_norm_of_sum.default
BACKWARD = torch.ops.isotherm.ghost_norm_backward.default


# -- on a GPU ---------------------------------------------------------------------------------------------------------


@_forward.register_kernel("cuda")
def _(x: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, relu: bool) -> tuple[Tensor, ...]:
    from isotherm.models.kernels import ghost_norm as kernels

    _check_for_kernels(x, weight, bias)
    return kernels.forward(x, weight, bias, num_ghosts=_num_ghosts(x, ghost_size), eps=eps, relu=relu)[1:]


@_forward_of_sum.register_kernel("cuda")
def _(
    a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, relu: bool
) -> tuple[Tensor, ...]:
    from isotherm.models.kernels import ghost_norm as kernels

    _check_for_kernels(a, weight, bias, b)
    return kernels.forward(a, weight, bias, num_ghosts=_num_ghosts(a, ghost_size), eps=eps, relu=relu, other=b)


@_backward.register_kernel("cuda")
def _(
    dy: Tensor,
    x: Tensor,
    mean_GC: Tensor,
    var_GC: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    other: Tensor | None,
) -> tuple[Tensor, ...]:
    from isotherm.models.kernels import ghost_norm as kernels

    _check_for_kernels(x, weight, bias, dy, *(() if other is None else (other,)))
    return kernels.backward(dy, x, mean_GC, var_GC, weight, bias, eps=eps, relu=relu, other=other)


def _check_for_kernels(x: Tensor, weight: Tensor, bias: Tensor, *others: Tensor) -> None:
    _check(x, weight, bias, *others)
    if x.dtype == torch.float64 or x.shape[1] % 16:
        raise ValueError(f"no kernel normalises {x.shape[1]} channels of {x.dtype}: multiples of 16, not float64")


# -- what is known without values -------------------------------------------------------------------------------------


def _statistics_like(x: Tensor, num_ghosts: int) -> Tensor:
    return x.new_empty((num_ghosts, x.shape[1]), dtype=x.dtype if x.dtype in _FULL else torch.float32)


@_forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, relu: bool) -> tuple[Tensor, ...]:
    num = len(x) // ghost_size
    return torch.empty_like(x), _statistics_like(x, num), _statistics_like(x, num)


@_forward_of_sum.register_fake
def _(
    a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, ghost_size: int, eps: float, relu: bool
) -> tuple[Tensor, ...]:
    num = len(a) // ghost_size
    return torch.empty_like(a), torch.empty_like(a), _statistics_like(a, num), _statistics_like(a, num)


@_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    mean_GC: Tensor,
    var_GC: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    other: Tensor | None,
) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(mean_GC), torch.empty_like(mean_GC)
