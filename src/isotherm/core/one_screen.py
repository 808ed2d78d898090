"""What a console shows of an object: plain characters, one screen at most."""

from __future__ import annotations

import dataclasses
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

WIDTH = 100
LINES = 24
_MOST_ITEMS = 6
_WRITTEN = {
    "ε": "eps",
    "θ": "theta",
    "λ": "lambda",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "κ": "kappa",
    "σ": "sigma",
    "Σ": "Sigma",
    "ω": "omega",
    "ν": "nu",
    "∝": "~",
    "∞": "inf",
    "√": "sqrt",
    "‖": "|",
    "±": "+-",
    "×": "x",
    "·": "*",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "→": "->",
    "←": "<-",
    "−": "-",
    "–": "-",
    "—": "-",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "…": "...",
    "•": "*",
    "✓": "+",
    "✗": "x",
    "━": "-",
    "─": "-",
    "│": "|",
    "╭": "+",
    "╮": "+",
    "╰": "+",
    "╯": "+",
    "█": "#",
    "½": "1/2",
    "∂": "d",
    "∇": "grad",
    "ξ": "xi",
    "π": "pi",
    "η": "eta",
    "≫": ">>",
    "◂": "<",
    "▸": ">",
}
_UNKNOWN = "?"
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")


def ascii_text(text: str) -> str:
    """Return a text in ASCII: symbols by their names, letters without accents.

    >>> ascii_text("ε_eff = 0.5 ± 0.1, B ≥ 2⁻⁶, naïve")
    'eps_eff = 0.5 +- 0.1, B >= 2^-6, naive'
    """
    if text.isascii():
        return text
    return "".join(map(_in_ascii, _SUPERSCRIPTS.sub(lambda found: f"^{found[0]}", text)))


def _in_ascii(character: str) -> str:
    if character.isascii() or character in _WRITTEN:
        return _WRITTEN.get(character, character)
    parts = [_WRITTEN.get(part, part) for part in unicodedata.normalize("NFKD", character)]
    return "".join(part for part in parts if part.isascii()) or _UNKNOWN


def one_screen(lines: Iterable[str], *, most: int = LINES) -> str:
    """Return lines as they fit a console: long ones wrapped, in ASCII; of too many, the first ones and how many more.

    >>> print(one_screen(["a"] * 5, most=3))
    a
    a
    ... and 3 more lines
    """
    wrapped = [
        part
        for line in lines
        for part in (
            textwrap.wrap(ascii_text(line), WIDTH, subsequent_indent="  ")
            if len(ascii_text(line)) > WIDTH
            else [ascii_text(line)]
        )
    ]
    if len(wrapped) > most:
        wrapped = [*wrapped[: most - 1], f"... and {len(wrapped) - most + 1:,} more lines"]
    return "\n".join(wrapped)


def columns_text(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines, numbers flush right.

    >>> columns_text(["B", "rate"], [["16", "0.5"], ["1,024", "2"]])
    ['    B  rate', '   16   0.5', '1,024     2']
    """
    cells = [[ascii_text(cell) for cell in row] for row in (names, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def fields_text(value: Any, *, shown: Mapping[str, Callable[[Any], str]] | None = None) -> str:
    """Return a dataclass as its call, without the fields that have their defaults; long sequences are shortened.

    Args:
        value: an instance of a dataclass.
        shown: how to write some of its fields, by name.
    """
    parts = []
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        if field.repr and not _is_default(field, given):
            text = (shown or {}).get(field.name, short_text)(given)
            parts.append(f"{field.name}={text}")
    return one_screen([f"{type(value).__name__}({', '.join(parts)})"])


def short_text(value: Any) -> str:
    """Return a value in a few words; of a long sequence its ends and its length.

    >>> short_text([1, 2, 3]), short_text(tuple(range(100))), short_text("a")
    ('[1, 2, 3]', '(0, 1, 2, ..., 99: 100 in all)', "'a'")
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        items = [f"{short_text(key)}: {short_text(item)}" for key, item in list(value.items())[:_MOST_ITEMS]]
        return "{" + ", ".join([*items, *([f"... {len(value)} in all"] if len(value) > _MOST_ITEMS else [])]) + "}"
    if isinstance(value, list | tuple):
        opening, closing = "[]" if isinstance(value, list) else "()"
        if len(value) <= _MOST_ITEMS:
            inside = ", ".join(map(short_text, value)) + ("," if isinstance(value, tuple) and len(value) == 1 else "")
        else:
            inside = f"{', '.join(map(short_text, value[:3]))}, ..., {short_text(value[-1])}: {len(value):,} in all"
        return f"{opening}{inside}{closing}"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


def _is_default(field: dataclasses.Field[Any], given: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return given is field.default or bool(type(given) is type(field.default) and given == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(given == field.default_factory())
    return False
