"""Imports point one way: the layers of the package, read from its source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import isotherm

SOURCE = Path(isotherm.__file__).parent

# A module may import from its own layer and from those before it.
LAYERS = [
    ["errors", "temperature", "penalty"],
    ["budget", "schedule", "records"],
    ["seeding", "statistics"],
    ["optimum"],
    ["identity", "data", "models"],
    ["tasks"],
    ["theory"],
    ["named_tasks", "sweep", "engine"],
    ["study", "store"],
    ["executors", "protocol"],
    ["results"],
    ["regimes", "runner"],
    ["recommend", "verdicts", "planning", "bench", "diagnose"],
    ["report", "studies"],
    ["cell"],
    ["console", "commands"],
    ["cli_data", "cli_bench", "cli_diagnose", "cli_theory"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
TORCH_FREE = ["errors", "temperature", "penalty", "budget", "schedule", "records", "statistics", "optimum"]
FILES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the full names of all modules a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "isotherm":
                found |= {f"isotherm.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_import_points_backwards(path: Path) -> None:
    own = part(path)
    assert own in LEVEL, f"{own} has no place among the layers; give it one"
    for name in imports(path):
        pieces = name.split(".")
        if pieces[0] == "isotherm" and len(pieces) > 1 and pieces[1] in LEVEL:
            assert LEVEL[pieces[1]] <= LEVEL[own], f"{own} must not import {name}"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_the_vocabulary_needs_no_torch(name: str) -> None:
    assert not any(module.split(".")[0] == "torch" for module in imports(SOURCE / f"{name}.py"))


def test_nothing_but_the_command_line_imports_studies() -> None:
    for path in FILES:
        if part(path) not in ("studies", "cli", "cli_bench", "cli_diagnose"):
            assert not any(name.startswith("isotherm.studies") for name in imports(path)), path


def test_no_unsafe_loading_anywhere() -> None:
    for path in FILES:
        text = path.read_text()
        assert "pickle" not in imports(path) or path == SOURCE / "data" / "restricted_pickle.py", path
        assert "pickle.load" not in text, path
        assert "eval(" not in text.replace(".eval(", ""), path
        assert "torch.load(" not in text or "weights_only=True" in text, path
    restricted = SOURCE / "data" / "restricted_pickle.py"
    nodes = list(ast.walk(ast.parse(restricted.read_text())))
    used = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute | ast.ImportFrom)]
    assert [name for name in used if name.startswith(("pickle", "from pickle"))] == ["pickle.Unpickler"]
    (unpickler,) = [n for n in nodes if isinstance(n, ast.ClassDef) and "pickle.Unpickler" in map(ast.unparse, n.bases)]
    assert any(isinstance(n, ast.FunctionDef) and n.name == "find_class" for n in unpickler.body)
