"""When a run counts as diverged although its loss is finite."""

from __future__ import annotations

# A classifier with a far too high learning rate may end at ten times the loss of its start with nine examples in ten
# right; at a hundred times nothing is left of what was learned.
DIVERGENCE_FACTOR = 100.0


def ends_far_above_start(train_loss: float, *, loss_at_start: float) -> bool:
    """Tell whether a run's final training loss is more than 100 times the size of the loss at its start.

    Args:
        train_loss: over the training set in evaluation mode, after the last update.
        loss_at_start: size of the untrained network's loss, `engine.untrained.loss_at_start`. Zero says nothing of the
            loss's scale, and then nothing is far above it.

    >>> ends_far_above_start(1.6e23, loss_at_start=2.3), ends_far_above_start(2.4, loss_at_start=2.3)
    (True, False)
    """
    return 0.0 < DIVERGENCE_FACTOR * loss_at_start < train_loss
