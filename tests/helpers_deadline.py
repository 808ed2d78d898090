"""Deadlines that come after a number of questions instead of seconds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

from isotherm.engine.deadline import Deadline


@dataclasses.dataclass(frozen=True, kw_only=True)
class AfterQuestions(Deadline):
    """Has an hour left until it has been asked `num` times, and nothing afterwards."""

    num: int
    asked: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    @property
    def seconds_left(self) -> float:
        return 3600.0 if next(self.asked) < self.num else -1.0


def ends_after(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    """Let the next call of `run_study` be out of time after so many questions."""
    monkeypatch.setattr("isotherm.running.runner._deadline", lambda *_: AfterQuestions(num=num))
