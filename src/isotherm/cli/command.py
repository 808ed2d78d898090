"""Commands whose options are the fields of one record.

Command modules import nothing heavy: a command imports what it calls inside its function, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from typer.core import TyperCommand, TyperGroup

from isotherm.cli.common import guarded
from isotherm.errors import closest

R = TypeVar("R")


def command(record: type[R]) -> Callable[[Callable[[R], None]], Callable[..., None]]:
    """Turn a function of one record into a function for Typer, with a parameter for every field.

    A field that is a record contributes its own fields. Errors that a user can fix become one sentence.

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


class Command(TyperCommand):
    """A command whose help shows no Python types, and that knows what others call its options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` included."""
        return _without_types(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options; the error about an unknown one says which is meant."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if isinstance(name := getattr(error, "option_name", None), str) and hasattr(error, "possibilities"):
                options = [option for parameter in self.get_params(ctx) for option in parameter.opts]
                error.message = unknown_option(name, options)  # type: ignore[attr-defined]
                error.possibilities = None
            raise


def unknown_option(name: str, options: list[str]) -> str:
    """Return what is said of an option that a command does not have.

    >>> options = ["--learning-rate", "--effective-learning-rate", "--momentum", "--l2"]
    >>> unknown_option("--lr", options), unknown_option("--weight-decay", options)
    ('No such option: --lr; use --learning-rate', 'No such option: --weight-decay; use --l2')
    >>> unknown_option("--optimizer", options)
    'No such option: --optimizer; this command answers for SGD alone, measure others with isotherm run'
    >>> unknown_option("--zzz", options)
    'No such option: --zzz; see --help'
    """
    if name in ("--optimizer", "--optimiser") and "--momentum" in options and "--optimizer" not in options:
        return f"No such option: {name}; this command answers for SGD alone, measure others with isotherm run"
    meant = closest(name.lstrip("-").replace("-", "_"), [option.lstrip("-").replace("-", "_") for option in options])
    return f"No such option: {name}; " + ("see --help" if meant is None else f"use --{meant.replace('_', '-')}")


class Group(TyperGroup):
    """A group of commands whose help shows no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` included."""
        return _without_types(super().get_params(ctx))


def _without_types(parameters: list[Any]) -> list[Any]:
    """Hide the types of flags and arguments; every other option has a metavar."""
    for parameter in parameters:
        if parameter.param_type_name == "argument" or parameter.is_flag:
            parameter.display_type_rich = lambda ctx: None
    return parameters


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
    fields: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(record).items():
        inner: Any = kind if dataclasses.is_dataclass(kind) else None
        fields[name] = values[name] if inner is None else _filled(inner, values)
    return record(**fields)
