"""Additions of images, which kernels can do on the way."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from isotherm.engine.graph.operands import Addition
from isotherm.kernels.layout import has_channels_last


def image_addition(node: Any) -> Addition | None:
    """Return what a node adds, where both are images of equal shape, type and layout with the channels last."""
    addition = Addition.of(node)
    if addition is None or node.kwargs:
        return None
    parts = [part for part in (node, addition.left, addition.right) if isinstance(part, fx.Node)]
    values = [value for part in parts if isinstance(value := part.meta.get("val"), Tensor)]
    is_plain = len(values) == 3 and len({(value.shape, value.stride(), value.dtype) for value in values}) == 1
    return addition if is_plain and values[0].ndim >= 4 and has_channels_last(values[0]) else None
