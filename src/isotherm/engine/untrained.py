"""What a run's end is held against: the loss of the untrained network, and the metric of a constant output."""

from __future__ import annotations

import torch

from isotherm.engine.dropout import run_keys
from isotherm.engine.micro_batches import MicroBatches, outputs
from isotherm.engine.placed_task import PlacedTask
from isotherm.tasks.losses import LOSSES, squared_error
from isotherm.tasks.metrics import metric_of_constant
from isotherm.tasks.seeding import seeded

# The loss is averaged over this many examples, or over so many batches if they are fewer.
NUM_EXAMPLES = 512
MOST_BATCHES = 16


def loss_at_start(placed: PlacedTask, *, seed: int, micro_batches: MicroBatches, num_steps: int) -> float:
    """Return the size of the untrained network's loss, in training mode over the first batches of a run.

    It is the larger of two means without their signs: with the targets of the examples, and with those of the next
    batch. A network that starts with the right answers has a small loss, but not with the targets of other examples.

    Args:
        placed: the task on a device.
        seed: of the run.
        micro_batches: of the run's batches.
        num_steps: of the run; the network sees nothing that the run does not.
    """
    batch_size = micro_batches.batch_size
    order = placed.order(seed=seed, batch_size=batch_size)
    num = max(1, min(MOST_BATCHES, num_steps, NUM_EXAMPLES // (batch_size * (placed.unroll or 1))))
    keys = run_keys(seed).to(placed.device)
    sums = torch.zeros(2, dtype=torch.float64, device=placed.device)
    keeps_graph = placed.device.type == "cpu"  # a GPU may be full; a model that differentiates within itself needs it
    with seeded(seed, "untrained"), torch.set_grad_enabled(keeps_graph):
        model = placed.model(seed=seed, batch_size=batch_size).train()
        for step in range(num):
            batch = placed.batch(order.block(step, 1)[0], seed=seed, step=step)
            others = placed.training_targets(order.block(step + 1, 1)[0])
            now = torch.tensor(step, device=placed.device)
            for part, output, y in outputs(placed, model, micro_batches, batch, keys, now):
                both = y, others[part.start : part.stop]
                losses = torch.stack([placed.loss(output.detach().clone(), targets) for targets in both])
                sums += losses * (len(part) / batch_size)
    if micro_batches.among is not None:
        micro_batches.among.sum([sums])
    return float((sums / num).abs().max())


def beats_constant(placed: PlacedTask, train_metric: float) -> bool:
    """Tell whether a metric over the training set is better than that of every constant output.

    Of a metric that is a loss, or its exponential, the answer is no: it says no more than the loss does. Where nothing
    is known it is yes: of metrics whose best constant is not, and with a user's loss, whose zero may mean nothing.
    """
    losses = LOSSES.values()
    if placed.loss not in losses:
        return True
    if placed.metric in losses or placed.metric is squared_error:
        return False
    best = metric_of_constant(placed.metric, placed.evaluation_targets("train").cpu())
    return best is None or not train_metric <= best  # NaN is no sign of divergence
