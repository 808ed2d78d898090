"""Tables of pandas, and objects that NumPy takes for arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers_tasks import X, Y, task
from isotherm.errors import UserError
from isotherm.tasks.frames import is_pandas

pandas = pytest.importorskip("pandas")

FRAME = pandas.DataFrame({"a": np.arange(6.0), "b": np.arange(6), "c": np.arange(6) > 2})


def test_a_frame_is_the_task_that_its_array_is() -> None:
    x, y = X.numpy(), Y.numpy()
    ours = task(train=(pandas.DataFrame(x, columns=["a", "b"]), pandas.Series(y)))
    assert ours.identify() == task(train=(x, y)).identify()
    assert task(train=(pandas.DataFrame(x), Y)).identify() == ours.identify()


def test_columns_of_several_types_have_one_that_holds_all() -> None:
    found = task(train=(FRAME, Y), test=(FRAME, Y)).train[0]
    assert found.dtype == torch.float64
    assert found[4].tolist() == [4.0, 4.0, 1.0]
    nullable = FRAME.convert_dtypes()
    assert torch.equal(task(train=(nullable, Y), test=(nullable, Y)).train[0], found)


def refusal(x: object, y: object) -> str:
    with pytest.raises(UserError) as caught:
        task(train=(x, y), test=(x, y))
    return str(caught.value)


def test_columns_that_are_no_numbers_are_named_and_the_remedy_works() -> None:
    named = FRAME.assign(town=list("aabbcc"), when=pandas.Timestamp("2020-01-01"))
    message = refusal(named, Y)
    assert "train data, inputs: columns 'town', 'when' have no numbers" in message
    dummies = pandas.get_dummies(named.drop(columns="when"))
    assert task(train=(dummies, Y), test=(dummies, Y)).train[0].shape == (6, 6)
    towns = pandas.Series(list("aabbcc"), dtype="category")
    assert "the series has no numbers (category); number them, e.g. y.astype('category').cat.codes" in refusal(X, towns)
    assert task(train=(X, towns.astype("category").cat.codes)).train[1].tolist() == [0, 0, 1, 1, 2, 2]


def test_missing_values_are_refused() -> None:
    holes = FRAME.assign(b=pandas.array([1, 2, None, 4, 5, 6], dtype="Int64"))
    assert "column 'b' has missing values; fill or drop them" in refusal(holes, Y)


def test_rows_in_another_order_are_refused() -> None:
    y = pandas.Series(Y.numpy())
    message = refusal(FRAME.iloc[::-1], y)
    assert "the rows of inputs and targets have different labels" in message
    shuffled = FRAME.iloc[::-1]
    assert task(train=(shuffled, y.loc[shuffled.index]), test=(FRAME, y)).train[1].tolist() == Y.tolist()[::-1]
    assert task(train=(shuffled, y.to_numpy()), test=(FRAME, y)).train[1].tolist() == Y.tolist()


def test_what_is_of_pandas() -> None:
    assert is_pandas(FRAME)
    assert not is_pandas(X)


class Array:
    """An array of another library."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.values


def test_what_numpy_takes_for_an_array_is_one() -> None:
    assert task(train=(Array(X.numpy()), Array(Y.numpy()))).identify() == task(train=(X, Y)).identify()
    assert "train data: it is a Array; give a pair" in refusal_of_one(Array(X.numpy()))


def refusal_of_one(train: object) -> str:
    with pytest.raises(UserError) as caught:
        task(train=train)
    return str(caught.value)
