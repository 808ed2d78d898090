"""The one place that writes JSON.

JSON has no NaN and no infinity. For readers outside they are written as null; `exact_json`, for what Isotherm itself
reads again, keeps them as Python writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(content: Any, *, ascii_only: bool = False) -> str:
    """Return a file of strict JSON: indented, ending in a new line; if asked for, with escapes in place of letters.

    >>> json_text({"limits": (0.5, math.inf)}).split()
    ['{', '"limits":', '[', '0.5,', 'null', ']', '}']
    """
    return json.dumps(plain(content), indent=2, allow_nan=False, ensure_ascii=ascii_only) + "\n"


def json_line(content: Any) -> str:
    """Return strict JSON on one line, in ASCII.

    >>> json_line({"loss": math.nan, "steps": (1, 2)})
    '{"loss":null,"steps":[1,2]}'
    """
    return json.dumps(plain(content), allow_nan=False, separators=(",", ":"))


def exact_json(content: Any) -> str:
    """Return what `json.loads` turns back into the same numbers, NaN and infinity included.

    >>> exact_json({"loss": math.inf})
    '{"loss": Infinity}'
    """
    return json.dumps(content)


def plain(value: Any) -> Any:
    """Return a value as what JSON has: dictionaries, lists, and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
