import pickle

import pytest

from isotherm.errors import StoreError, UserError, nearest

KNOWN = ["momentum", "l2", "batch_size"]


def test_user_errors_are_value_errors_and_store_errors_are_user_errors():
    assert issubclass(UserError, ValueError)
    assert issubclass(StoreError, UserError)


@pytest.mark.parametrize(("given", "meant"), [("momentun", "momentum"), ("batchsize", "batch_size"), ("l_2", "l2")])
def test_nearest_names_the_one_meant_and_lists_all(given, meant):
    assert nearest(given, KNOWN) == f"did you mean {meant!r}? Known: batch_size, l2, momentum"


def test_nearest_without_a_likeness_only_lists():
    assert nearest("zzz", KNOWN) == "known: batch_size, l2, momentum"


def test_nearest_takes_any_iterable():
    assert nearest("l2", iter(KNOWN)) == "did you mean 'l2'? Known: batch_size, l2, momentum"


def test_an_error_keeps_reason_and_advice_through_a_process_and_a_place() -> None:
    error = StoreError("it is full", advice="make room")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert (str(one), one.reason, one.advice) == ("it is full; make room", "it is full", "make room")
    there = error.within("the store x")
    assert isinstance(there, StoreError)
    assert (str(there), there.advice) == ("the store x: it is full; make room", "make room")
    assert UserError("plain").advice is None
