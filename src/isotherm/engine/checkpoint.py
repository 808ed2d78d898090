"""Checkpoints of a fleet, so that a fleet that was killed continues from the last one."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from isotherm.engine.checkpoint_file import Header, State, UnusableError, read_state, write_state

logger = logging.getLogger("isotherm")


class Checkpoint:
    """The file in which a fleet saves its state, and how often.

    Args:
        path: the file; its folder is created when needed.
        seconds: between two saves.
        identity: of the fleet; a file with another identity is not loaded.
        about: JSON values that describe the fleet; `read_header` returns them without reading the state.
    """

    def __init__(
        self, path: Path, *, seconds: float = 60.0, identity: str, about: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.seconds_before = 0.0  # of training before this process continued it
        self.longest_save = 0.0  # in seconds
        self._seconds = seconds
        self._identity = identity
        self._about = dict(about or {})
        self._start = self._last = time.monotonic()
        self._has_warned = False

    def load(self, map_location: torch.device | str) -> State | None:
        """Return the state that was saved last, or None.

        A file that is damaged or of another fleet is reported and removed.
        """
        try:
            with self.path.open("rb") as file:
                state, header = read_state(file, identity=self._identity, map_location=map_location)
        except FileNotFoundError:
            return None
        except (OSError, UnusableError) as error:
            self._give_up(error)
            return None
        self.seconds_before = header.seconds
        return state

    def refuse(self, reason: str) -> None:
        """Report and remove what was loaded, as it cannot be continued from."""
        self.seconds_before = 0.0
        self._give_up(UnusableError(reason))

    def _give_up(self, error: OSError | UnusableError) -> None:
        report_unusable(self.path, error)
        self.remove()

    def is_due(self) -> bool:
        """Tell whether it is time to save."""
        return time.monotonic() - self._last >= self._seconds

    def save(self, state: State) -> None:
        """Replace the state that was saved before; a kill at any moment leaves one of the two.

        If the disk fails, a warning is logged once and training continues.
        """
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        start = time.monotonic()
        try:
            self.path.parent.mkdir(exist_ok=True)
            with temporary.open("wb") as file:
                write_state(file, state, self._header())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            self._warn(error)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._last = time.monotonic()
            self.longest_save = max(self.longest_save, self._last - start)

    def remove(self) -> None:
        """Remove the file, if there is one."""
        with contextlib.suppress(OSError):  # a later run cleans up
            self.path.unlink(missing_ok=True)

    def _header(self) -> Header:
        trained = self.seconds_before + time.monotonic() - self._start
        return Header(identity=self._identity, about=self._about, seconds=trained)

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            logger.warning(
                "the checkpoint %s cannot be written: %s; training continues, but would start over after a kill: "
                "free some space, or check the permissions of the folder",
                self.path,
                error.strerror or error,
            )
        self._has_warned = True


def report_unusable(path: Path, error: BaseException) -> None:
    """Warn of a checkpoint that cannot be used."""
    reason = f"it cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
    logger.warning("the checkpoint %s is not used, and its fleet starts over: %s", path, reason)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
