"""What makes inputs and a target of an item."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.errors import UserError
from isotherm.tasks.datasets.adapter import adapted, check_adapter

ROW = {"text": 1, "mask": 2, "label": 3}


@pytest.mark.parametrize(
    ("item", "adapter", "expected"),
    [
        ((1, 2), None, (1, 2)),
        ([1, 2], None, (1, 2)),
        (ROW, ("text", "label"), (1, 3)),
        (ROW, (("text", "mask"), "label"), ({"text": 1, "mask": 2}, 3)),
        ((4, 5, 6), (0, 2), (4, 6)),
        ((4, 5, 6), ((0, 1), -1), ((4, 5), 6)),
        (7, lambda item: (item, item), (7, 7)),
    ],
)
def test_inputs_and_target(item: Any, adapter: Any, expected: Any) -> None:
    check_adapter(adapter, "here")
    assert adapted(item, adapter, "here") == expected


@pytest.mark.parametrize(
    ("item", "adapter", "message"),
    [
        (
            ROW,
            None,
            r"here is a dict of 'text', 'mask', 'label', not a pair .* adapter=\(\('text', 'mask'\), 'label'\)",
        ),
        ((1, 2, 3), None, r"here is a tuple of 3, not a pair .* adapter=\(\(0, 1\), 2\)"),
        (ROW, ("txt", "label"), r"here has no 'txt'; did you mean 'text'"),
        ((1, 2), (0, 2), r"here has no 2; the item is a tuple of 2"),
        (ROW, lambda item: item["x"], r"here: the adapter raised KeyError: 'x'.* the item is a dict of 'text'"),
        (ROW, lambda item: item, r"here: the adapter returned a dict of .* let it return a pair"),
    ],
)
def test_what_cannot_be_taken_apart(item: Any, adapter: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        adapted(item, adapter, "here")


def test_the_suggested_adapter_works() -> None:
    for item in (ROW, (4, 5, 6)):
        with pytest.raises(UserError) as caught:
            adapted(item, None, "here")
        suggested = eval(str(caught.value).rpartition("adapter=")[2])
        assert adapted(item, suggested, "here")[1] in (3, 6)


@pytest.mark.parametrize("adapter", ["label", ("a", "b", "c"), ("a", 1.5), dict, 3])
def test_what_is_no_adapter(adapter: Any) -> None:
    with pytest.raises(UserError, match=r"is neither a function .* nor a pair of names"):
        check_adapter(adapter, "here")
