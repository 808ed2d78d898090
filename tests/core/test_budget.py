import math
import re
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isotherm.core.budget import Budget, BudgetUnit, updates_per_pass
from isotherm.errors import UserError

# Epochs as a person writes them: up to four decimals.
epochs = st.decimals("0.0001", "1000", places=4).map(float)
num_trains = st.integers(1, 100_000)
batch_sizes = st.integers(1, 10_000)


def exact_steps(amount: float, num_train: int, batch_size: int) -> int:
    return math.floor(Fraction(str(amount)) * num_train / batch_size)


@given(epochs, num_trains, batch_sizes)
def test_steps_are_the_exact_floor(amount, num_train, batch_size):
    expected = exact_steps(amount, num_train, batch_size)
    assume(expected >= 1)
    assert Budget.epochs(amount).num_steps(num_train=num_train, batch_size=batch_size) == expected


@given(epochs, num_trains, batch_sizes)
def test_no_example_is_dropped_beyond_the_last_incomplete_batch(amount, num_train, batch_size):
    assume(exact_steps(amount, num_train, batch_size) >= 1)
    steps = Budget.epochs(amount).num_steps(num_train=num_train, batch_size=batch_size)
    left = Fraction(str(amount)) * num_train - steps * batch_size
    assert 0 <= left < batch_size


@given(epochs, epochs, num_trains, batch_sizes)
def test_more_epochs_are_never_fewer_steps(one, other, num_train, batch_size):
    less, more = sorted((one, other))
    assume(exact_steps(less, num_train, batch_size) >= 1)
    sizes = {"num_train": num_train, "batch_size": batch_size}
    assert Budget.epochs(less).num_steps(**sizes) <= Budget.epochs(more).num_steps(**sizes)


@given(epochs, num_trains, batch_sizes)
def test_a_larger_batch_is_never_more_steps(amount, num_train, batch_size):
    assume(exact_steps(amount, num_train, 2 * batch_size) >= 1)
    budget = Budget.epochs(amount)
    double = budget.num_steps(num_train=num_train, batch_size=2 * batch_size)
    assert 2 * double <= budget.num_steps(num_train=num_train, batch_size=batch_size)


def test_decimals_count_as_written():
    # In binary floating point 0.1 · 3 · 10 is 3.0000000000000004 and 0.29 · 100 is 28.999999999999996.
    assert Budget.epochs(0.29).num_steps(num_train=100, batch_size=1) == 29
    assert Budget.epochs(0.1).num_steps(num_train=1_000, batch_size=100) == 1


@given(st.integers(1, 10**9), num_trains, batch_sizes)
def test_a_budget_of_steps_is_itself(amount, num_train, batch_size):
    assert Budget.steps(amount).num_steps(num_train=num_train, batch_size=batch_size) == amount


def test_the_papers_budget():
    assert Budget.epochs(200).num_steps(num_train=50_000, batch_size=1024) == 9765
    assert Budget.epochs(200).num_steps(num_train=50_000, batch_size=64) == 156_250


# -- sequences --------------------------------------------------------------------------------------------------


@given(st.integers(1, 3_000), st.integers(1, 50), st.integers(1, 40))
def test_a_pass_is_as_many_updates_as_a_loop_over_the_stream_makes(num_tokens, batch_size, unroll):
    length, count, begin = num_tokens // batch_size, 0, 0
    while begin + unroll + 1 <= length:  # a window, and the token after its last
        begin, count = begin + unroll, count + 1
    sizes = {"num_tokens": num_tokens, "batch_size": batch_size, "unroll": unroll}
    if count:
        assert updates_per_pass(**sizes) == count
    else:
        with pytest.raises(UserError, match="are too few for a window"):
            updates_per_pass(**sizes)


