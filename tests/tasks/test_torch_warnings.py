"""No warning of PyTorch reaches the user raw, and none of the user's own is lost."""

import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from isotherm.tasks import torch_warnings
from isotherm.tasks.torch_warnings import counted_torch_warnings, without_torch_warnings


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_warnings, "_said", set())
    monkeypatch.setattr(torch_warnings, "_shown", set())


def fallback() -> None:
    torch.func.vmap(lambda x: x.remainder_(2))(torch.ones(3, 2))


def read_only() -> None:
    values = np.zeros(3)
    values.flags.writeable = False
    torch.from_numpy(values)


def broadcast() -> None:
    nn.functional.mse_loss(torch.zeros(3, 1), torch.zeros(3))


def lone_dropout() -> None:
    nn.LSTM(2, 2, dropout=0.5)


def nested() -> None:
    nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, norm_first=True), 1)


def schedule() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()


@pytest.mark.parametrize("give", [broadcast, lone_dropout, nested, schedule], ids=lambda give: give.__name__)
def test_a_warning_about_the_model_is_announced_in_one_sentence(give, caplog, recwarn):
    warnings.simplefilter("always")
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        for _ in range(2):
            with without_torch_warnings():
                give()
                give()
    assert [record.getMessage() for record in caplog.records] == [
        "PyTorch warns about this model; call it by itself, on a batch, to see the warning"
    ]
    assert not recwarn.list


@pytest.mark.parametrize("give", [fallback, read_only], ids=lambda give: give.__name__)
def test_what_concerns_its_inside_goes_to_the_log_alone(give, caplog, recwarn):
    warnings.simplefilter("always")
    with caplog.at_level(logging.DEBUG, logger="isotherm"), without_torch_warnings():
        give()
    assert {record.levelname for record in caplog.records if record.name == "isotherm"} <= {"DEBUG"}
    assert not recwarn.list


def test_a_users_own_warning_is_shown_once():
    @without_torch_warnings()
    def give(times: int) -> None:
        if times:
            give(times - 1)
        warnings.warn("look at row 7", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="look at row 7") as found:
        give(2)
    assert len(found) == 1


def test_where_warnings_are_errors_a_users_own_is_one():
    with pytest.raises(UserWarning, match="mine"), without_torch_warnings():
        warnings.warn("mine", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning, match="after"):
        warnings.warn("after", UserWarning, stacklevel=1)


def test_what_cpp_warns_of_can_be_counted():
    with counted_torch_warnings() as found:
        fallback()
        warnings.warn("mine", UserWarning, stacklevel=1)
    assert len(found) == 1
    with counted_torch_warnings() as found:
        torch.func.vmap(lambda x: x.mul(2))(torch.ones(3, 2))
    assert found == []


def test_it_is_a_decorator_too():
    @without_torch_warnings()
    def twice(number: int) -> int:
        """Double it."""
        broadcast()
        return 2 * number

    assert twice(4) == 8
    assert twice.__doc__ == "Double it."
