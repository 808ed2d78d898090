"""From measurements to an answer: the choice at every batch size, each optimiser's batch size, the setting in use."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from isotherm.core.rates import tidy
from isotherm.core.statistics import Interval
from isotherm.core.temperature import bare_learning_rate, effective_learning_rate
from isotherm.diagnose.boundary import SGD, Line, ceiling, crossing, regime
from isotherm.diagnose.diagnosis import Choice, Current, Isotherm
from isotherm.diagnose.peak_fit import Shape

# Doubling the batch is worth it if examples are processed faster by at least this factor.
WORTH = 1.25
# The fewest updates of a training worth recommending, in units of the memory of momentum, 1 / (1 - m) updates.
FEWEST_MEMORIES = 20.0


@dataclass(frozen=True, kw_only=True)
class Training:
    """The intended training.

    Args:
        num_train: training examples.
        intended_steps: updates at a batch size.
        enough_steps: updates with which short runs lost nothing against smaller batches; 0 if unknown.
    """

    num_train: int
    intended_steps: Callable[[int], int]
    enough_steps: float

    def fewest_steps(self, momentum: float) -> float:
        """Return the fewest updates worth recommending with a momentum."""
        return max(self.enough_steps, _fewest_steps(momentum))

    def most_batch_size(self, momentum: float) -> int:
        """Return the largest batch size that leaves enough updates, at most the training set; 0 if none does."""
        fewest = self.fewest_steps(momentum)
        return bisect_right(range(1, self.num_train + 1), -fewest, key=lambda size: -self.intended_steps(size))


def _fewest_steps(momentum: float) -> float:
    """Return the fewest updates with a momentum, whatever short runs say.

    >>> _fewest_steps(0.9)
    200.0
    """
    return round(FEWEST_MEMORIES / (1 - momentum), 6)  # 1 - 0.9 is a little less than 0.1


def choices(
    sizes: Sequence[int],
    *,
    line: Line | None,
    limits: Mapping[float, Interval | None],
    speeds: Mapping[int, float],
    training: Training,
) -> tuple[Choice, ...]:
    """Return the choice at every batch size; none if the best learning rate or plain SGD's limit is unknown."""
    of_sgd = limits.get(SGD)
    if line is None or of_sgd is None:
        return ()
    border = crossing(line, ceiling(of_sgd))
    tops = {m: ceiling(limit) for m, limit in limits.items() if limit is not None}
    found = []
    for size in sizes:
        best, speed, steps = line(size), speeds.get(size), training.intended_steps(size)
        found.append(
            Choice(
                batch_size=size,
                regime=regime(size, border),
                rates={m: rate_below(best, top, momentum=m) for m, top in tops.items()},
                num_steps=steps,
                has_enough_steps=steps >= training.enough_steps,
                speed=speed,
                epoch_seconds=None if speed is None else training.num_train / speed,
                extra_epochs={m: max(1.0, best.estimate / top.estimate) for m, top in tops.items()},
            )
        )
    return tuple(found)


def rate_below(best: Interval, top: Interval, *, momentum: float) -> Interval:
    """Return the learning rate to use where noise asks for one and curvature allows another.

    With momentum it is the smaller of both: the short grids train with momentum, so their best learning rate is lower
    already where curvature matters. They do not train plain SGD, whose ceiling is lower: 1/ε² = 1/best² + 1/top².

    Args:
        best: by the law of the short grids.
        top: half of the largest stable one of this momentum.
        momentum: of the runs.
    """
    both = _both if momentum == SGD else min
    return Interval(
        estimate=tidy(both(best.estimate, top.estimate)), low=both(best.low, top.low), high=both(best.high, top.high)
    )


def _both(first: float, second: float) -> float:
    """Return (1/a² + 1/b²)^(-1/2).

    >>> round(_both(3.0, 4.0), 3), _both(3.0, math.inf), _both(0.0, 4.0)
    (2.4, 3.0, 0.0)
    """
    smaller, larger = sorted((first, second))
    return smaller if smaller == 0.0 or math.isinf(larger) else smaller / math.hypot(1.0, smaller / larger)


