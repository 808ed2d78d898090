"""One way to JSON: strict, with null for what JSON cannot say."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import numpy as np
import pytest

from isotherm.core.json import exact_json, json_line, json_text, plain
from isotherm.core.records import Outcome

SOURCE = Path(__file__).parents[2] / "src" / "isotherm"

WRITER = "core/json.py"
# Text that is hashed, never read: sorted keys.
HASHED = {"core/records.py"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_json_does_not_have_become_null(value: float) -> None:
    content = {"a": value, "b": [(value, 1.5)], "c": {0.9: value}}
    expected = {"a": None, "b": [[None, 1.5]], "c": {"0.9": None}}
    assert plain(content) == expected
    assert json.loads(json_text(content), parse_constant=pytest.fail) == expected
    assert json.loads(json_line(content), parse_constant=pytest.fail) == expected


def test_everything_else_stays_as_it_is() -> None:
    content = {"text": "ε_eff", "whole": 2**60, "float": 0.1, "none": None, "yes": True, "outcome": Outcome.FINISHED}
    assert json.loads(json_text(content)) == json.loads(json_line(content)) == content
    assert "ε_eff" in json_text(content)
    assert json_line(content).isascii()


def test_a_file_ends_in_a_new_line_and_a_line_holds_none() -> None:
    assert json_text({"a": [1, 2]}).endswith("}\n")
    assert "\n" not in json_line({"a": "b\nc"})


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1 + 0.2, 5e-324, 1e300])
def test_what_isotherm_reads_again_comes_back_exactly(value: float) -> None:
    assert json.loads(exact_json({"a": [value]})) == {"a": [value]}
    assert math.isnan(json.loads(exact_json(math.nan)))


def test_nothing_else_writes_json() -> None:
    writers = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.dumps", "json.dump"):
                writers.add(path.relative_to(SOURCE).as_posix())
    assert writers - HASHED == {WRITER}
