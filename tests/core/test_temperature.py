import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.core.temperature import (
    bare_learning_rate,
    effective_learning_rate,
    effective_learning_rate_at,
    temperature,
)

learning_rates = st.floats(1e-6, 1e3)
momenta = st.floats(0.0, 0.999)
batch_sizes = st.integers(1, 2**20)


def test_the_papers_definitions_on_exact_numbers():
    assert effective_learning_rate(0.5, momentum=0.75) == 2.0
    assert bare_learning_rate(2.0, momentum=0.75) == 0.5
    assert temperature(0.5, 64, momentum=0.75) == 2.0 / 64
    assert effective_learning_rate_at(2.0 / 64, 64) == 2.0


def test_without_momentum_bare_and_effective_are_one():
    assert effective_learning_rate(0.3) == bare_learning_rate(0.3) == 0.3


@given(learning_rates, momenta)
def test_bare_inverts_effective(learning_rate, momentum):
    effective = effective_learning_rate(learning_rate, momentum=momentum)
    assert bare_learning_rate(effective, momentum=momentum) == pytest.approx(learning_rate, rel=1e-14)


@given(learning_rates, batch_sizes, momenta)
def test_the_isotherm_leads_back_to_the_effective_learning_rate(learning_rate, batch_size, momentum):
    there = temperature(learning_rate, batch_size, momentum=momentum)
    back = effective_learning_rate_at(there, batch_size)
    assert back == pytest.approx(effective_learning_rate(learning_rate, momentum=momentum), rel=1e-14)


@given(learning_rates, batch_sizes, momenta)
def test_doubling_rate_and_batch_stays_on_the_isotherm(learning_rate, batch_size, momentum):
    once = temperature(learning_rate, batch_size, momentum=momentum)
    assert temperature(2 * learning_rate, 2 * batch_size, momentum=momentum) == once
    assert temperature(2 * learning_rate, batch_size, momentum=momentum) == 2 * once
