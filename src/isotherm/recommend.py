"""One answer from a sweep: the largest batch that loses nothing, and the learning rate to use with it."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.errors import UserError
from isotherm.protocol import Grid
from isotherm.regimes import series
from isotherm.results import Results
from isotherm.statistics import welch_interval
from isotherm.temperature import bare_learning_rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """What to use for one budget and momentum, and what it rests on.

    `batch_size` is the largest whose test metric does not differ from the best one's at the 95 % level.
    """

    budget: str
    momentum: float
    batch_size: int
    effective_learning_rate: float
    interval: tuple[float, float]
    learning_rate: float
    temperature: float
    test_metric: float
    evidence: str

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.budget}, momentum {self.momentum:g}: batch size {self.batch_size}, learning rate "
            f"{self.learning_rate:.4g} (effective {self.effective_learning_rate:.4g}, within [{low:.4g}, {high:.4g}]); "
            f"keep the temperature {self.temperature:.3g} when you make the batch smaller. {self.evidence}"
        )


def recommend(results: Results) -> list[Recommendation]:
    """Return one recommendation for every budget and momentum.

    Raises:
        UserError: no grid of the sweep has an optimum yet.
    """
    groups = series(results)
    if not groups:
        raise UserError("no batch size has a stable optimum yet; finish the sweep, or widen its learning rates")
    return [_recommend(group, sign=results.plan.metric_direction.sign) for group in groups]


def _recommend(grids: list[Grid], *, sign: int) -> Recommendation:
    metrics = {grid.axes.batch_size: grid.at_optimum("test_metric") for grid in grids}
    known = {b: m for b, m in metrics.items() if m is not None}
    best = max(known, key=lambda b: sign * known[b].mean_all)
    level = [b for b in known if _as_good(known[b].values_all, known[best].values_all, sign=sign)]
    chosen = next(grid for grid in grids if grid.axes.batch_size == max([*level, best]))
    optimum = chosen.optimum()
    assert optimum is not None
    size, momentum = chosen.axes.batch_size, chosen.axes.momentum
    n = len(known[best].values_all)
    evidence = (
        f"Best mean test metric {known[best].mean_all:.4g} at B = {best}, {known[size].mean_all:.4g} here (n = {n})"
    )
    if optimum.at_edge:
        evidence += f"; the optimum touches the {optimum.edge}, so it may lie further out"
    return Recommendation(
        budget=str(chosen.axes.budget),
        momentum=momentum,
        batch_size=size,
        effective_learning_rate=optimum.effective_learning_rate,
        interval=optimum.interval,
        learning_rate=bare_learning_rate(optimum.effective_learning_rate, momentum=momentum),
        temperature=optimum.effective_learning_rate / size,
        test_metric=known[size].mean,
        evidence=evidence + ".",
    )


def _as_good(values: tuple[float, ...], best: tuple[float, ...], *, sign: int) -> bool:
    difference = welch_interval([sign * v for v in best], [sign * v for v in values])
    return difference.low <= 0.0
