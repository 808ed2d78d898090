"""Every public name of the package with its signature and docstring, read from the package."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import isotherm as it

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$", re.MULTILINE)
# Of dictionaries and tuples, whose docstrings are Python's own.
_BUILT_IN = (dict, tuple, object)


def names_block() -> str:
    """Return a section for every public name."""
    return "\n\n".join(_section(name, getattr(it, name)) for name in it.__all__ if not name.startswith("__"))


def _section(name: str, value: Any) -> str:
    parts = [f"## {name}"]
    if isinstance(value, type):
        parts += [] if issubclass(value, Enum) else [_signature(name, value)]
        parts += [_document(inspect.getdoc(value)), *_values(value), *_methods(value)]
    elif callable(value):
        parts += [_signature(name, value), _document(inspect.getdoc(value))]
    return "\n\n".join(filter(None, parts))


def _values(kind: type) -> Iterator[str]:
    """Yield the values of an enumeration."""
    if issubclass(kind, Enum):
        yield "One of " + ", ".join(f"`{kind.__name__}.{one.name}`" for one in kind) + "."


def _methods(kind: type) -> Iterator[str]:
    """Yield a list of the methods and properties that the class itself or its public bases define."""
    lines = []
    for name, member in sorted(inspect.getmembers(kind)):
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        if name.startswith("_") or owner in _BUILT_IN or not owner.__module__.startswith("isotherm"):
            continue
        if isinstance(vars(owner)[name], property):
            lines.append(f"- `{name}`: {_first_sentence(member)}")
        elif callable(member) and not isinstance(member, type | Enum):
            lines.append(f"- `{name}{_arguments(member)}`: {_first_sentence(member)}")
    if lines:
        yield "\n".join(lines)


def _first_sentence(member: Any) -> str:
    text = inspect.getdoc(member) or ""
    return " ".join(text.split("\n\n")[0].split())


def _signature(name: str, value: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(value)
    except ValueError:  # an exception
        return ""
    arguments = [_argument(one, value) for one in signature.parameters.values()]
    starred = _with_star(list(signature.parameters.values()), arguments)
    text = f"{name}({', '.join(starred)})"
    if len(text) > 100:
        text = f"{name}(\n" + "".join(f"    {one},\n" for one in starred) + ")"
    return f"```\n{text}\n```"


def _with_star(parameters: list[inspect.Parameter], texts: list[str]) -> list[str]:
    """Return the arguments with the `*` before the first that has to be named."""
    first = next((k for k, one in enumerate(parameters) if one.kind is one.KEYWORD_ONLY), None)
    has_own = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return texts if first is None or has_own else [*texts[:first], "*", *texts[first:]]


def _argument(parameter: inspect.Parameter, owner: Any) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{annotation}"
    return f"{stars}{parameter.name}{annotation} = {_default(parameter, owner)}"


def _arguments(member: Any) -> str:
    parameters = [one for one in inspect.signature(member).parameters.values() if one.name not in ("self", "cls")]
    texts = [one.name if one.default is one.empty else f"{one.name}=..." for one in parameters]
    return f"({', '.join(_with_star(parameters, texts))})"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(parameter: inspect.Parameter, owner: Any) -> str:
    """Return a default as it is written; one that is made anew for every object by what makes it."""
    if dataclasses.is_dataclass(owner):
        field = {one.name: one for one in dataclasses.fields(owner)}.get(parameter.name)
        if field is not None and field.default_factory is not dataclasses.MISSING:
            return f"{getattr(field.default_factory, '__qualname__', 'made')}()"
    value = parameter.default
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isfunction(value) or isinstance(value, type):
        return value.__name__
    return repr(value)


def _document(text: str | None) -> str:
    """Return a docstring as Markdown: its sections as lists, its examples as code."""
    if not text:
        return ""
    head, *sections = _SECTION.split(text)
    parts = [_paragraphs(head)]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"**{title}**\n\n{_items(body)}")
    return "\n\n".join(parts)


def _items(body: str) -> str:
    """Return the entries of a section as a list, and what follows them as it is."""
    lines = body.strip("\n").split("\n")
    inside = [line for line in lines if not line.strip() or line.startswith("    ")]
    rest = "\n".join(lines[len(inside) :])
    entries = re.split(r"\n(?=\S)", textwrap.dedent("\n".join(inside)).strip())
    listed = "\n".join("- " + re.sub(r"^([\w.*`, ]+):", r"`\1`:", " ".join(one.split())) for one in entries)
    return "\n\n".join(filter(None, (listed, _paragraphs(rest))))


def _paragraphs(text: str) -> str:
    """Return paragraphs with examples, and whatever is indented, in blocks of code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        is_code = paragraph.startswith((">>>", "    ")) or paragraph.startswith("import isotherm")
        parts.append(f"```\n{textwrap.dedent(paragraph)}\n```" if is_code else paragraph)
    return "\n\n".join(parts)
