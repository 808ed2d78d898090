"""What to do about a model that cannot take its inputs, or returns something other than a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def remedy_for_inputs(module: nn.Module, x: Tensor, *, is_sequence: bool) -> str:
    """Return how inputs come to fit a model that raised an error for them.

    Args:
        module: the model.
        x: a few inputs.
        is_sequence: they are tokens.
    """
    if x.is_complex():
        return "complex numbers are two real ones: use torch.view_as_real(x)"
    if not x.is_floating_point() and not is_sequence:
        return "whole numbers are passed on as such: for measurements or pixels use x.float(), or a transform"
    layer = next((part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d)), None)
    if isinstance(layer, nn.Linear):
        return _for_linear(layer, x)
    if isinstance(layer, nn.Conv2d):
        return _for_convolution(layer, x)
    return "the first dimension of inputs counts the examples: change the inputs or the first layer"


def _for_linear(layer: nn.Linear, x: Tensor) -> str:
    wanted = layer.in_features
    if x.ndim > 2 and x.shape[1:].numel() == wanted:
        return "start the model with nn.Flatten()"
    if x.ndim == 1:
        return "inputs of one value each are a column: use x[:, None]"
    return f"an input has {x.shape[-1]} values in its last dimension, the first linear layer takes {wanted}: change one"


def _for_convolution(layer: nn.Conv2d, x: Tensor) -> str:
    channels = layer.in_channels
    if x.ndim == 3 and channels == 1:
        return "images have a dimension of channels: use x[:, None]"
    if x.ndim == 4 and x.shape[1] != channels and x.shape[-1] == channels:
        return "channels come before height and width: use torch.as_tensor(x).movedim(-1, 1)"
    return f"the first convolution takes images of shape (n, {channels}, height, width): change the images or the layer"


def what_it_returns(output: Any) -> str:
    """Return what a model returns in place of a tensor, and how it comes to return one."""
    if isinstance(output, Mapping) and output:
        names, chosen = ", ".join(map(repr, output)), f"[{next(iter(output))!r}]"
        kind = f"a {type(output).__name__} of {names}"
    elif isinstance(output, tuple | list):
        chosen, kind = "[0]", f"a {type(output).__name__} of {len(output)}"
    else:
        return f"{type(output).__name__}; let forward return one tensor"
    return (
        f"{kind}; let forward return one tensor, e.g. output{chosen}, or wrap the model in a module whose forward is "
        f"return self.model(x){chosen}"
    )
