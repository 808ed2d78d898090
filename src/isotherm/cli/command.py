"""A command whose options are the fields of one record.

Command modules load nothing heavy: what a command calls is imported inside its function, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from isotherm.cli.common import guarded

R = TypeVar("R")


def command(record: type[R]) -> Callable[[Callable[[R], None]], Callable[..., None]]:
    """Turn a function of one record into what Typer takes: a function with a parameter for every field.

    Fields that are records themselves contribute their own fields. Errors that a user can mend become one sentence.

    Args:
        record: a dataclass whose fields are annotated with `typer.Option` or `typer.Argument`.
    """

    def decorate(function: Callable[[R], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**values: Any) -> None:
            guarded(function)(_filled(record, values))

        parameters = _parameters(record)
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _parameters(record: type[Any]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(record, include_extras=True)
    found: list[inspect.Parameter] = []
    for field in dataclasses.fields(record):
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            found += _parameters(typing.cast(type[Any], annotation))
            continue
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        found.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return found


def _filled(record: type[R], values: dict[str, Any]) -> R:
    hints = typing.get_type_hints(record)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, record)):
        kind = hints[field.name]
        fields[field.name] = _filled(kind, values) if dataclasses.is_dataclass(kind) else values[field.name]
    return record(**fields)
