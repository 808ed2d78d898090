"""The parts of a model's identity, each a hash of its content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from isotherm.core.records import content_hash
from isotherm.errors import UserError
from isotherm.tasks.identity import origin
from isotherm.tasks.identity.code import patches
from isotherm.tasks.identity.kinds import handler_of
from isotherm.tasks.identity.objects import INTERNAL, attributes, global_hooks
from isotherm.tasks.identity.source import Sources
from isotherm.tasks.identity.unseen import Reach, warn_of
from isotherm.tasks.identity.values import tensor_content
from isotherm.tasks.identity.walk import Walk, deep_recursion
from isotherm.tasks.raised import raised
from isotherm.tasks.seeding import initial_model

_DIGITS = 32  # of a part: 128 bits, and still read in a terminal
_SPEAKS_FOR_ITSELF = "lazy inputs"  # they read files, and say what is in them


def model_parts(
    model: Callable[[], nn.Module],
    *,
    loss: Any,
    metric: Any,
    version: str = "",
    settings: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return a hash for each part of what defines a model's computation.

    Args:
        model: the builder. It is called once, with seed 0.
        loss: the function, or an object that is called like one.
        metric: the same.
        version: stands for whatever cannot be seen.
        settings: what else decides how the model is trained, by name.

    Returns:
        "code": the builder, the classes of its modules and everything their code reaches. "architecture": names and
        attributes of the modules; names, shapes and types of the parameters. "weights": every value of parameters and
        buffers. "loss", "metric", "settings", "version".

    Warns:
        UnseenWarning: where the numbers depend on something that none of the hashes covers.
    """
    module = _built(model)
    registered = _registered(module)  # alive throughout, so that no other object takes one of their ids
    names = {id(thing): name for name, thing in reversed(registered)}
    reach, sources = Reach(), Sources()

    def walk(root: str, names: Mapping[int, str] | None = None) -> Walk:
        return Walk(root, handler_of=handler_of, reach=reach, sources=sources, names=names)

    with deep_recursion():
        parts: dict[str, object] = {
            "code": [walk("builder").describe(model), _classes(walk("classes"), module), patches(walk("classes"))],
            "architecture": _architecture(walk("architecture", names), module, names),
            "weights": [[name, tensor_content(tensor)] for name, tensor in _tensors(module)],
            "loss": walk("loss").describe(loss),
            "metric": walk("metric").describe(metric),
            "settings": {name: walk(f"setting {name}").describe(value) for name, value in (settings or {}).items()},
            "version": version,
        }
    roots = {"classes": "the model", "architecture": "the model", "loss": "the loss", "metric": "the metric"}
    roots |= {f"setting {name}": f"the {name}" for name in settings or {} if name != _SPEAKS_FOR_ITSELF}
    warn_of(reach.unseen_from(roots))
    return {name: content_hash(part)[:_DIGITS] for name, part in parts.items()}


def model_id(parts: Mapping[str, str]) -> str:
    """Return the one hash of all parts.

    >>> model_id({"code": "a", "version": "b"}) == model_id({"version": "b", "code": "a"})
    True
    """
    return content_hash(dict(parts))


def module_attributes(module: nn.Module) -> dict[str, object]:
    """Return what a module and its submodules hold besides parameters and buffers, to compare before and after."""
    reach, sources = Reach(), Sources()
    with deep_recursion():
        return {
            f"{name}.{key}".lstrip("."): Walk("", handler_of=handler_of, reach=reach, sources=sources).describe(value)
            for name, part in module.named_modules()
            for key, value in vars(part).items()
            if key not in INTERNAL
        }


def _built(model: Callable[[], nn.Module]) -> nn.Module:
    try:
        return initial_model(model, seed=0)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"building the model raised {raised(error)}") from error


def _classes(walk: Walk, module: nn.Module) -> list[object]:
    kinds = dict.fromkeys(type(part) for part in (*module.modules(), *(tensor for _, tensor in _tensors(module))))
    return [walk.describe(kind, "instance") for kind in kinds]


def _architecture(walk: Walk, module: nn.Module, names: Mapping[int, str]) -> list[object]:
    modules = [
        [name, _class_name(part), attributes(walk, part), [[n, names.get(id(p))] for n, p in part._modules.items()]]
        for name, part in module.named_modules()
    ]
    parameters = [
        [name, list(p.shape), str(p.dtype), p.requires_grad]
        for name, p in module.named_parameters(remove_duplicate=False)
    ]
    tied = [[name, names[id(p)]] for name, p in module.named_parameters(remove_duplicate=False)]
    absent = [[name, key] for name, part in module.named_modules() for key, t in _own(part).items() if t is None]
    return [modules, parameters, tied, absent, global_hooks(walk)]


def _class_name(part: nn.Module) -> str:
    kind = type(part)
    return origin.name_of(kind) if origin.is_library_class(kind) else kind.__qualname__


def _registered(module: nn.Module) -> list[tuple[str, nn.Module | Tensor]]:
    """Return every parameter, buffer and submodule by its first name; an attribute may hold one of them again."""
    return [*module.named_modules(), *_tensors(module)]


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _own(part: nn.Module) -> dict[str, Tensor | None]:
    return dict([*part._parameters.items(), *part._buffers.items()])
