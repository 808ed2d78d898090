"""Which data sets of the catalogue are in a data folder, from names and sizes alone, without reading them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from isotherm.data import files
from isotherm.data.catalogue import DATASETS, DataFile, Dataset


class Presence(enum.StrEnum):
    """Whether a data set is likely to load."""

    COMPLETE = "complete"
    MISSING = "missing"
    WRONG = "wrong"


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """The state of a data set in a data folder; `detail` says what it is based on."""

    dataset: Dataset
    folder: Path
    presence: Presence
    detail: str

    @property
    def size(self) -> int | None:
        """The size of its files in bytes; None if the catalogue does not know it."""
        return sum(file.size for file in self.dataset.files) or None


def listed(folder: Path) -> list[Listed]:
    """Return the state of every data set of the catalogue in the data folder."""
    return [list_one(dataset, folder) for dataset in DATASETS.values()]


def list_one(dataset: Dataset, folder: Path) -> Listed:
    """Return the state of one data set: files by their sizes, a folder of images by its structure."""
    presence, detail = _presence(dataset, folder)
    return Listed(dataset=dataset, folder=folder / dataset.name, presence=presence, detail=detail)


def _presence(dataset: Dataset, folder: Path) -> tuple[Presence, str]:
    statuses = files.verify(dataset, folder, sizes_only=True)
    if not statuses:
        return Presence.COMPLETE, "generated, nothing to fetch"
    own, what = folder / dataset.name, "splits" if dataset.splits else "files"
    wrong = [status for status in statuses if status.state is files.State.WRONG_SIZE]
    absent = [status for status in statuses if status.state is files.State.MISSING]
    if wrong:
        return Presence.WRONG, f"{wrong[0].path.relative_to(own)} has another size"
    if not absent:
        return Presence.COMPLETE, f"{len(statuses)} {what}"
    if dataset.files and all(_has_stand_in(own, file, dataset) for file in dataset.files):
        return Presence.COMPLETE, "in another layout, read unchecked"
    if len(absent) == len(statuses):
        return Presence.MISSING, f"none of {len(statuses)} {what}"
    names = ", ".join(str(status.path.relative_to(own)) for status in absent[:2])
    return Presence.MISSING, f"{len(absent)} of {len(statuses)} {what}: {names}{', …' if len(absent) > 2 else ''}"


def _has_stand_in(own: Path, file: DataFile, dataset: Dataset) -> bool:
    """Tell whether the loader finds the file, or another layout of the data set instead."""
    path = own / file.path
    if path.is_file():
        return True
    others = [own / other for other in dataset.alternatives]
    folders = [other for other in others if other.is_dir() and not path.parent.is_dir()]
    return bool(folders) or any(other.is_file() and path.with_suffix("") == other for other in others)
