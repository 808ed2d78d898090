"""Floating-point operations of a training step."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode

from isotherm.tasks.model_check import call_model, example_batch
from isotherm.tasks.seeding import initial_model, seeded
from isotherm.tasks.task import Task
from isotherm.tasks.torch_warnings import without_torch_warnings


@without_torch_warnings()
def flop_per_example(task: Task) -> float:
    """Return the FLOP of a forward and a backward pass per example; of a sequence, per unrolled window.

    Counted by PyTorch on a few examples of the plain model: matmuls and convolutions, which cost the same for all.
    """
    module = initial_model(task.model, seed=0).train()
    x, y = example_batch(task)
    with seeded(0, "flop"), FlopCounterMode(display=False) as counter:  # dropout draws from a global generator
        loss = task.loss_function(call_model(module, x, unroll=task.unroll), y)
        loss.backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / len(x)
