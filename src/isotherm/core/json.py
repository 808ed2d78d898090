"""The one way to JSON: NaN and infinity, which JSON does not have, are written as null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(content: Any) -> str:
    """Return a file of strict JSON: indented, ending in a new line.

    >>> json_text({"limits": (0.5, math.inf)}).split()
    ['{', '"limits":', '[', '0.5,', 'null', ']', '}']
    """
    return json.dumps(plain(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def json_line(content: Any) -> str:
    """Return strict JSON on one line, in ASCII.

    >>> json_line({"loss": math.nan, "steps": (1, 2)})
    '{"loss":null,"steps":[1,2]}'
    """
    return json.dumps(plain(content), allow_nan=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Return a value as what JSON has: dictionaries, lists, and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
