"""Results of earlier checks of how a task can be trained."""

from __future__ import annotations

import logging

from isotherm.engine.placed_task import PlacedTask

logger = logging.getLogger("isotherm")


class FleetChecks:
    """Remembers the outcome of checks, so that later fleets of the same placed task need not repeat them.

    >>> checks = FleetChecks()
    >>> checks.add_passed(64, as_one=True)
    >>> checks.has_passed(64, as_one=True), checks.has_passed(64, as_one=False)
    (True, False)
    """

    def __init__(self) -> None:
        self._passed: set[tuple[int, bool]] = set()
        self._without_kernels: set[int] = set()
        self._one_by_one: set[int] = set()
        self._said: set[str] = set()

    def add_passed(self, batch_size: int, *, as_one: bool) -> None:
        """Note that the module was trained correctly at a batch size, several runs as one or a run by itself."""
        self._passed.add((batch_size, as_one))

    def has_passed(self, batch_size: int, *, as_one: bool) -> bool:
        """Tell whether it was."""
        return (batch_size, as_one) in self._passed

    def add_without_kernels(self, batch_size: int) -> None:
        """Note that kernels cannot compute the convolutions of many runs at once at a batch size."""
        self._without_kernels.add(batch_size)

    def say_once(self, kind: str, sentence: str) -> None:
        """Log a sentence, unless one of its kind was logged before."""
        if not self.has_said(kind):
            self._said.add(kind)
            logger.warning("%s", sentence, extra={"kind": kind})  # several workers may say it

    def has_said(self, kind: str) -> bool:
        """Tell whether a sentence of a kind was logged."""
        return kind in self._said

    def add_one_by_one(self, batch_size: int) -> None:
        """Note that runs were trained one at a time at a batch size, as no fleet can be."""
        self._one_by_one.add(batch_size)

    def are_one_by_one(self, batch_size: int) -> bool:
        """Tell whether they were."""
        return batch_size in self._one_by_one

    def convolves_together(self, placed: PlacedTask, batch_size: int) -> bool:
        """Tell whether kernels should compute the convolutions of all runs at once."""
        return batch_size not in self._without_kernels and placed.convolves_together(batch_size)

    def wants_own_streams(self, placed: PlacedTask, batch_size: int) -> bool:
        """Tell whether each run should be a program of its own: on a GPU, where convolutions are faster that way."""
        has_convolutions = placed.device.type == "cuda" and placed.has_convolutions
        return has_convolutions and not self.convolves_together(placed, batch_size)