def recommended_sizes(found: Sequence[Choice], borders: Mapping[float, Interval | None]) -> dict[float, int]:
    """Return the batch size to use by momentum: the largest that costs nothing per epoch and still gains speed."""
    sizes = {m: _recommended(found, border, m) for m, border in borders.items() if border is not None}
    return {m: size for m, size in sizes.items() if size is not None}


def _recommended(found: Sequence[Choice], border: Interval, momentum: float) -> int | None:
    """Return the largest batch size below a boundary, with enough updates, that still gains speed.

    Each doubling must cut the time of an epoch by a fifth. Batch sizes of unknown speed count only if all speeds are
    unknown.
    """
    fewest = _fewest_steps(momentum)
    enough = [c for c in found if c.has_enough_steps and c.num_steps >= fewest]
    inside = [c for c in enough if c.batch_size <= border.estimate] or list(found[:1])
    if not inside:
        return None
    timed = [(c.batch_size, c.speed) for c in inside if c.speed is not None]
    if not timed:
        return inside[-1].batch_size
    best, best_speed = timed[0]
    for size, speed in timed[1:]:
        if speed >= best_speed * WORTH ** math.log2(size / best):
            best, best_speed = size, speed
    return best


def current_setting(
    *,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    line: Line | None,
    limit: Interval | None,
    drop: Shape | None,
    training: Training,
    speed: float | None,
) -> Current:
    """Return what a user's setting would cost, and what to change."""
    effective = effective_learning_rate(learning_rate, momentum=momentum)
    known = None if line is None or limit is None else (line(batch_size), ceiling(limit))
    best = None if known is None else rate_below(*known, momentum=momentum).estimate
    return Current(
        batch_size=batch_size,
        learning_rate=learning_rate,
        momentum=momentum,
        effective_learning_rate=effective,
        temperature=effective / batch_size,
        regime=regime(batch_size, None if known is None or line is None else crossing(line, known[1])),
        words=_words(effective, batch_size, momentum, line, limit, training),
        num_steps=training.intended_steps(batch_size),
        factor=None if best is None else effective / best,
        lost=None if best is None or drop is None else drop.at(math.log2(effective / best)),
        is_stable=None if limit is None else effective < limit.estimate,
        extra_epochs=None if known is None else max(1.0, known[0].estimate / known[1].estimate),
        speed=speed,
        epoch_seconds=None if speed is None else training.num_train / speed,
    )


def _words(
    effective: float, size: int, momentum: float, line: Line | None, limit: Interval | None, training: Training
) -> str:
    if line is None or limit is None:
        return "The short runs do not determine the best learning rate."
    wanted = rate_below(line(size), ceiling(limit), momentum=momentum).estimate
    few = ""
    if training.intended_steps(size) < training.enough_steps:
        few = (
            f" With {training.intended_steps(size):,} updates the training is too short for this batch; short runs "
            f"needed at least {training.enough_steps:,.0f}."
        )
    advice = f"use about {tidy(bare_learning_rate(wanted, momentum=momentum)):.3g} (effective {tidy(wanted):.3g})"
    if effective > limit.high:
        return f"Above the largest stable learning rate: runs are likely to fail; {advice}.{few}"
    factor = effective / wanted
    if effective >= limit.low:
        return f"At the largest stable learning rate: some runs may fail; {advice}.{few}"
    if factor > 2:
        return f"{factor:.2g} times too high for this batch size; {advice}.{few}"
    if factor < 0.5:
        fitting = crossing(line, Interval(estimate=effective, low=effective, high=effective)).estimate
        other = f", or keep it with a batch of about {fitting:.0f}" if 1 <= fitting < math.inf else ""
        return f"{1 / factor:.2g} times too low for this batch size; {advice}{other}.{few}"
    return f"Within a factor of two of what the short runs suggest: fine as it is.{few}"


