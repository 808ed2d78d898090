"""Second derivatives of a function of tensors, and which layers of a module have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp

ByAutograd = Literal["reverse_over_reverse", "forward_over_reverse"]
Tensors = dict[str, Tensor]


def second_derivative(
    function: Callable[[Tensors], Tensor], point: Tensors, *, differentiation: ByAutograd
) -> Callable[[Tensors], Tensors]:
    """Return the Hessian-vector product of a function at a point, as a function of the vector."""
    if differentiation == "forward_over_reverse":
        return lambda tangent: jvp(grad(function), (point,), (tangent,))[1]
    pull_back = vjp(grad(function), point)[1]
    return lambda tangent: pull_back(tangent)[0]


def failing_layers(
    module: nn.Module,
    forward: Callable[[], Tensor],
    loss: Callable[[Tensor], Tensor],
    *,
    differentiation: ByAutograd,
) -> list[str]:
    """Return the innermost layers whose own second derivative fails on their actual inputs, or else the loss.

    Args:
        module: whose layers are tried.
        forward: calls it on some examples and returns its output.
        loss: of that output.
        differentiation: the method that fails.
    """
    calls: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {}

    def note(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[name] = part, args, kwargs

    hooks = [
        part.register_forward_pre_hook(partial(note, name), with_kwargs=True) for name, part in module.named_modules()
    ]
    try:
        with torch.no_grad():
            output = forward()
    finally:
        for hook in hooks:
            hook.remove()
    failing: list[str] = []
    for name, (part, args, kwargs) in reversed(calls.items()):  # inner layers are called after outer ones
        holds_one = bool(failing) if name == "" else any(inner.startswith(f"{name}.") for inner in failing)
        if not holds_one and _fails(*_squared_output(part, args, kwargs), differentiation=differentiation):
            failing.append(name)
    of_output = {"output": output}
    if not failing and _fails(lambda tensors: loss(tensors["output"]), of_output, differentiation=differentiation):
        return ["the loss"]
    kinds = {name: type(part).__name__ for name, (part, _, _) in calls.items()}
    return [f"layer {name!r} ({kinds[name]})" if name else f"the {kinds[name]} itself" for name in failing[::-1]]


def _fails(function: Callable[[Tensors], Tensor], point: Tensors, *, differentiation: ByAutograd) -> bool:
    if not point:
        return False
    try:
        product = second_derivative(function, point, differentiation=differentiation)
        product({name: torch.ones_like(value) for name, value in point.items()})
    except RuntimeError:
        return True
    return False


def _squared_output(
    part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[[Tensors], Tensor], Tensors]:
    """Return the sum of a layer's squared outputs as a function of its parameters and inputs, and their values."""
    inputs = {f"input {index}": value for index, value in enumerate(args) if _is_real(value)}
    parameters = {f"parameter {name}": value for name, value in part.named_parameters() if _is_real(value)}

    def function(tensors: Tensors) -> Tensor:
        replaced = [tensors.get(f"input {index}", value) for index, value in enumerate(args)]
        own = {name: tensors[f"parameter {name}"] for name, value in part.named_parameters() if _is_real(value)}
        buffers = {name: buffer.clone() for name, buffer in part.named_buffers()}
        output = functional_call(part, (own, buffers), tuple(replaced), kwargs)
        outputs = output if isinstance(output, tuple | list) else [output]
        return torch.stack([value.square().sum() for value in outputs if _is_real(value)]).sum()

    return function, {**inputs, **parameters}


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
