"""What pages share."""

from __future__ import annotations

import json
import math

import pytest
from jinja2 import UndefinedError

import isotherm
from isotherm.report.page import library_versions, page_environment


def test_text_is_escaped_and_a_missing_value_is_an_error() -> None:
    template = page_environment().from_string("<p>{{ text }}</p>")
    assert template.render(text="<b>&") == "<p>&lt;b&gt;&amp;</p>"
    with pytest.raises(UndefinedError):
        template.render()


def test_json_on_a_page_is_strict_and_cannot_end_its_script() -> None:
    text = page_environment().from_string("{{ content | tojson }}").render(content={"a": math.nan, "b": "</script>"})
    assert "</script>" not in text
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": "</script>"}


def test_versions_name_the_package_and_its_libraries() -> None:
    versions = dict(library_versions())
    assert versions["isotherm"] == isotherm.__version__
    assert versions.keys() >= {"Python", "torch", "numpy", "scipy", "run format"}
