"""Who is told while a study runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isotherm.core.records import CurvePoint, RunSpec
from isotherm.running.store import StoredRun
from isotherm.sweep.rounds import Round


class Progress(Protocol):
    """Receives reports while a study runs."""

    def round_started(self, round_: Round) -> None:
        """A round of the protocol begins."""

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        """A fleet of these runs is about to be trained."""

    def advanced(self, work: float) -> None:
        """Work was done, in the units of `work_of`."""

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """A run was evaluated on the test set along the way."""

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        """The runs of a fleet are in the store."""

    def noted(self, sentence: str) -> None:
        """There is something to know about the store."""


class Several:
    """Passes every report to several listeners, in the order in which they were added; None is nobody."""

    def __init__(self, *listeners: Progress | None) -> None:
        self._listeners = [listener for listener in listeners if listener is not None]

    def add(self, listener: Progress | None) -> None:
        """Add a listener."""
        self._listeners += [] if listener is None else [listener]

    def round_started(self, round_: Round) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.round_started(round_)

    def fleet_started(self, specs: Sequence[RunSpec]) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.fleet_started(specs)

    def advanced(self, work: float) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.advanced(work)

    def evaluated(self, spec: RunSpec, point: CurvePoint) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.evaluated(spec, point)

    def runs_done(self, runs: Sequence[StoredRun]) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.runs_done(runs)

    def noted(self, sentence: str) -> None:
        """Pass it on."""
        for listener in self._listeners:
            listener.noted(sentence)
