import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.core.multipliers import multipliers
from isotherm.core.run_schedule import NUM_DROPS, num_drops
from isotherm.core.schedule import Schedule
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


# -- other shapes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schedule.named("cosin"), "schedule 'cosin' is unknown; did you mean 'cosine'"),
        (lambda: Schedule.named("cosine", warmup=5), "no option 'warmup'; did you mean 'warmup_"),
        (lambda: Schedule.named("cosine", decay_fraction=0.1), "decay_fraction=0.1 is no option .* but of wsd"),
        (lambda: Schedule.named("linear", gamma=2.0), "gamma=2.0 is no option of the schedule 'linear', but of paper"),
        (lambda: Schedule(shape="cosine"), r"gamma=2.0 .* by default; .*Schedule.cosine\(\.\.\.\)"),
        (
            lambda: Schedule(shape="cosine", decay_fraction=0.1),
            "^decay_fraction=0.1 is no option .* but of wsd; leave it",
        ),
        (
            lambda: Schedule.linear(final_effective_learning_rate=-0.1),
            "^final_effective_learning_rate=-0.1 is not a number >= 0; give e.g. 0$",
        ),
        (
            lambda: Schedule.wsd(gamma=2.0),
            "^Schedule.wsd has no option 'gamma', which belongs to 'paper'; known: decay",
        ),
        (lambda: Schedule.of(float, gamma=2.0), "^Schedule.of has no option 'gamma', which belongs to 'paper'"),
        (lambda: Schedule.cosine(0.1), r"by name, e\.g\. Schedule\.cosine\(final_fraction=0\.1\)"),
        (lambda: Schedule(gama=3.0), "Schedule has no option 'gama'; did you mean 'gamma'"),
        (lambda: Schedule.cosine(warmup_fraction=1.2), "warmup_fraction=1.2 is not between 0 and 1"),
        (lambda: Schedule.cosine(warmup_fraction=1.0), "all of training"),
        (lambda: Schedule.cosine(warmup_fraction=math.nan), "warmup_fraction=nan is not between 0 and 1"),
        (lambda: Schedule.cosine(warmup_steps=-1), "warmup_steps=-1 is not a whole number"),
        (lambda: Schedule.cosine(warmup_steps=0.1), "warmup_steps=0.1 .* or a part of training with warmup_fraction"),
        (lambda: Schedule.cosine(warmup_steps=5, warmup_fraction=0.1), "say the same; drop one"),
        (lambda: Schedule.linear(final_fraction=-0.1), "final_fraction=-0.1 .* part of the peak learning rate"),
        (lambda: Schedule.linear(final_effective_learning_rate=-1.0), "final_effective_learning_rate=-1.0 is not a "),
        (lambda: Schedule.linear(final_effective_learning_rate=math.inf), "final_effective_learning_rate=inf"),
        (lambda: Schedule.linear(final_fraction=0.1, final_effective_learning_rate=0.1), "say the same; drop one"),
        (lambda: Schedule.wsd(decay_fraction=1.5), "decay_fraction=1.5 is not between 0 and 1"),
        (lambda: Schedule.wsd(decay_fraction=0.6, warmup_fraction=0.5), "more than all of training"),
        (lambda: Schedule.piecewise([(0, 1)]), "two or more pairs"),
        (lambda: Schedule.named("piecewise"), "two or more pairs"),
        (lambda: Schedule.of(lambda _: math.nan), "returns nan at the fraction 0"),
    ],
)
def test_what_makes_no_schedule_is_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize(
    ("schedule", "num_steps", "words"),
    [
        (Schedule.cosine(warmup_steps=100), 100, "warm-up of 100 updates does not fit into a training of 100 updates"),
        (Schedule(warmup_steps=2000), 100, "warm-up of 2,000 updates does not fit"),
        (Schedule.wsd(warmup_steps=81), 100, "warm-up of 81 updates and a decay of 20 does not fit"),
    ],
)
def test_a_warm_up_that_is_too_long_is_refused(schedule, num_steps, words):
    with pytest.raises(UserError, match=words):
        schedule.check_length(num_steps)
    with pytest.raises(UserError, match=words):
        schedule.of_run(num_steps=num_steps, initial=0.1)
    schedule.check_length(2 * num_steps + 2000)


