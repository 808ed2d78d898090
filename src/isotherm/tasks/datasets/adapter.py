"""What an item of a data set is: inputs and a target, by itself or through an adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isotherm.errors import UserError, nearest
from isotherm.tasks.raised import raised

Key = str | int
# Item -> (inputs, target); or where they are in an item: the name or position of each, of several inputs a tuple.
Adapter = Callable[[Any], tuple[Any, Any]] | tuple[Key | tuple[Key, ...], Key]


def check_adapter(adapter: Any, where: str) -> None:
    """Refuse what is neither a function nor two places in an item."""
    if adapter is None or (callable(adapter) and not isinstance(adapter, type)):
        return
    is_pair = isinstance(adapter, tuple) and len(adapter) == 2
    if not is_pair or not all(isinstance(key, Key) for key in (*_keys(adapter[0]), adapter[1])):
        raise UserError(
            f"{where}: adapter={adapter!r} is neither a function item -> (inputs, target) nor a pair of names or "
            "positions in an item, e.g. adapter=('image', 'label')"
        )


def adapted(item: Any, adapter: Adapter | None, where: str) -> tuple[Any, Any]:
    """Return the inputs and the target of an item.

    >>> adapted({"a": 1, "b": 2, "label": 0}, (("a", "b"), "label"), "item 0")
    ({'a': 1, 'b': 2}, 0)
    """
    if isinstance(adapter, tuple):
        places, target = adapter
        if not isinstance(places, tuple):
            return _at(item, places, where), _at(item, target, where)
        found = [_at(item, key, where) for key in places]
        is_named = isinstance(item, Mapping)
        inputs = dict(zip(places, found, strict=True)) if is_named else tuple(found)
        return inputs, _at(item, target, where)
    pair = _called(adapter, item, where) if adapter is not None else item
    if isinstance(pair, tuple | list) and len(pair) == 2:
        return pair[0], pair[1]
    if adapter is not None:
        raise UserError(f"{where}: the adapter returned {_kind(pair)}; let it return a pair (inputs, target)")
    raise UserError(f"{where} is {_kind(item)}, not a pair (inputs, target); {_suggestion(item)}")


def _called(adapter: Callable[[Any], Any], item: Any, where: str) -> Any:
    try:
        return adapter(item)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{where}: the adapter raised {raised(error)}; the item is {_kind(item)}") from error


def _at(item: Any, key: Key, where: str) -> Any:
    try:
        return item[key]
    except (KeyError, IndexError, TypeError) as error:
        named = isinstance(item, Mapping)
        remedy = nearest(str(key), map(str, item)) if named and item else f"the item is {_kind(item)}"
        raise UserError(f"{where} has no {key!r}; {remedy}") from error


def _keys(place: Any) -> tuple[Any, ...]:
    return place if isinstance(place, tuple) else (place,)


def _kind(item: Any) -> str:
    if isinstance(item, Mapping):
        return f"a {type(item).__name__} of {', '.join(map(repr, item))}"
    if isinstance(item, tuple | list):
        return f"a {type(item).__name__} of {len(item)}"
    shape = getattr(item, "shape", None)
    return f"one {type(item).__name__}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")


def _suggestion(item: Any) -> str:
    """Return how to say where inputs and target are."""
    if isinstance(item, Mapping) and len(item) >= 2:
        names = list(item)
        target = next((name for name in ("label", "labels", "target", "y") if name in item), names[-1])
        inputs = [name for name in names if name != target]
        place = repr(inputs[0]) if len(inputs) == 1 else repr(tuple(inputs))
        return f"name its inputs and its target, e.g. adapter=({place}, {target!r})"
    if isinstance(item, tuple | list) and len(item) > 2:
        return f"say where inputs and target are, e.g. adapter=({tuple(range(len(item) - 1))}, {len(item) - 1})"
    return "give a function that makes one of it, adapter=lambda item: (inputs, target)"
