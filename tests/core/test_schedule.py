import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.core.schedule import NUM_DROPS, Schedule, multipliers, num_drops
from isotherm.errors import UserError

lengths = st.integers(1, 400) | st.integers(1, 100_000)
gammas = st.floats(0.5, 10.0)


def drops_by_walking(num_steps: int) -> list[int]:
    """Return the number of drops before each update, counted one update at a time."""
    hold, interval = num_steps // 2, max(1, num_steps // 20)
    drops, counts = 0, []
    for step in range(num_steps):
        if step >= hold and (step - hold) % interval == 0 and drops < 10:
            drops += 1
        counts.append(drops)
    return counts


def drops_in(num_steps: int) -> np.ndarray:
    return np.rint(-np.log2(multipliers(num_steps, gamma=2.0))).astype(int)


@given(lengths)
@example(1)
@example(2)
@example(19)
@example(20)
@example(21)
@example(39)
@example(40)
def test_multipliers_equal_a_scalar_loop(num_steps):
    assert drops_in(num_steps).tolist() == drops_by_walking(num_steps)


@given(lengths, st.data())
def test_num_drops_equals_the_scalar_loop(num_steps, data):
    step = data.draw(st.integers(0, num_steps - 1))
    assert num_drops(step, num_steps=num_steps) == drops_by_walking(num_steps)[step]


@pytest.mark.parametrize("num_steps", range(1, 130))
def test_num_drops_equals_multipliers_at_every_update_of_a_short_run(num_steps):
    assert [num_drops(i, num_steps=num_steps) for i in range(num_steps)] == drops_in(num_steps).tolist()


@given(lengths)
def test_first_drop_comes_at_half_the_updates(num_steps):
    drops = drops_in(num_steps)
    assert (drops[: num_steps // 2] == 0).all()
    assert drops[num_steps // 2] == 1


@given(lengths)
def test_drops_come_one_by_one_and_never_more_than_ten(num_steps):
    changes = np.diff(drops_in(num_steps))
    assert set(changes.tolist()) <= {0, 1}
    assert drops_in(num_steps)[-1] <= NUM_DROPS == 10


@given(st.integers(20, 100_000), gammas)
def test_the_last_learning_rate_is_gamma_to_the_minus_ten(num_steps, gamma):
    assert multipliers(num_steps, gamma=gamma)[-1] == pytest.approx(gamma**-10, rel=1e-13)


@given(lengths, gammas)
def test_multipliers_are_powers_of_gamma(num_steps, gamma):
    expected = [gamma**-k for k in drops_by_walking(num_steps)]
    np.testing.assert_allclose(multipliers(num_steps, gamma=gamma), expected, rtol=1e-13)


@given(lengths)
def test_gamma_of_one_is_a_constant_rate(num_steps):
    assert (multipliers(num_steps, gamma=1.0) == 1.0).all()


def test_the_papers_numbers():
    # 9,765 updates: the first drop after 4,882, then one every 488.
    drops = drops_in(9765)
    first_of_each = [int(np.argmax(drops == k)) for k in range(1, 11)]
    assert first_of_each == [4882 + 488 * k for k in range(10)]
    assert multipliers(9765, gamma=2)[-1] == 2.0**-10


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_ending_at_reaches_the_final_rate_whatever_the_first(initial, final):
    gamma = Schedule.ending_at(final).gamma_from(initial)
    assert initial * multipliers(200, gamma=gamma)[-1] == pytest.approx(final, rel=1e-12)


@given(st.floats(1e-3, 1e3), gammas)
def test_a_given_gamma_does_not_depend_on_the_first_rate(initial, gamma):
    assert Schedule(gamma=gamma).gamma_from(initial) == gamma


def test_the_default_is_the_papers_gamma():
    assert Schedule() == Schedule(gamma=2.0)


def test_ending_at_is_neither_equal_nor_alike_to_a_gamma():
    schedule = Schedule.ending_at(0.5)
    assert (schedule.gamma, schedule.final_effective_learning_rate) == (None, 0.5)


@pytest.mark.parametrize("fields", [{"gamma": None}, {"gamma": 2.0, "final_effective_learning_rate": 0.1}])
def test_one_of_the_two_is_needed(fields):
    with pytest.raises(UserError, match=r"not both; got gamma=.*; drop one"):
        Schedule(**fields)


@pytest.mark.parametrize("value", [0.0, -2.0, math.nan, math.inf])
def test_gamma_must_be_positive(value):
    with pytest.raises(UserError, match=f"gamma={value} is not a positive number; the paper uses gamma=2"):
        Schedule(gamma=value)


@pytest.mark.parametrize("value", [0.0, -2.0, math.nan, math.inf])
def test_the_final_rate_must_be_positive(value):
    with pytest.raises(UserError, match=f"final_effective_learning_rate={value} is not a positive number"):
        Schedule.ending_at(value)
