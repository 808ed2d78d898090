"""How plain containers, arrays and tensors are described: by their content."""

from __future__ import annotations

import collections
import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from isotherm.tasks.identity import origin
from isotherm.tasks.identity.walk import Walk


def sequence(walk: Walk, value: Any) -> object:
    """Describe a list, tuple or deque item by item."""
    bounded = isinstance(value, collections.deque) and value.maxlen is not None
    about = [["at most", value.maxlen]] if bounded else []
    return [type(value).__name__, *about, *(walk.describe(item) for item in value)]


def unordered(walk: Walk, value: Any) -> object:
    """Describe a set; the order of its items differs between processes."""
    return [type(value).__name__, *walk.unordered(value)]


def mapping(walk: Walk, value: Any) -> object:
    """Describe a dict item by item, in its order: a model may run through it."""
    return [type(value).__name__, *([walk.describe(key), walk.describe(item)] for key, item in list(value.items()))]


def slice_(walk: Walk, value: slice) -> object:
    """Describe a slice by its bounds."""
    return ["slice", *(walk.describe(part) for part in (value.start, value.stop, value.step))]


def buffer(walk: Walk, value: Any) -> object:
    """Describe a bytearray or a view of memory."""
    return [type(value).__name__, hashlib.sha256(bytes(value)).hexdigest()]


def array(walk: Walk, value: Any) -> object:
    """Describe an array or a scalar of NumPy."""
    items = np.asarray(value)
    held = walk.describe(getattr(value, "__dict__", None))  # the mask of a masked array, for example
    kind = [walk.describe(type(value), "instance")] if origin.is_users(value) else []
    if items.dtype.hasobject:
        return ["array", list(items.shape), held, *(walk.describe(item) for item in items.reshape(-1).tolist()), *kind]
    content = hashlib.sha256(np.ascontiguousarray(items).reshape(-1).view(np.uint8).data).hexdigest()
    return [type(value).__name__, repr(items.dtype), list(items.shape), held, content, *kind]


def tensor(walk: Walk, value: Tensor) -> object:
    """Describe a tensor by its class, attributes, shape and every value."""
    held = {name: walk.describe(item) for name, item in sorted(vars(value).items())}
    return [walk.describe(type(value), "instance"), held, value.requires_grad, tensor_content(value)]


def tensor_content(value: Tensor) -> list[object]:
    """Return the type, shape and hash of all values of a tensor.

    >>> tensor_content(torch.zeros(2)) == tensor_content(torch.zeros(4)[::2])
    True
    >>> tensor_content(torch.zeros(2)) == tensor_content(torch.tensor([0.0, 1e-30]))
    False
    """
    if is_lazy(value):
        return ["uninitialised", str(value.dtype)]
    about: list[object] = [str(value.dtype), list(value.shape), str(value.layout)]
    if value.layout is not torch.strided:
        dense = value.detach().to_dense()
        return [*about, tensor_content(dense)]
    if value.is_quantized:
        return [*about, _quantizer(value), tensor_content(value.int_repr())]
    if value.is_meta:
        return [*about, "meta"]
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    return [*about, hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()]


def _quantizer(value: Tensor) -> list[object]:
    """Return how the numbers of a quantized tensor are meant."""
    if value.qscheme() is torch.per_tensor_affine:
        return [str(value.qscheme()), repr(value.q_scale()), value.q_zero_point()]
    scales, zeros = value.q_per_channel_scales(), value.q_per_channel_zero_points()
    return [str(value.qscheme()), tensor_content(scales), tensor_content(zeros), value.q_per_channel_axis()]
