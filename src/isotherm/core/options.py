"""Options given by name to a record or a function: an unknown one is refused in words, before Python's TypeError."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from isotherm.errors import UserError, nearest

Given = ParamSpec("Given")
Made = TypeVar("Made")
Kind = TypeVar("Kind")


def refuses_unknown(
    title: str, words: Callable[[str], str]
) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Return a decorator of a function with named options that refuses all others, and values without a name.

    Args:
        title: what the options belong to.
        words: what else to say of an unknown option: whose it is, and what to do.

    >>> @refuses_unknown("half", lambda option: "")
    ... def half(*, of: float) -> float:
    ...     return of / 2
    >>> half(off=3)
    Traceback (most recent call last):
    isotherm.errors.UserError: half has no option 'off'; did you mean 'of'? Known: of
    """

    def decorate(function: Callable[Given, Made]) -> Callable[Given, Made]:
        parameters = list(inspect.signature(function).parameters.values())
        by_name = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
        num_others = len(parameters) - len(by_name)
        known = {one.name for one in parameters} - {"self", "cls"}

        @functools.wraps(function)
        def checked(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            for option in kwargs:
                if option not in known:
                    raise UserError(f"{title} has no option {option!r}{words(option)}; {nearest(option, known)}")
            if len(args) > num_others:
                first = f"e.g. {title}({by_name[0]}={args[num_others]!r})" if by_name else f"of which {title} has none"
                raise UserError(f"{title} takes its options by name, {first}; {args[num_others]!r} has none")
            return function(*args, **kwargs)

        return checked

    return decorate


def with_named_options(words: Callable[[type, str], str]) -> Callable[[type[Kind]], type[Kind]]:
    """Return a decorator of a record that refuses unknown options when one is made; see `refuses_unknown`."""

    def decorate(kind: type[Kind]) -> type[Kind]:
        title = str(getattr(kind, "title", kind.__name__))
        checked = refuses_unknown(title, functools.partial(words, kind))(kind.__init__)
        type.__setattr__(kind, "__init__", checked)
        return kind

    return decorate
