"""What a user sees of a model that trains slowly: one sentence, whatever the number of workers."""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import torch, isotherm as it
    from torch import nn

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x.clone().remainder_(2.0))

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    task = it.Task(name="slow", model=Slow, train=(x, y), test=(x, y))
    sweep = it.Sweep(
        name="slow", task=task, batch_sizes=[4, 8], effective_learning_rates=[0.1, 0.2], budget=it.Budget.steps(4),
        num_seeds=3, num_kept=3, max_extensions=0, momentum=0.9,
    )
    it.run(sweep, workers={workers}, fleet_size=3)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_stderr_holds_one_sentence_of_ours(workers):
    script = textwrap.dedent(SCRIPT).replace("{workers}", str(workers))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    [line] = done.stderr.strip().splitlines()
    assert "run by run" in line
    assert "times as fast as one run after another does (measured, B = " in line
