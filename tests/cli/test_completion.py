"""Completion in shells: installed by an option, answered without PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs the command and tells whether PyTorch, SciPy or matplotlib were imported for it.
_COUNTED = """
import sys
from isotherm.cli.main import main
try:
    main()
except SystemExit as leaving:
    code = leaving.code
print(sorted({"torch", "scipy", "matplotlib"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def isotherm(*arguments: str, home: Path, **environment: str) -> str:
    """Return what the command writes; nothing heavy may be imported for it."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HOME": str(home), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **environment},
    )
    assert done.stderr.splitlines()[-1] == "[]"
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"), [("isotherm re", ["report", "reproduce"]), ("isotherm run --reso", ["--resolution"])]
)
def test_commands_and_options_are_completed(words: str, expected: list[str], tmp_path: Path) -> None:
    position = str(len(words.split()) - 1)
    bash = isotherm(home=tmp_path, _ISOTHERM_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=position)
    assert bash.split() == expected
    zsh = isotherm(home=tmp_path, _ISOTHERM_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=words)
    assert all(f'"{name}"' in zsh for name in expected)


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_completion_is_installed_into_the_shell(shell: str, file: str, tmp_path: Path) -> None:
    told = isotherm("--install-completion", shell, home=tmp_path)
    assert f"{shell} completion installed" in told
    assert (tmp_path / file).is_file()
    scripts = [path.read_text() for path in tmp_path.rglob("*isotherm*") if path.is_file()]
    assert any("_ISOTHERM_COMPLETE" in script for script in scripts)