def expectations(
    isotherm: Isotherm,
    line: Line | None,
    limits: Mapping[float, Interval | None],
    *,
    training: Training,
    budget: str,
) -> tuple[str, ...]:
    """Return the expected effect of doubling the batch or the length, as far as the measurements tell."""
    if isotherm.temperature is None or line is None:
        return ()
    found = [_batch_expectation(isotherm)]
    for momentum, limit in limits.items():
        if limit is None:
            continue
        found.append(_border_expectation(momentum, line, ceiling(limit), training, budget))
    found.append(_length_expectation(isotherm, budget))
    return tuple(found)


def _border_expectation(momentum: float, line: Line, top: Interval, training: Training, budget: str) -> str:
    """Say up to which batch size a larger batch costs nothing: as far as learning rates rise and updates are enough."""
    border, most, fewest = crossing(line, top), training.most_batch_size(momentum), training.fewest_steps(momentum)
    name = "Plain SGD" if momentum == SGD else f"Momentum {momentum:g}"
    if most < 1:
        return f"{name}: {budget} leave too few updates at every batch size; at least {fewest:,.0f} are wanted."
    if most < border.estimate and most < training.num_train:
        return (
            f"{name}: up to B = {most} this costs nothing per epoch; beyond it {budget} leave fewer than the "
            f"{fewest:,.0f} updates that are wanted, and what that costs was not measured. A longer training allows "
            f"larger batches{_at_most(border)}."
        )
    return (
        f"{name}: up to B ≈ {border.estimate:.0f} {_ends(border)} this costs nothing per epoch; beyond it the learning "
        f"rate stays at about {top.estimate:.3g}, and twice the batch needs up to twice the epochs."
    )


def _ends(border: Interval) -> str:
    return f"[{border.low:.0f}, {_size_text(border.high)}]"


def _at_most(border: Interval) -> str:
    return f", up to B ≈ {border.estimate:.0f} {_ends(border)}" if math.isfinite(border.estimate) else ""


def _size_text(size: float) -> str:
    return f"{size:.0f}" if math.isfinite(size) else "∞"


def _batch_expectation(isotherm: Isotherm) -> str:
    temperature = isotherm.temperature
    assert temperature is not None
    if isotherm.used_slope == 1.0:
        return (
            f"Keep the temperature ε_eff/B at {temperature.estimate:.3g} [{temperature.low:.3g}, "
            f"{temperature.high:.3g}] when the batch changes: twice the batch, twice the learning rate."
        )
    return f"Twice the batch, {2**isotherm.used_slope:.2g} times the learning rate: it rises {rise_words(isotherm)}."


def rise_words(isotherm: Isotherm) -> str:
    """Return how the best learning rate rises with the batch size, and whether that can be told from B itself.

    >>> from isotherm.diagnose.diagnosis import Isotherm
    >>> rise_words(Isotherm(temperature=None, slope=None, batch_sizes=(), used_slope=0.5))
    'as B^0.50 here'
    """
    text, limits = f"as B^{isotherm.used_slope:.2f}", isotherm.used_interval
    if limits is None:
        return f"{text} here"
    text = f"{text} [{limits.low:.2f}, {limits.high:.2f}] here"
    return f"{text}, which is compatible with B" if limits.low <= 1.0 <= limits.high else f"{text}, not as B"


def _length_expectation(isotherm: Isotherm, budget: str) -> str:
    exponent = isotherm.exponent
    if exponent is None:
        return f"This holds for {budget}; how the best learning rate moves with the length is not known."
    return (
        f"This holds for {budget}. Twice as long a training wants {2**exponent.estimate:.2g} "
        f"[{2**exponent.low:.2g}, {2**exponent.high:.2g}] times the learning rate."
    )
