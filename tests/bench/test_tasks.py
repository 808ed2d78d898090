"""What is timed besides the built-in tasks."""

from __future__ import annotations

import pytest
import torch

from isotherm.bench.tasks import OWN, timed_task
from isotherm.errors import UserError
from isotherm.tasks.builtin import TASKS
from isotherm.tasks.model_check import check_model


@pytest.mark.parametrize(("name", "shape", "num_parameters"), [("gpt", (64,), 811_776), ("cnn", (1, 28, 28), 421_834)])
def test_the_networks_that_are_timed(name: str, shape: tuple[int, ...], num_parameters: int) -> None:
    task = timed_task(name)
    assert task.train[0].shape[1:] == torch.Size(shape)
    assert sum(p.numel() for p in task.model().parameters()) == num_parameters
    check_model(task)


def test_names() -> None:
    assert not set(OWN) & set(TASKS)
    assert timed_task("mlp_mnist1d").name == "mlp_mnist1d"
    with pytest.raises(UserError, match="unknown task 'gpt_txt'; did you mean 'gpt_text'"):
        timed_task("gpt_txt")
