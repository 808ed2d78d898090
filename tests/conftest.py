"""One thread per worker, as pytest-xdist runs two of them; no time limit on examples that share the cores."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("isotherm", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("isotherm")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
