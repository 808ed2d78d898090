"""When a run counts as diverged although its loss is finite."""

from __future__ import annotations

# A classifier with a far too high learning rate may end at ten times the loss of its start with nine examples in ten
# right; at a hundred times nothing is left of what was learned.
DIVERGENCE_FACTOR = 100.0
# Where the metric too says that nothing was learned, less is enough. A run that goes nowhere stays at its start.
FACTOR_WITHOUT_LEARNING = 2.0


def ends_far_above_start(train_loss: float, *, loss_at_start: float, beats_constant: bool = True) -> bool:
    """Tell whether a run's final training loss is far above the size of the loss at its start.

    Far is more than 100 times, or more than twice if the training metric is that of a constant output at best.

    Args:
        train_loss: over the training set in evaluation mode, after the last update.
        loss_at_start: size of the untrained network's loss, `engine.untrained.loss_at_start`. Zero says nothing of the
            loss's scale, and then nothing is far above it.
        beats_constant: the training metric is better than that of every constant output, or that is not known.

    >>> ends_far_above_start(1.6e23, loss_at_start=2.3), ends_far_above_start(13.8, loss_at_start=2.3)
    (True, False)
    >>> ends_far_above_start(13.8, loss_at_start=2.3, beats_constant=False)
    True
    """
    factor = DIVERGENCE_FACTOR if beats_constant else FACTOR_WITHOUT_LEARNING
    return 0.0 < factor * loss_at_start < train_loss
