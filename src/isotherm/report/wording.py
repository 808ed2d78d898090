"""Numbers and settings in words, the same in figures, tables and pages."""

from __future__ import annotations

import math

from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.protocol import Edge, Grid, Optimum

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# What SGD minimises.
TRAIN_OBJECTIVE = "training loss + L2"

# Arrows point towards where the true optimum may lie.
EDGE_FLAGS = {
    Edge.INTERIOR: "",
    Edge.LOWER: "◂",
    Edge.UPPER: "▸",
    Edge.BOTH: "◂▸",
    Edge.NO_OPTIMUM: "!",
    Edge.INCOMPLETE: "…",
}


def is_percent(metric: str) -> bool:
    """Tell whether a metric is shown in percent: only accuracy is."""
    return metric == "accuracy"


def metric_label(metric: str, *, data: str = "test") -> str:
    """Return the axis label of a metric.

    >>> metric_label("accuracy"), metric_label("mean_squared_error")
    ('test accuracy (%)', 'test mean squared error')
    """
    return f"{data} {metric.replace('_', ' ')}{' (%)' if is_percent(metric) else ''}"


def objective_words(objective: str, metric: str) -> str:
    """Return the quantity that was tuned, in words.

    >>> objective_words("validation_metric", "accuracy"), objective_words("train_objective", "accuracy")
    ('validation accuracy', 'training loss + L2')
    """
    if objective == "train_objective":
        return TRAIN_OBJECTIVE
    data, _, quantity = objective.partition("_")
    name = metric.replace("_", " ") if quantity == "metric" else quantity
    return f"{'training' if data == 'train' else data} {name}"


def seeds_words(plan: SweepPlan) -> str:
    """Return how many seeds choose, how many of them are kept, and how many confirm."""
    num, kept = len(plan.seeds), plan.num_kept
    chosen = count_text(num, "seed") if kept == num else f"best {kept} of {num} seeds"
    return f"{chosen}, {plan.num_confirm} confirm" if plan.num_confirm else chosen


def runs_words(plan: SweepPlan) -> str:
    """Return the runs from which the numbers at an optimum come."""
    return f"{count_text(plan.num_confirm, 'further seed')} there" if plan.num_confirm else kept_words(plan)


def kept_words(plan: SweepPlan) -> str:
    """Return the runs from which the numbers of a cell come."""
    num, kept = len(plan.seeds), plan.num_kept
    return f"{'all ' * (num > 1)}{count_text(num, 'run')}" if kept == num else f"the best {kept} of {num} runs"


def momentum_label(momentum: float) -> str:
    """Return the name of a series.

    >>> momentum_label(0.0), momentum_label(0.9)
    ('SGD', 'momentum 0.9')
    """
    return "SGD" if momentum == 0 else f"momentum {momentum:g}"


def rate_symbol(plan: SweepPlan) -> str:
    """Return the sign of a sweep's learning rates: effective ones of SGD, the optimiser's own of others."""
    return "ε_eff" if plan.has_temperature else "ε"


def rate_column(plan: SweepPlan) -> str:
    """Return the name of a sweep's learning rates in a table of values."""
    return "effective_learning_rate" if plan.has_temperature else "learning_rate"


def rate_text(value: float, *, digits: int = 3) -> str:
    """Return a learning rate as a fraction or power of two where it is one, else with a few digits.

    >>> [rate_text(value) for value in (8.0, 0.125, 2**-9, 0.1, 3.0)]
    ['8', '1/8', '2⁻⁹', '0.1', '3']
    """
    exponent = _exponent(value)
    if exponent is None:
        return f"{value:.{digits}g}"
    if 0 <= exponent <= 13:
        return f"{2**exponent}"
    return f"1/{2**-exponent}" if -7 <= exponent < 0 else power_text(value)


def end_sign(optimum: Optimum, grid: Grid) -> str:
    """Return the sign before an optimum at an end of its grid, beyond which the true one may lie; else nothing."""
    if not optimum.lies_at_end_of(grid):
        return ""
    return "≤ " if optimum.is_lowest_of(grid) else "≥ "


def power_text(value: float, *, digits: int = 3) -> str:
    """Return 2ᵏ where a number is a power of two, else a few digits; for temperatures.

    >>> power_text(2**-7), power_text(0.003)
    ('2⁻⁷', '0.003')
    """
    exponent = _exponent(value)
    return f"{value:.{digits}g}" if exponent is None else f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def interval_text(rate: float, interval: tuple[float, float]) -> str:
    """Return an optimum with its interval, as in the paper's tables; without it where it holds no other rate.

    >>> interval_text(0.25, (0.125, 0.5)), interval_text(0.25, (0.25, 0.25)), interval_text(0.595, (0.5, 0.841))
    ('1/4 (1/8–1/2)', '1/4', '0.595 (1/2–0.84)')
    """
    low, high = interval
    if low == high:
        return rate_text(rate)
    return f"{rate_text(rate)} ({rate_text(low, digits=2)}–{rate_text(high, digits=2)})"


def spread_text(mean: float, standard_deviation: float, *, percent: bool, num: int = 2) -> str:
    """Return mean ± standard deviation: percent with one decimal, else as many as the deviation supports.

    A single value has no standard deviation.

    >>> spread_text(73.61, 0.42, percent=True), spread_text(2.9134, 0.0123, percent=False)
    ('73.6 ± 0.4', '2.913 ± 0.012')
    >>> spread_text(73.61, 0.0, percent=True, num=1)
    '73.6 ± –'
    """
    if not math.isfinite(mean):
        return "–"
    decimals = 1 if percent else _decimals(mean, standard_deviation)
    return f"{mean:.{decimals}f} ± " + (f"{standard_deviation:.{decimals}f}" if num > 1 else "–")


def duration_text(seconds: float) -> str:
    """Return a duration in the two largest units.

    >>> duration_text(8.24), duration_text(112), duration_text(7380)
    ('8.2 s', '1 min 52 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def count_text(number: int, noun: str) -> str:
    """Return a count with its noun, singular or plural.

    >>> count_text(1, "run"), count_text(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _exponent(value: float) -> int | None:
    """Return k where the value is 2ᵏ to float precision; else None."""
    if not (value > 0 and math.isfinite(value)):
        return None
    nearest = round(math.log2(value))
    return nearest if math.isclose(value, 2.0**nearest, rel_tol=1e-9) else None


def _decimals(mean: float, standard_deviation: float) -> int:
    """Return the decimals that show two digits of the deviation; three digits of the mean where there is none."""
    scale = standard_deviation if standard_deviation > 0 and math.isfinite(standard_deviation) else abs(mean) / 10
    return min(6, max(0, 1 - math.floor(math.log10(scale)))) if scale > 0 else 1
