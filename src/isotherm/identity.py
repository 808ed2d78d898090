"""Content hashes of data and models: what makes two runs the same run."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isotherm.errors import UserError
from isotherm.records import content_hash
from isotherm.seeding import initial_model

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)


def data_id(splits: Mapping[str, tuple[Tensor, Tensor]]) -> str:
    """Return the hash of every value, type and shape of the splits.

    >>> x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    >>> data_id({"train": (x, y)}) == data_id({"train": (x.clone(), y.clone())})
    True
    >>> data_id({"train": (x, y)}) == data_id({"train": (x + 1, y)})
    False
    """
    digest = hashlib.sha256()
    for name, split in splits.items():
        for tensor in split:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def model_id(model: Callable[[], nn.Module], *, loss: Any, metric: Any, version: str = "") -> str:
    """Return the hash of all that defines a module's computation, as far as it can be read off.

    Hashed: sources of the builder, of module classes outside torch, of loss and metric; structure, plain attributes
    of every submodule, shapes and types of parameters and buffers; `version`. Not hashed: other functions these
    call; change `version` when one of them changes.
    """
    try:
        module = initial_model(model, seed=0)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"building the model raised {type(error).__name__}: {error}") from error
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return content_hash(
        {
            "builder": _describe(model),
            "modules": [[name, *_describe_module(part)] for name, part in module.named_modules()],
            "tensors": [[name, list(t.shape), str(t.dtype), t.requires_grad] for name, t in tensors],
            "loss": _describe(loss),
            "metric": _describe(metric),
            "version": version,
        }
    )


def _describe_module(module: nn.Module) -> list[object]:
    attributes = {
        name: repr(value)
        for name, value in sorted(vars(module).items())
        if name != "training" and not name.startswith("_") and _is_plain(value)
    }
    kind = type(module)
    source = "" if kind.__module__.startswith("torch.") else _source(kind)
    return [f"{kind.__module__}.{kind.__qualname__}", source, attributes]


def _describe(function: Any) -> list[object]:
    if isinstance(function, functools.partial):
        arguments = [repr(a) for a in function.args] + [f"{k}={v!r}" for k, v in sorted(function.keywords.items())]
        return ["partial", _describe(function.func), arguments]
    if isinstance(function, type):
        return [f"{function.__module__}.{function.__qualname__}", _source(function)]
    closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    captured = {name: repr(value) for name, value in sorted(closure.items()) if _is_plain(value)}
    return [getattr(function, "__qualname__", type(function).__qualname__), _source(function), captured]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)


def _source(thing: Any) -> str:
    """Return the source without comments and layout; byte code where there is no source (interactive sessions)."""
    thing = thing if inspect.isfunction(thing) or inspect.ismethod(thing) or isinstance(thing, type) else type(thing)
    try:
        text = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        code = getattr(thing, "__code__", None)
        return "" if code is None else repr((code.co_code, [c for c in code.co_consts if _is_plain(c)], code.co_names))
    try:
        return ast.unparse(ast.parse(text))
    except SyntaxError:  # a lambda cut out of the middle of a statement
        return text
