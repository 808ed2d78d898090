"""Help, version and the vocabulary load nothing heavy."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

HEAVY = ["torch", "scipy", "numpy", "matplotlib", "plotly", "pandas", "jinja2", "PIL"]

HELP = """
import sys
from typer.testing import CliRunner
from isotherm.cli.main import app

names = [["--help"], ["--version"]]
names += [[c.callback.__name__, "--help"] for c in app.registered_commands]
names += [["data", *more, "--help"] for more in ([], ["list"], ["verify"], ["fetch"])]
for arguments in names:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and done.output.strip(), (arguments, done.output)
print(len(names))
"""
LISTS = """
import sys
from typer.testing import CliRunner
from isotherm.cli.main import app

for arguments in (["data", "list"], ["theory", "--list"]):
    assert CliRunner().invoke(app, arguments).exit_code == 0, arguments
"""


def loaded_by(code: str) -> list[str]:
    """Return which heavy packages are loaded once a program has run."""
    code += f"\nimport sys\nprint('loaded:', *(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("loaded:")[2].split()


def test_no_help_and_no_version_loads_anything_heavy() -> None:
    assert loaded_by(HELP) == []


@pytest.mark.parametrize(
    "code",
    [
        "import isotherm, isotherm.core, isotherm.core.temperature, isotherm.core.budget, isotherm.core.records",
        "import isotherm as it; it.Budget, it.UserError, it.temperature, it.__version__, dir(it)",
        LISTS,
    ],
    ids=["core", "public names of core", "lists"],
)
def test_what_needs_no_tensors_loads_none(code: str) -> None:
    assert loaded_by(code) == []


def test_the_check_would_notice() -> None:
    assert "numpy" in loaded_by("import numpy")


def test_help_takes_less_than_half_a_second() -> None:
    """Of processor time, which another program on the machine does not lengthen; the best of three."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "isotherm", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5
