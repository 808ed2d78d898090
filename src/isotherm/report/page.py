"""What all pages share: the template environment and the library versions."""

from __future__ import annotations

import platform
from importlib import metadata

from jinja2 import Environment, PackageLoader, StrictUndefined

from isotherm.core.json import json_line
from isotherm.core.records import RUN_VERSION
from isotherm.version import __version__

_PACKAGES = ("torch", "numpy", "scipy")


def page_environment() -> Environment:
    """Return the template environment of all pages; text is escaped."""
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
    """Return the versions of the libraries that results depend on."""
    return [
        ("isotherm", __version__),
        ("run format", str(RUN_VERSION)),
        ("Python", platform.python_version()),
        *((name, metadata.version(name)) for name in _PACKAGES),
    ]
