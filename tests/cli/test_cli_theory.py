"""`isotherm theory` from the command line: a piece of our own, one that is shipped, and what bad input gets."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.cli.theory import PIECES, Piece
from isotherm.theory.demonstration import Curve, Demonstration, Panel, Table

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "theory.md").read_text()
MODULE = "a_theory_of_tests"

runner = CliRunner()


def demonstrate(*, seed: int = 0) -> Demonstration:
    curve = Curve(label="all", x=[1.0, 2.0], y=[1.0, 4.0], low=[0.5, 3.0], high=[2.0, float("inf")], style="points")
    narrow = Table(title="A [narrow] table", columns=["B", "rate of learning"], rows=[(131072, 0.0108923), (4, 2.0)])
    wide = Table(
        title="A wide table",
        columns=["when", *(f"quantity_number_{place}" for place in range(9))],
        rows=[["at the start", *range(9)], ["at the end", *[float("nan")] * 9]],
    )
    return Demonstration(
        name="tested",
        title="A [title]",
        paragraph=f"A paragraph of [many] words with seed {seed}. " * 5,
        panels=[Panel(title="p", x_label="x", y_label="y", curves=[curve])],
        tables=[narrow, wide],
        settings={"seed": seed, "limits": (1.0, float("-inf"))},
    )


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A piece of the theory that is computed at once."""
    module = types.ModuleType(MODULE)
    module.demonstrate = demonstrate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setitem(PIECES, "tested-piece", Piece(module=MODULE, shows="that it works"))
    return module


