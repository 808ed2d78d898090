"""Imports point one way: the rooms of the package and, inside two of them, their sub-rooms."""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from pages.rooms import ROOMS, SOURCE, files, imports, modules_named, room_of, rooms_used

# The same inside two of them. A module of a room itself may be named here too; those that are not stand below all.
SUB_ROOMS = {
    "kernels": [
        "availability",
        "layout",
        "saved_checks",
        "build_server",
        "building",
        "kernel_check",
        "tiling",
        "gluon",
        "triton",
        "ops",
        "dispatch",
    ],
    "engine": [
        "graph",
        "update_rules",
        "parameters",
        "programs",
        "layers",
        "dropout",
        "placed_task",
        "data_parallel",
        "micro_batches",
        "memory",
        "micro_batch_check",
        "untrained",
        "checkpoint_file",
        "checkpoint",
        "evaluation",
        "stack",
    ],
}
ORDER = list(ROOMS)
TORCH_FREE = ["errors", "version", "core"]
FILES = files()


def rank(order: list[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_import_points_backwards(path: Path) -> None:
    own = room_of(path)
    assert own in ROOMS, f"{own} has no place among the rooms; give it one"
    for other in rooms_used(path):
        assert ORDER.index(other) <= ORDER.index(own), f"{own} must not import from {other}"


@pytest.mark.parametrize(
    "path", [p for p in FILES if room_of(p) in SUB_ROOMS], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_no_import_points_backwards_inside_a_room(path: Path) -> None:
    room, own = path.relative_to(SOURCE).with_suffix("").parts[:2]
    order = SUB_ROOMS[room]
    for name in imports(path) | modules_named(path):
        pieces = name.split(".")
        if pieces[:2] == ["isotherm", room] and len(pieces) > 2:
            assert rank(order, pieces[2]) <= rank(order, own), f"{room}.{own} must not import {name}"


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in TORCH_FREE], ids=lambda p: p.stem)
def test_the_vocabulary_needs_no_torch(path: Path) -> None:
    assert not any(module.split(".")[0] == "torch" for module in imports(path))


def test_a_string_that_names_a_module_counts_as_an_import(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('importlib.import_module("isotherm.cli.main")\ntext = "isotherm.sqlite and more"\n')
    assert rooms_used(path) == {"cli"}


def test_every_module_named_in_a_string_exists() -> None:
    for path in FILES:
        for name in modules_named(path):
            assert importlib.util.find_spec(name) is not None, f"{path} names {name}"


def test_nothing_but_the_command_line_and_the_papers_report_imports_studies() -> None:
    for path in FILES:
        if room_of(path) not in ("studies", "cli") and path.parent != SOURCE / "report" / "paper":
            assert not any(name.startswith("isotherm.studies") for name in imports(path)), path


def test_no_unsafe_loading_anywhere() -> None:
    # What the process that starts workers sends to them, over its own pipes, is unpacked there and nothing else.
    names = (
        "running/executors/packing.py",
        "tasks/datasets/workers.py",
        "kernels/building.py",
        "kernels/build_server.py",
    )
    from_parent = {SOURCE / name for name in names}
    for path in FILES:
        text = path.read_text()
        assert "pickle" not in imports(path) or path in from_parent, path
        assert "pickle.load" not in text or path in from_parent, path
        assert "eval(" not in text.replace(".eval(", ""), path
        assert "torch.load(" not in text or "weights_only=True" in text, path
    restricted = SOURCE / "data" / "restricted_pickle.py"
    nodes = list(ast.walk(ast.parse(restricted.read_text())))
    used = [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute | ast.ImportFrom)]
    # It parses instructions and follows them itself: nothing is loaded.
    assert [name for name in used if name.startswith(("pickle", "from pickle"))] == ["pickletools.genops"]


def test_no_two_test_files_have_one_name() -> None:
    """Tests are no package, so pytest takes the second for the first and collects nothing."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, num in names.items() if num > 1] == []