@given(st.integers(1, 50), st.floats(0, 0.999), st.floats(0, 1))
def test_a_warm_up_in_parts_always_fits(num_steps, warmup, decay):
    schedule = Schedule.wsd(warmup_fraction=warmup, decay_fraction=min(decay, 1 - warmup))
    _, rest = schedule.of_run(num_steps=num_steps, initial=0.1)
    assert rest.warmup_steps + rest.decay_steps <= num_steps
    assert rest.warmup_steps < num_steps


def test_steps_and_parts_of_training_are_one_run():
    parts = Schedule.cosine(warmup_fraction=0.05, final_fraction=0.1).of_run(num_steps=2000, initial=0.5)
    assert parts == Schedule.cosine(warmup_steps=100, final_effective_learning_rate=0.05).of_run(
        num_steps=2000, initial=0.5
    )


def test_the_papers_schedule_and_a_constant_rate_are_gamma_alone():
    assert Schedule().of_run(num_steps=100, initial=0.5) == (2.0, None)
    assert Schedule(warmup_steps=0).of_run(num_steps=100, initial=0.5) == (2.0, None)
    assert Schedule.constant().of_run(num_steps=100, initial=0.5) == (1.0, None)


def test_refitted_to_another_length_it_has_the_same_form():
    schedule = Schedule.wsd(warmup_steps=500, final_effective_learning_rate=0.1).refitted(10_000)
    assert schedule == Schedule.wsd(warmup_fraction=0.05, final_effective_learning_rate=0.1)
    assert schedule.refitted(100) is schedule


def test_only_what_ends_somewhere_has_a_final_rate():
    ends = {shape for shape in ("paper", "constant", "linear", "cosine", "wsd") if Schedule.named(shape).has_final_rate}
    assert ends == {"paper", "linear", "cosine", "wsd"}
    assert not Schedule.piecewise([(0, 1), (1, 0)]).has_final_rate
    fixed = [Schedule(gamma=3.0), Schedule.ending_at(0.1), Schedule.linear(final_fraction=0.0)]
    assert [schedule.fixes_final_rate for schedule in fixed] == [True] * 3
    assert not any(Schedule.named(shape).fixes_final_rate for shape in ("paper", "linear", "cosine", "wsd"))
    assert Schedule().ending(0.25) == Schedule.ending_at(0.25)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(),
        Schedule.ending_at(0.5),
        Schedule.constant(warmup_steps=5),
        Schedule.wsd(decay_fraction=0.3, final_fraction=0.1),
        Schedule.of(lambda done: 1 - done * done),
    ],
)
def test_a_schedule_survives_json(schedule):
    assert Schedule.from_json(json.loads(json.dumps(dataclasses.asdict(schedule)))) == schedule


def test_the_first_stores_knew_only_the_papers():
    assert Schedule.from_json({"gamma": 3.0, "final_effective_learning_rate": None}) == Schedule(gamma=3.0)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(), "constant for half of the updates, then ten drops by a factor of 2 each"),
        (Schedule.ending_at(0.5), "constant for half of the updates, then ten drops down to ε_eff = 0.5"),
        (Schedule.constant(warmup_steps=1000), "linear warm-up over 1,000 updates, then constant"),
        (Schedule.linear(final_fraction=0.1), "linear decay to 10 % of the peak"),
        (Schedule.wsd(), "constant, with a linear decay to 0 in the last 20 %"),
    ],
)
def test_schedules_in_words(schedule, words):
    assert str(schedule) == words
