"""From what a user names to a store."""

from __future__ import annotations

from pathlib import Path

from isotherm.errors import StoreError
from isotherm.studies import STUDIES


def default_store(name: str) -> Path:
    """Return the default store of a study."""
    return Path(f"{name}.sqlite")


def store_path(reference: str) -> Path:
    """Return the store that a user names: a path, a folder with one store, or a study stored in this folder."""
    path = Path(reference)
    if not path.exists() and reference in STUDIES:
        candidates = (path / f"{reference}.sqlite", default_store(reference))
        return next((candidate for candidate in candidates if candidate.exists()), path)
    if path.suffix == ".toml" or (not path.exists() and ":" in reference):
        from isotherm.studies.load import study_name

        return default_store(study_name(reference))
    return _only_store(path) if path.is_dir() else path


def run_command(reference: str, name: str, store: Path) -> list[str]:
    """Return the words of the command that runs a study into a store; a study known by its name alone may be a file.

    >>> run_command("mine", "mine", Path("runs/mine.sqlite"))
    ['isotherm', 'run', 'mine.toml', '--store', 'runs/mine.sqlite']
    """
    known = reference in STUDIES or reference.endswith(".toml") or ":" in reference
    place = [] if store == default_store(name) else ["--store", str(store)]
    return ["isotherm", "run", reference if known else f"{name}.toml", *place]


def _only_store(folder: Path) -> Path:
    stores = sorted(folder.glob("*.sqlite"))
    if len(stores) != 1:
        names = f"name one file: {', '.join(map(str, stores))}" if stores else "name a file, or run a study into one"
        raise StoreError(f"{folder} is a folder with {len(stores)} stores in it; {names}")
    return stores[0]
