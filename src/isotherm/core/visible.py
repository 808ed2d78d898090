"""Names and messages from elsewhere as a page or a terminal may show them."""

from __future__ import annotations

import re
import unicodedata


def visible(text: str) -> str:
    r"""Return a name or message as a page may show it: control characters and those that turn the text are visible.

    Line breaks and tabs become spaces; escaping what HTML reads as markup is left to whoever writes HTML.

    >>> visible("a\x1b[31m\u202eb\n\x00")
    'a␛[31m�b ␀'
    """
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\r\t":
        return " "
    kind = unicodedata.category(character)
    if kind == "Cc":
        return chr(0x2400 + ord(character)) if ord(character) < 0x20 else "\N{REPLACEMENT CHARACTER}"
    return "\N{REPLACEMENT CHARACTER}" if kind in ("Cf", "Cs", "Co", "Cn", "Zl", "Zp") else character


def printable(text: str) -> str:
    r"""Return text for a terminal: as `visible`, but lines and tabs stay.

    >>> printable("a\x1b[31m\tb\n")
    'a␛[31m\tb\n'
    """
    return re.sub(r"[^\n\t]+", lambda part: visible(part[0]), text)
