import math

import pytest

from isotherm.core.divergence import DIVERGENCE_FACTOR, ends_far_above_start


@pytest.mark.parametrize("start", [1e-6, 0.7, 2.3, 1e6])
def test_more_than_the_factor_is_far_and_the_factor_itself_is_not(start: float) -> None:
    limit = DIVERGENCE_FACTOR * start
    assert not ends_far_above_start(limit, loss_at_start=start)
    assert ends_far_above_start(math.nextafter(limit, math.inf), loss_at_start=start)


@pytest.mark.parametrize("loss", [-1e9, 0.0, 2.3, 2.4, 23.0])
def test_a_loss_near_its_start_or_below_is_not_far_above_it(loss: float) -> None:
    assert not ends_far_above_start(loss, loss_at_start=2.3)


@pytest.mark.parametrize("start", [0.0, math.nan, math.inf])
def test_a_start_without_a_scale_says_nothing(start: float) -> None:
    assert not ends_far_above_start(1e30, loss_at_start=start)
