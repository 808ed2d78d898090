import json
import math

import pytest

from isotherm.core.divergence import DIVERGENCE_FACTOR, FACTOR_WITHOUT_LEARNING, ends_far_above_start
from pages.clipping import FILE

BOTH = pytest.mark.parametrize(("beats", "factor"), [(True, DIVERGENCE_FACTOR), (False, FACTOR_WITHOUT_LEARNING)])


@BOTH
@pytest.mark.parametrize("start", [1e-6, 0.7, 2.3, 1e6])
def test_more_than_the_factor_is_far_and_the_factor_itself_is_not(start: float, beats: bool, factor: float) -> None:
    limit = factor * start
    assert not ends_far_above_start(limit, loss_at_start=start, beats_constant=beats)
    assert ends_far_above_start(math.nextafter(limit, math.inf), loss_at_start=start, beats_constant=beats)


@pytest.mark.parametrize("beats", [True, False])
@pytest.mark.parametrize("loss", [-1e9, 0.0, 2.3, 2.4, 4.5])
def test_a_loss_near_its_start_or_below_is_not_far_above_it(loss: float, beats: bool) -> None:
    assert not ends_far_above_start(loss, loss_at_start=2.3, beats_constant=beats)


@pytest.mark.parametrize("beats", [True, False])
@pytest.mark.parametrize("start", [0.0, math.nan, math.inf])
def test_a_start_without_a_scale_says_nothing(start: float, beats: bool) -> None:
    assert not ends_far_above_start(1e30, loss_at_start=start, beats_constant=beats)


def test_lstm_runs_that_blew_up_are_told_from_those_that_learned() -> None:
    """Runs without clipping that were stored as finished by an earlier rule; their start is ln 10,000 = 9.2."""
    rows = [row["result"] for row in json.loads(FILE.read_text())["runs"] if row["result"]["outcome"] == "finished"]
    by_new = {
        row["test_metric"]: ends_far_above_start(
            row["train_loss"], loss_at_start=math.log(10_000), beats_constant=False
        )
        for row in rows
    }
    assert [value > 1e9 for value in by_new] == list(by_new.values())
    assert sum(by_new.values()) == 6 < len(by_new)
    assert not any(ends_far_above_start(row["train_loss"], loss_at_start=math.log(10_000)) for row in rows)
