"""The checkpoints of a store: a folder beside it, with a file for every long fleet whose results are not stored yet.

A file names the runs of its fleet, so the same fleet is formed again after a kill, however much else was finished in
the meantime. Only the process that holds the store's lock, and its workers, use the folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from isotherm.core.records import RunSpec, content_hash
from isotherm.engine.checkpoint import Checkpoint, report_unusable
from isotherm.engine.checkpoint_file import FORMAT, Header, UnusableError, read_header
from isotherm.version import __version__

logger = logging.getLogger("isotherm")

SUFFIX = ".checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFolder:
    """The folder of a store's checkpoints, and how often one is written.

    Args:
        path: the folder; it is created with the first checkpoint.
        seconds: between two checkpoints of a fleet; a shorter fleet has none.
    """

    path: Path
    seconds: float

    @classmethod
    def beside(cls, store: str | os.PathLike[str], *, seconds: float) -> Self:
        """Return the folder that belongs to a store."""
        file = Path(store).absolute()
        return cls(path=file.with_name(file.name + ".checkpoints"), seconds=seconds)

    def checkpoint(self, specs: Sequence[RunSpec], *, device: torch.device, how: str = "") -> Checkpoint:
        """Return the checkpoint of a fleet of these runs, in this order.

        Args:
            specs: the runs.
            device: where they are trained.
            how: follows the kind of device in words, where they are not trained as a fleet.
        """
        about = _about([spec.key for spec in specs], device, how=how)
        identity = _identity(about)
        return Checkpoint(self.path / f"{identity}{SUFFIX}", seconds=self.seconds, identity=identity, about=about)

    def unfinished(
        self, specs: Sequence[RunSpec], *, device: torch.device, fleet_size: int | None = None
    ) -> list[list[RunSpec]]:
        """Return the fleets that can continue from a checkpoint and whose runs are all wanted; no run is in two.

        Args:
            specs: the runs that are wanted.
            device: where they will be trained.
            fleet_size: larger fleets start over in pieces, as the user asked for smaller ones.
        """
        headers = dict(self._headers())
        by_key = {spec.key: spec for spec in specs} if headers else {}
        fleets: list[list[RunSpec]] = []
        for path, header in headers.items():
            keys = header.about["runs"]
            if not all(key in by_key for key in keys):
                continue
            if header.about != _about(keys, device):
                made, now = _words(header.about), _words(_about(keys, device))
                report_unusable(path, UnusableError(f"it was made {made}, and this is {now}"))
            elif fleet_size is not None and len(keys) > fleet_size:
                reason = f"it holds a fleet of {len(keys)} runs, and fleets of {fleet_size} are asked for"
                report_unusable(path, UnusableError(reason))
            else:
                fleets.append([by_key.pop(key) for key in keys])
        return fleets

    def saved_runs(self) -> set[str]:
        """Return the keys of all runs that are saved in a checkpoint."""
        return {key for _, header in self._headers() for key in header.about["runs"]}

    def clean(self, wanted: Set[str]) -> None:
        """Remove what no fleet will continue from: checkpoints with unwanted runs, and pieces of an interrupted save.

        No fleet of the store may be in training.
        """
        for path in self._files(".tmp"):
            _remove(path)
        self._remove_if(lambda keys: not keys <= wanted)

    def forget(self, stored: Set[str]) -> None:
        """Remove the checkpoints of runs that are now in the store."""
        self._remove_if(lambda keys: bool(keys & stored))

    def remove_if_empty(self) -> None:
        """Remove the folder if it is empty."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _remove_if(self, is_useless: Callable[[Set[str]], bool]) -> None:
        for path, header in self._headers():
            if is_useless(frozenset(header.about["runs"])):
                _remove(path)

    def _headers(self) -> Iterator[tuple[Path, Header]]:
        """Yield every checkpoint and its header; a file that does not match its name is reported and removed."""
        for path in self._files(SUFFIX):
            try:
                header = _checked_header(path)
            except FileNotFoundError:  # removed in the meantime
                continue
            except (OSError, UnusableError) as error:
                report_unusable(path, error)
                _remove(path)
            else:
                yield path, header

    def _files(self, ending: str) -> list[Path]:
        try:
            return sorted(path for path in self.path.iterdir() if SUFFIX in path.name and path.name.endswith(ending))
        except OSError:  # usually because no fleet has taken that long
            return []


def _about(keys: Sequence[str], device: torch.device, *, how: str = "") -> dict[str, Any]:
    """Return what a state depends on: the runs in order, the kind of device and the versions."""
    versions = {"isotherm": __version__, "torch": str(torch.__version__)}
    return {"runs": list(keys), "device": f"{device.type}{how}", **versions}


def _identity(about: Mapping[str, Any]) -> str:
    return content_hash({"format": FORMAT, **about})


def _checked_header(path: Path) -> Header:
    """Return the header of a checkpoint, once it matches the file's name."""
    header = read_header(path)
    runs, *others = (header.about.get(name) for name in ("runs", "device", "isotherm", "torch"))
    are_texts = isinstance(runs, list) and all(isinstance(text, str) for text in (*runs, *others))
    if not (are_texts and path.name == f"{header.identity}{SUFFIX}" and header.identity == _identity(header.about)):
        raise UnusableError("its header is damaged, or the file was renamed")
    return header


def _words(about: Mapping[str, Any]) -> str:
    return f"on {about['device']} with Isotherm {about['isotherm']} and PyTorch {about['torch']}"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next run tries again
        path.unlink(missing_ok=True)