def test_the_papers_budget_on_penn_treebank():
    # 929,589 tokens with the ends of sentences, so 929,588 of them have a token after them.
    sizes = {"num_train": 929_588, "unroll": 35}
    assert Budget.epochs(1).num_steps(batch_size=64, **sizes) == (929_589 // 64 - 1) // 35 == 414
    assert Budget.epochs(0.5).num_steps(batch_size=64, **sizes) == 207
    assert Budget.epochs(40).num_steps(batch_size=64, **sizes) == 40 * 414
    assert Budget.steps(16_560).num_steps(batch_size=8, **sizes) == 16_560


def test_the_remedy_for_streams_that_are_too_short_works():
    with pytest.raises(UserError) as caught:
        Budget.epochs(3).num_steps(num_train=99, batch_size=30, unroll=5)
    assert "100 tokens in 30 streams are too few for a window of 5 tokens" in str(caught.value)
    largest = re.search(r"batch size of at most (\d+)", str(caught.value))
    assert largest is not None
    assert Budget.epochs(3).num_steps(num_train=99, batch_size=int(largest[1]), unroll=5) == 3
    with pytest.raises(UserError, match="are too few for a window"):
        Budget.epochs(3).num_steps(num_train=99, batch_size=int(largest[1]) + 1, unroll=5)


@pytest.mark.parametrize(
    ("unit", "amount", "words"),
    [
        (BudgetUnit.EPOCHS, 0, ["0 epochs", "not positive", "above 0"]),
        (BudgetUnit.EPOCHS, -1.5, ["-1.5 epochs", "not positive", "above 0"]),
        (BudgetUnit.STEPS, -3, ["-3 steps", "not positive", "above 0"]),
        (BudgetUnit.EPOCHS, math.nan, ["nan epochs", "not positive", "above 0"]),
        (BudgetUnit.EPOCHS, math.inf, ["inf epochs", "not positive", "above 0"]),
        (BudgetUnit.STEPS, 2.5, ["2.5 steps", "not a whole number", "round it"]),
        (BudgetUnit.EPOCHS, "20", ["a number of epochs such as 20", "not '20'"]),
        (BudgetUnit.EPOCHS, True, ["a number of epochs such as 20", "not True"]),
        (BudgetUnit.STEPS, None, ["a number of steps such as 20", "not None"]),
    ],
)
def test_refusals_name_value_reason_and_remedy(unit, amount, words):
    with pytest.raises(UserError) as caught:
        Budget(unit=unit, amount=amount)
    assert [word for word in words if word not in str(caught.value)] == []


def test_less_than_one_update_is_refused_with_the_least_epochs():
    with pytest.raises(UserError) as caught:
        Budget.epochs(0.5).num_steps(num_train=100, batch_size=64)
    assert "0.5 epochs on 100 examples" in str(caught.value)
    assert "batch_size=64" in str(caught.value)
    assert "at least 0.64 epochs" in str(caught.value)


@given(num_trains, batch_sizes)
def test_the_remedy_for_too_few_epochs_works(num_train, batch_size):
    sizes = {"num_train": num_train, "batch_size": batch_size}
    tiny = batch_size / num_train / 2
    with pytest.raises(UserError) as caught:
        Budget.epochs(tiny).num_steps(**sizes)
    least = re.search(r"at least (\S+) epochs", str(caught.value))
    assert least is not None
    assert Budget.epochs(float(least[1])).num_steps(**sizes) >= 1


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget.epochs(20), "20 epochs"),
        (Budget.epochs(20.0), "20 epochs"),
        (Budget.epochs(0.5), "0.5 epochs"),
        (Budget.steps(9765), "9,765 steps"),
    ],
)
def test_text(budget, text):
    assert str(budget) == text


def test_too_few_epochs_of_a_sequence_are_refused_in_its_own_numbers():
    with pytest.raises(
        UserError, match=r"0\.01 epochs is less than one update at batch_size=16, where an epoch is 17 windows"
    ):
        Budget.epochs(0.01).num_steps(num_train=16 * (17 * 5 + 1), batch_size=16, unroll=5)
