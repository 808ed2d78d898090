"""The rooms of the package: their order, and what each imports, read from the source.

`tests/test_layers.py` holds the order; docs/architecture.md shows it.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

from pages.results import ROOT
from pages.text import table

SOURCE = ROOT / "src" / "isotherm"

# What each room holds, from the top of the house down: a room imports from itself and from rooms above it.
ROOMS = {
    "errors": "what a user is told when something is wrong",
    "version": "the version, said once",
    "core": "temperature, budget, schedule, records, statistics: formulas once, no PyTorch",
    "data": "data sets as tensors, verified; augmentation",
    "kernels": "GPU kernels and the operations they implement",
    "models": "the paper's networks",
    "tasks": "what is trained: task, losses, metrics, identity, seeding",
    "theory": "noisy quadratic, SDE, curvature, gradient noise scale",
    "engine": "reference (the definition) and fleets; graph passes; programs for CPU and GPU",
    "sweep": "the protocol: sweep, study, what to run next, results",
    "running": "runner, store, cost, executors",
    "analysis": "optima, regimes, verdicts, recommendation, each computed once",
    "diagnose": "short runs instead of a sweep",
    "studies": "shipped studies, TOML loader",
    "report": "HTML pages and figures",
    "bench": "speed against other ways to train",
    "cli": "one file per command",
    "__main__": "`python -m isotherm`",
}


def files() -> list[Path]:
    """Return every module of the package but its own `__init__`, which only names what is public."""
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room_of(path: Path) -> str:
    """Return the room of a file."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules_named(path: Path) -> set[str]:
    """Return the modules of the package that the strings of a file name, such as those imported by name later."""
    texts = {node.value for node in ast.walk(_tree(path)) if isinstance(node, ast.Constant)}
    names = {text for text in texts if isinstance(text, str) and text.startswith("isotherm.")}
    return {name for name in names if all(piece.isidentifier() for piece in name.split("."))}


def rooms_used(path: Path) -> set[str]:
    """Return the rooms that a file imports from, by an import or by a string."""
    names = [name.split(".") for name in imports(path) | modules_named(path)]
    return {pieces[1] for pieces in names if pieces[0] == "isotherm" and len(pieces) > 1 and pieces[1] in ROOMS}


def num_users() -> Counter[tuple[str, str]]:
    """Return how many files of one room import from another, by (room, other room)."""
    return Counter((room_of(path), other) for path in files() for other in rooms_used(path) - {room_of(path)})


def public_names(path: Path) -> list[str]:
    """Return the functions, classes and constants that a file defines for others."""
    names = []
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return [name for name in names if not name.startswith("_")]


def rooms_block() -> str:
    """Return a table of the rooms: what each holds, and where it imports from."""
    users = num_users()
    rows = [
        (f"`{room}`", holds, ", ".join(other for other in ROOMS if users[room, other]) or "–")
        for room, holds in ROOMS.items()
    ]
    return table(("room", "holds", "imports from"), rows)


def sizes_block() -> str:
    """Return a table of the rooms' sizes: files, lines, the longest file, and names that others may use."""
    rows = []
    for room in ROOMS:
        own = [path for path in files() if room_of(path) == room]
        lengths = {path: len(path.read_text().splitlines()) for path in own}
        longest = max(own, key=lambda path: lengths[path])
        rows.append(
            (
                f"`{room}`",
                str(len(own)),
                f"{sum(lengths.values()):,}",
                f"`{longest.relative_to(SOURCE)}` ({lengths[longest]})",
                str(sum(len(public_names(path)) for path in own)),
            )
        )
    return table(("room", "files", "lines", "longest file", "public names"), rows)
