"""How often a recording is played: as often as asked, several at a time where that was recorded."""

from __future__ import annotations

import pytest

from isotherm.engine.programs.cuda_graph import SEVERAL, Recording


class Graph:
    """Stands in for a CUDA graph; notes how many calls of the function a replay makes."""

    def __init__(self, done: list[int], times: int) -> None:
        self._done, self._times = done, times

    def replay(self) -> None:
        self._done.append(self._times)


@pytest.mark.parametrize("times", [0, 1, SEVERAL - 1, SEVERAL, SEVERAL + 1, 64, 67])
@pytest.mark.parametrize("has_several", [False, True])
def test_a_recording_is_played_as_often_as_asked(times: int, has_several: bool) -> None:
    done: list[int] = []
    recording = Recording(Graph(done, 1), Graph(done, SEVERAL) if has_several else None)  # type: ignore[arg-type]
    recording.play(times)
    assert sum(done) == times
    assert done.count(SEVERAL) == (times // SEVERAL if has_several else 0)
