"""What all pages share: templates filled in with text that stays text, and the versions behind the numbers."""

from __future__ import annotations

import platform
from importlib import metadata

from jinja2 import Environment, PackageLoader, StrictUndefined

from isotherm.core.json import json_line
from isotherm.core.records import RUN_VERSION
from isotherm.version import __version__

_PACKAGES = ("torch", "numpy", "scipy")


def page_environment() -> Environment:
    """Return what fills in the pages' templates; text is escaped."""
    environment = Environment(
        loader=PackageLoader("isotherm.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = json_line
    environment.policies["json.dumps_kwargs"] = {}
    return environment


def library_versions() -> list[tuple[str, str]]:
    """Return the libraries that results depend on, with their versions."""
    return [
        ("isotherm", __version__),
        ("run format", str(RUN_VERSION)),
        ("Python", platform.python_version()),
        *((name, metadata.version(name)) for name in _PACKAGES),
    ]
