"""Claims about runs of equally many steps: the fall of large batches, and the test optimum above the training one."""

from __future__ import annotations

import numpy as np

from isotherm.analysis.family import FamilyFit
from isotherm.analysis.series import Series
from isotherm.analysis.verdicts.claim import Claim, Excess
from isotherm.analysis.verdicts.draws import independent, interval_text, mean_over_sizes, widened
from isotherm.analysis.verdicts.margins import SAME_RATE, TOLERATED_RISE, metric_margin
from isotherm.analysis.verdicts.momentum import at_tuned, unit_of
from isotherm.analysis.verdicts.obstacles import obstacle
from isotherm.core.statistics import Floats


def large_batches(s: Series) -> Claim:
    """Return the claim that the largest batch generalises worse than the best one although it fits no worse.

    The test metric is that at the learning rates that were tuned, and the best batch size is the best for what was
    tuned. It is picked by the same results, so its lead counts only beyond the correction for picking it.
    """
    text = f"{s.label}: at equal steps the largest batch generalises worse although it fits no worse"
    needed = [lambda g: g.optimum, lambda g: g.train_optimum]
    blocked = obstacle([s], needed, heights=lambda g: g.optimum)
    if blocked is not None or s.fit is None or s.test_fit is None or s.train_fit is None:
        return Claim.blocked(text, s.plan, blocked)
    values = s.test_values()
    heights = s.plan.metric_direction.sign * values
    losses = widened(heights[:, :-1] - heights[:, [-1]])
    best = int(np.argmax(np.median(losses if s.tuned_on_test else _leads(s, s.fit), axis=0)))
    margin = metric_margin(s.plan.metric_bounds, [values])
    rises = _rises(s.train_fit.heights, best)
    lost = f"the test metric{at_tuned(s)} loses {interval_text(s.scale * losses[:, best])} {unit_of(s)}"
    sizes = s.test_fit.batch_sizes
    return Claim(
        text=text,
        evidence=(
            f"from B = {sizes[best]} to {sizes[-1]} {lost} (margin {s.scale * margin:.2g}), the training objective "
            f"changes by {interval_text(100 * rises, digits=1, sign=True)} % (up to {100 * TOLERATED_RISE:+.0f} % "
            "counts as no worse)"
        ),
        plan=s.plan,
        holds=(
            Excess(draws=losses[:, best], limit=0.0, num_tried=len(sizes) - 1),
            Excess(draws=-rises, limit=-TOLERATED_RISE),
        ),
        fails=(
            (Excess(draws=-losses.max(axis=1), limit=-margin, num_tried=2),),
            (Excess(draws=rises, limit=TOLERATED_RISE, num_tried=2),),
        ),
    )


def higher_test_optimum(s: Series) -> Claim:
    """Return the claim that the optimum on the test set lies above that of training.

    What a coarse grid does not resolve errs alike at all batch sizes, and does not average out over them.
    """
    text = f"{s.label}: the learning rate that is best on the test set lies above the one that fits best"
    needed = [lambda g: g.test_optimum, lambda g: g.train_optimum]
    blocked = obstacle([s], needed)
    if blocked is not None or s.test_fit is None or s.train_fit is None:
        return Claim.blocked(text, s.plan, blocked)
    columns = range(len(s.test_fit.batch_sizes))
    test, train = (mean_over_sizes(fit, fit.optima, columns) for fit in (s.test_fit, s.train_fit))
    means = test - independent(train, seed=2)
    ratios = np.median(s.test_fit.optima, axis=0) - np.median(s.train_fit.optima, axis=0)
    return Claim(
        text=text,
        evidence=(
            f"mean log2 ratio {interval_text(means, sign=True)}, margin {SAME_RATE:g}; above at "
            f"{np.count_nonzero(ratios > 0)} of {len(ratios)} batch sizes"
        ),
        plan=s.plan,
        holds=(Excess(draws=means, limit=0.0),),
        fails=((Excess(draws=-means, limit=-SAME_RATE),),),
    )


def _leads(s: Series, fit: FamilyFit) -> Floats:
    """Return by how much every batch size but the largest is ahead of that in what was tuned."""
    goodness = s.plan.direction.sign * fit.heights
    return np.asarray(goodness[:, :-1] - goodness[:, [-1]])


def _rises(objectives: Floats, best: int) -> Floats:
    """Return the relative rise of the training objective from the best batch size to the largest."""
    scale = abs(float(np.median(objectives[:, best])))
    return np.asarray((objectives[:, -1] - objectives[:, best]) / max(scale, 1e-300))