@pytest.fixture
def never(tested: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(*, seed: int) -> Demonstration:
        raise AssertionError("computed before the paths were checked")

    monkeypatch.setattr(tested, "demonstrate", computed)


def invoke(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, ["theory", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def refused(*arguments: str) -> str:
    code, text = invoke(*arguments)
    assert code == 2
    return " ".join(text.split())


@pytest.mark.parametrize("arguments", [(), ("--list",), ("--list", "sde")])
def test_the_list_of_what_there_is(arguments: tuple[str, ...]) -> None:
    code, text = invoke(*arguments, "--json", "list.json")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    entries = json.loads(Path("list.json").read_text())["theory"]
    assert [entry["name"] for entry in entries] == ["noisy-quadratic", "sde", "curvature", "noise-scale"]
    for entry in entries:
        assert entry["name"] in text
        assert entry["shows"].split()[0] in text


@pytest.mark.parametrize("name", list(PIECES))
def test_every_piece_can_be_demonstrated_with_a_seed(name: str) -> None:
    parameters = inspect.signature(importlib.import_module(PIECES[name].module).demonstrate).parameters
    assert {key: value.default for key, value in parameters.items()} == {"seed": 0}


def test_a_piece_is_imported_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_late_theory.py").write_text("from test_cli_theory import demonstrate")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(PIECES, "late", Piece(module="a_late_theory", shows="nothing"))
    invoke("--list")
    assert "a_late_theory" not in sys.modules
    assert invoke("late")[0] == 0
    assert sys.modules.pop("a_late_theory")


@pytest.mark.slow
def test_a_shipped_piece_for_real() -> None:
    code, text = invoke("noise_scale", "--seed", "1", "--figure", "noise.png", "--json", "noise.json")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert "Written to noise.png" in text
    assert "Written to noise.json" in text
    assert Path("noise.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads(Path("noise.json").read_text())
    assert (content["name"], content["settings"]["seed"]) == ("noise-scale", 1)
    assert content["title"] in text
    assert content["paragraph"].split() == text.split("\n\n")[1].split()
    assert len(content["panels"]) == 3


@pytest.mark.usefixtures("tested")
def test_title_paragraph_and_tables_fit_the_terminal() -> None:
    code, text = invoke("tested_piece", "--seed", "7")
    assert code == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "A [title]"
    assert " ".join(text.split()).count("A paragraph of [many] words with seed 7.") == 5
    assert "A [narrow] table" in lines
    assert [line.split() for line in lines if line.strip().startswith(("131,072", "4"))] == [
        ["131,072", "0.01089"],
        ["4", "2"],
    ]
    assert "Written" not in text


@pytest.mark.usefixtures("tested")
def test_a_table_that_is_too_wide_has_its_rows_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> list[list[str]]:
        lines = invoke("tested-piece")[1].partition("A wide table")[2].splitlines()
        return [line.split() for line in lines if line.strip() and "─" not in line]

    turned = rows()
    assert turned[-9:] == [[f"quantity_number_{place}", str(place), "nan"] for place in range(9)]
    monkeypatch.setenv("COLUMNS", "250")
    straight = rows()
    assert straight[-2:] == [["at", "the", "start", *map(str, range(9))], ["at", "the", "end", *["nan"] * 9]]


@pytest.mark.usefixtures("tested")
def test_a_paragraph_stays_readable_in_a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    text = invoke("tested-piece")[1]
    assert 80 < max(len(line) for line in text.splitlines() if "many" in line) <= 100


@pytest.mark.usefixtures("tested")
def test_json_is_the_demonstration_with_null_for_what_is_not_finite() -> None:
    Path("out.json").write_text("old")
    assert invoke("tested-piece", "--json", "out.json", "--seed", "3")[0] == 0
    text = Path("out.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    content = json.loads(text)
    assert set(content) == set(demonstrate().as_json())
    assert content["settings"] == {"seed": 3, "limits": [1.0, None]}
    (curve,) = content["panels"][0]["curves"]
    assert (curve["low"], curve["high"], curve["style"]) == ([0.5, 3.0], [2.0, None], "points")
    assert content["tables"][0]["rows"] == [[131072, 0.0108923], [4, 2.0]]
    assert content["tables"][1]["rows"][1] == ["at the end", *[None] * 9]
    assert [path.name for path in Path().iterdir()] == ["out.json"]  # nothing half-written beside it


@pytest.mark.usefixtures("tested")
def test_json_alone_on_standard_output() -> None:
    result = runner.invoke(app, ["theory", "tested-piece", "--json", "-", "--figure", "f.svg"])
    assert json.loads(result.stdout)["title"] == "A [title]"
    assert "A paragraph" in result.stderr
    assert [line for line in result.stderr.splitlines() if "Written" in line] == ["Written to f.svg"]


@pytest.mark.usefixtures("tested")
@pytest.mark.parametrize("name", ["f.png", "f.pdf", "f.svg"])
def test_a_figure_is_drawn_by_its_suffix(name: str) -> None:
    code, text = invoke("tested-piece", "--figure", name)
    assert code == 0
    assert f"Written to {name}" in text
    assert Path(name).stat().st_size > 1000


def test_names_that_are_not_known() -> None:
    assert "there is no demonstration 'nosy_quadratic'; did you mean 'noisy-quadratic'?" in refused("nosy_quadratic")
    assert "known: curvature, noise-scale, noisy-quadratic, sde" in refused("zzz")


@pytest.mark.usefixtures("never")
def test_paths_that_cannot_be_written_are_refused_before_anything_is_computed() -> None:
    Path("folder.png").mkdir()
    for option, suffix in (("--json", "json"), ("--figure", "png")):
        assert "its folder does not exist" in refused("tested-piece", option, f"nowhere/a.{suffix}")
        assert f"{option} folder.png: it is a folder" in refused("tested-piece", option, "folder.png")
    assert "use .png, .pdf or .svg" in refused("tested-piece", "--figure", "a.jpg")
    assert Path("folder.png").is_dir()


@pytest.mark.usefixtures("tested")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody may write to")
@pytest.mark.parametrize("option", ["--json", "--figure"])
def test_a_folder_that_may_not_be_written_to(option: str) -> None:
    text = refused("tested-piece", option, "/proc/a.png")
    assert "A [title]" in text  # what was computed is shown all the same
    assert "/proc/a.png cannot be written" in text
    assert "Written" not in text


def test_a_list_has_no_figure() -> None:
    assert "a list has no figure; name what to draw" in refused("--figure", "a.png")
    assert "a list has no figure" in refused("--list", "sde", "--figure", "a.png")
    assert not Path("a.png").exists()


def test_a_negative_seed() -> None:
    assert "--seed" in refused("sde", "--seed", "-1")


def test_an_interrupt(tested: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*, seed: int) -> Demonstration:
        raise KeyboardInterrupt

    monkeypatch.setattr(tested, "demonstrate", interrupted)
    code, text = invoke("tested-piece", "--json", "out.json")
    assert code == 130
    assert "Nothing was written" in text
    assert not Path("out.json").exists()


@pytest.mark.parametrize("name", list(PIECES))
def test_the_document_has_a_section_and_a_figure_for_every_piece(name: str) -> None:
    assert f"isotherm theory {name}" in DOCUMENT
    assert f"figures/theory_{name.replace('-', '_')}.png" in DOCUMENT


def test_the_tests_that_the_document_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT))
    sources = "".join(path.read_text() for path in (ROOT / "tests" / "theory").glob("test_*.py"))
    assert len(named) >= 4 * 3
    assert named <= set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))
