"""A warning of fleets in this process that make no progress; nobody can end them without ending the process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from isotherm.core.records import RunSpec
from isotherm.running.executors.dispatch import NO_PROGRESS_SECONDS, no_progress

logger = logging.getLogger("isotherm")


class ProgressWatch:
    """Warns once of every fleet that makes no update for a long time.

    Args:
        seconds: without an update, before the warning.
    """

    def __init__(self, seconds: float = NO_PROGRESS_SECONDS) -> None:
        self._seconds = seconds
        self._last = 0.0

    def advanced(self) -> None:
        """Note an update."""
        self._last = time.monotonic()

    @contextmanager
    def over(self, specs: Sequence[RunSpec]) -> Iterator[None]:
        """Watch while a fleet is trained in this context."""
        self.advanced()
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(list(specs), is_over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def _watch(self, specs: Sequence[RunSpec], is_over: threading.Event) -> None:
        while not is_over.wait(max(0.0, self._last + self._seconds - time.monotonic())):
            seconds = time.monotonic() - self._last
            if seconds >= self._seconds:
                logger.warning("%s", no_progress(specs, seconds))
                return
