"""How few updates are enough: batches so large that too few remain lose what smaller ones reach at equal length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from isotherm.core.statistics import Floats
from isotherm.diagnose.grids import GridSearch

# A larger batch loses if its best runs are worse with this confidence, by Student's t, and by more than a margin.
CONFIDENCE = 0.99


def enough_steps(searches: Sequence[GridSearch], *, margin: float) -> float:
    """Return the fewest updates of short runs that lost nothing against smaller batches of the same length.

    Args:
        searches: grids of all batch sizes and lengths.
        margin: what may be lost, in the units of the judged quantity.
    """
    lengths: dict[int, list[GridSearch]] = {}
    for search in searches:
        lengths.setdefault(round(math.log2(search.num_examples)), []).append(search)
    for length in sorted(lengths, reverse=True):
        if len(lengths[length]) > 1:
            return _enough(sorted(lengths[length], key=lambda search: search.spec.batch_size), margin)
    return float(max(search.spec.num_steps for search in searches))


def _enough(searches: Sequence[GridSearch], margin: float) -> float:
    best_S = searches[0].best_scores()
    enough = searches[0].spec.num_steps
    for search in searches[1:]:
        scores_S = search.best_scores()
        if _loses(best_S, scores_S, margin):
            break
        enough = search.spec.num_steps
        best_S = scores_S if scores_S.mean() > best_S.mean() else best_S
    return float(enough)


def _loses(reference_S: Floats, scores_S: Floats, margin: float) -> bool:
    num = min(len(reference_S), len(scores_S))
    lost_S = reference_S[:num] - scores_S[:num]
    if not np.isfinite(lost_S).all():
        return True
    if num < 2:
        return bool(lost_S.mean() > margin)
    error = float(lost_S.std(ddof=1)) / math.sqrt(num)
    return bool(lost_S.mean() > max(margin, float(stats.t.ppf(CONFIDENCE, num - 1)) * error))
