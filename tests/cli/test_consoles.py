"""Consoles without Unicode: every command writes ASCII there, and none ends in an error."""

from __future__ import annotations

import ast
import functools
import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table

from isotherm.cli import common
from isotherm.cli.consoles import has_unicode, take_any_text
from isotherm.core.one_screen import ascii_text
from pages.rooms import SOURCE

# Stand for control characters, which cannot be shown, and for what cannot be decoded.
_PICTURES_OF_CONTROLS = set("␀␛\N{REPLACEMENT CHARACTER}")


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")


def written(to: io.TextIOWrapper) -> str:
    to.flush()
    return to.buffer.getvalue().decode(to.encoding)  # type: ignore[attr-defined]


@functools.cache
def texts() -> list[str]:
    """Return every string of the package that is not ASCII."""
    trees = [ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py")) if "kernels" not in path.parts]
    found = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [text for text in found if isinstance(text, str) and not text.isascii()]


def test_every_symbol_of_the_package_has_a_name_in_ascii() -> None:
    symbols = {character for text in texts() for character in text} - _PICTURES_OF_CONTROLS
    assert len(symbols) > 20
    assert sorted(character for character in symbols if "?" in ascii_text(character) and character != "?") == []


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_any_text_can_be_written(encoding: str) -> None:
    console = stream(encoding)
    take_any_text(console)
    console.write("\n".join(texts()) + "\udcff")
    table = Table("ε_eff ± σ", title="B ≥ 2⁴")
    table.add_row("0.5 ± 0.1")
    Console(file=console).print(table)
    shown = written(console)
    assert ("ε_eff ± σ" in shown) == (encoding == "utf-8")
    assert encoding != "ascii" or "eps_eff +- sigma" in shown
    assert encoding != "cp1252" or "eps_eff ± sigma" in shown  # what there is stays


def test_without_it_the_same_text_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        stream("cp1252").write("ε")


def test_which_streams_have_unicode() -> None:
    assert [has_unicode(stream(name)) for name in ("utf-8", "UTF_16", "cp1252", "ascii")] == [True, True, False, False]
    assert has_unicode(io.StringIO())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_keeps_its_text_on_any_console(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    console = stream(encoding)
    take_any_text(console)
    monkeypatch.setattr(sys, "stdout", console)
    common.give_json(common.Path("-"), {"text": "ε_eff ± 1 é"})
    assert json.loads(written(console)) == {"text": "ε_eff ± 1 é"}


@pytest.mark.usefixtures("study_folder")
def test_a_command_writes_ascii_where_there_is_nothing_else() -> None:
    words = "run --task mycode:task --batch-size 8 --effective-learning-rate 0.5 --steps 4 --store cell.sqlite"
    done = subprocess.run(
        [sys.executable, "-m", "isotherm", *words.split()],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert "eps_eff" in done.stdout.decode("ascii")
