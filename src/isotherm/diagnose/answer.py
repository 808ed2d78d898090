"""From measurements to an answer: the boundary three ways, the regime of a setting, the choice at every batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from isotherm.core.rates import tidy
from isotherm.core.statistics import Interval
from isotherm.core.temperature import bare_learning_rate, effective_learning_rate
from isotherm.diagnose.diagnosis import Boundary, Choice, Current, Isotherm, Probe, Regime, Stability
from isotherm.diagnose.fits import ratio
from isotherm.theory.closed_forms import critical_learning_rate

# Fraction of the largest stable learning rate to use: on a quadratic, descent is fastest at half of it.
USED_PART = 0.5
# Estimates of the boundary agree if they are within this factor.
AGREEMENT = 2.0
# Doubling the batch is worth it if examples are processed faster by at least this factor.
WORTH = 1.25
SGD = 0.0


def ceiling(limit: Interval) -> Interval:
    """Return the largest effective learning rate to use, given the largest stable one."""
    return Interval(estimate=USED_PART * limit.estimate, low=USED_PART * limit.low, high=USED_PART * limit.high)


def boundaries(
    stability: Sequence[Stability], isotherm: Isotherm, probes: Sequence[Probe]
) -> tuple[tuple[Boundary, ...], str]:
    """Return every estimate of B*, and what their agreement means."""
    found: list[Boundary] = []
    temperature = isotherm.temperature
    last = probes[-1] if probes else None
    for stable in stability:
        size = None
        if stable.limit is not None and temperature is not None:
            size = ratio(ceiling(stable.limit), temperature)
        how = "half of the largest stable learning rate, divided by the temperature of the short grids"
        found.append(Boundary(source="sweep", momentum=stable.momentum, batch_size=size, how=how))
    for stable in stability:
        size = None
        if last is not None and last.sharpness is not None and temperature is not None:
            size = ratio(ceiling(_critical(last.sharpness, momentum=stable.momentum)), temperature)
        words = "2/λ_max" if stable.momentum == SGD else f"2(1+m)/((1-m)λ_max), m = {stable.momentum:g},"
        how = f"half of {words}{_when(last)}, divided by the same temperature"
        found.append(Boundary(source="curvature", momentum=stable.momentum, batch_size=size, how=how))
    size = None if last is None else last.noise_scale
    how = f"tr Σ/‖G‖²{_when(last)}; says nothing about momentum"
    found.append(Boundary(source="noise scale", momentum=SGD, batch_size=size, how=how))
    return tuple(found), _agreement([b for b in found if b.momentum == SGD])


def _when(probe: Probe | None) -> str:
    if probe is None:
        return ""
    return " at the start" if probe.step == 0 else f" after {probe.step} updates"


def _critical(sharpness: Interval, *, momentum: float) -> Interval:
    """Return 2(1 + m)/((1 - m) λ_max) with its interval."""

    def rate(value: float) -> float:
        return effective_learning_rate(critical_learning_rate(value, momentum=momentum), momentum=momentum)

    return Interval(estimate=rate(sharpness.estimate), low=rate(sharpness.high), high=rate(sharpness.low))


def _agreement(found: Sequence[Boundary]) -> str:
    """Say how the estimates of plain SGD's boundary compare."""
    known = {b.source: b.batch_size for b in found if b.batch_size is not None and math.isfinite(b.batch_size.estimate)}
    if "sweep" not in known:
        return "The short runs do not determine the boundary, so there is nothing to compare the other estimates with."
    if len(known) == 1:
        return "Only the short runs give an estimate of the boundary; nothing else checks it."
    sentences = []
    for source, size in known.items():
        if source == "sweep":
            continue
        factor = size.estimate / known["sweep"].estimate
        if 1 / AGREEMENT <= factor <= AGREEMENT:
            sentences.append(f"{_NAMES[source]} puts it at a similar batch size (factor {factor:.2g}).")
        else:
            side = "larger" if factor > 1 else "smaller"
            sentences.append(
                f"{_NAMES[source]} puts it at a {side} batch (factor {factor:.2g}): {_REASONS[source, side]}"
            )
    return " ".join(sentences)


_NAMES = {"curvature": "Curvature", "noise scale": "The gradient noise scale"}
_REASONS = {
    ("curvature", "smaller"): (
        "the loss is more curved there than where large learning rates settle; training moves to flatter regions, so "
        "trust the short runs."
    ),
    ("curvature", "larger"): (
        "runs fail below 2/λ_max at that point, so something earlier or steeper limits them: warm-up may help; trust "
        "the short runs."
    ),
    ("noise scale", "smaller"): (
        "it is measured early, where gradients are large; it rises during training, so larger batches pay off later."
    ),
    ("noise scale", "larger"): (
        "noise would allow larger batches than stability does: momentum, warm-up or normalisation may help."
    ),
}


def regime(batch_size: int, boundary: Interval | None) -> Regime:
    """Return on which side of the boundary a batch size lies."""
    if boundary is None:
        return "unknown"
    if batch_size < boundary.low:
        return "noise dominated"
    return "curvature dominated" if batch_size > boundary.high else "near the boundary"


def choices(
    sizes: Sequence[int],
    *,
    isotherm: Isotherm,
    limits: Mapping[float, Interval | None],
    speeds: Mapping[int, float],
    num_train: int,
) -> tuple[Choice, ...]:
    """Return the choice at every batch size; none if the temperature or plain SGD's limit is unknown."""
    temperature, of_sgd = isotherm.temperature, limits.get(SGD)
    if temperature is None or of_sgd is None:
        return ()
    top = ceiling(of_sgd)
    border = ratio(top, temperature)
    found = []
    for size in sizes:
        line = Interval(estimate=temperature.estimate * size, low=temperature.low * size, high=temperature.high * size)
        rates = {m: _smaller(line, ceiling(limit)) for m, limit in limits.items() if limit is not None}
        speed = speeds.get(size)
        found.append(
            Choice(
                batch_size=size,
                regime=regime(size, border),
                rates=rates,
                speed=speed,
                epoch_seconds=None if speed is None else num_train / speed,
                extra_epochs=max(1.0, line.estimate / top.estimate),
            )
        )
    return tuple(found)


def _smaller(first: Interval, second: Interval) -> Interval:
    return Interval(
        estimate=tidy(min(first.estimate, second.estimate)),
        low=min(first.low, second.low),
        high=min(first.high, second.high),
    )


def recommended_size(found: Sequence[Choice], *, border: Interval | None) -> int | None:
    """Return the largest batch size below a boundary that still gains speed; None without choices.

    Each doubling must cut the time of an epoch by a fifth. Batch sizes of unknown speed count only if all speeds are
    unknown.
    """
    inside = [c for c in found if border is None or c.batch_size <= border.estimate] or list(found[:1])
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
    *, batch_size: int, learning_rate: float, momentum: float, isotherm: Isotherm, limit: Interval | None
) -> Current:
    """Return the regime of a user's setting, and what to change."""
    effective = effective_learning_rate(learning_rate, momentum=momentum)
    border = None
    if isotherm.temperature is not None and limit is not None:
        border = ratio(ceiling(limit), isotherm.temperature)
    where = regime(batch_size, border)
    return Current(
        batch_size=batch_size,
        learning_rate=learning_rate,
        momentum=momentum,
        effective_learning_rate=effective,
        temperature=effective / batch_size,
        regime=where,
        words=_words(effective, batch_size, momentum, isotherm, limit),
    )


def _words(effective: float, size: int, momentum: float, isotherm: Isotherm, limit: Interval | None) -> str:
    if isotherm.temperature is None or limit is None:
        return "The short runs do not determine the best learning rate."
    wanted = min(isotherm.temperature.estimate * size, ceiling(limit).estimate)
    advice = f"use about {tidy(bare_learning_rate(wanted, momentum=momentum)):.3g} (effective {tidy(wanted):.3g})"
    if effective > limit.high:
        return f"Above the largest stable learning rate: runs are likely to fail; {advice}."
    factor = effective / wanted
    if effective >= limit.low:
        return f"At the largest stable learning rate: some runs may fail; {advice}."
    if factor > 2:
        return f"{factor:.2g} times too high for this batch size; {advice}."
    if factor < 0.5:
        # On the isotherm, which lies above the stable range where curvature dominates.
        fitting = effective / isotherm.temperature.estimate
        other = f", or keep it with a batch of about {fitting:.0f}" if fitting >= 1 else ""
        return f"{1 / factor:.2g} times too low for this batch size; {advice}{other}."
    return "Within a factor of two of what the short runs suggest: fine as it is."


def expectations(isotherm: Isotherm, limits: Mapping[float, Interval | None]) -> tuple[str, ...]:
    """Return the expected effect of doubling the batch or the epochs, as far as the measurements tell."""
    if isotherm.temperature is None:
        return ()
    found = [
        f"Keep the temperature ε_eff/B at {isotherm.temperature.estimate:.3g} "
        f"[{isotherm.temperature.low:.3g}, {isotherm.temperature.high:.3g}] when the batch changes: "
        "twice the batch, twice the learning rate."
    ]
    for momentum, limit in limits.items():
        if limit is None:
            continue
        border = ratio(ceiling(limit), isotherm.temperature)
        name = "Plain SGD" if momentum == SGD else f"Momentum {momentum:g}"
        high = f"{border.high:.0f}" if math.isfinite(border.high) else "∞"
        found.append(
            f"{name}: up to B ≈ {border.estimate:.0f} [{border.low:.0f}, {high}] this costs nothing per "
            f"epoch; beyond it the learning rate stays at about {ceiling(limit).estimate:.3g}, and twice the batch "
            "needs up to twice the epochs."
        )
    found.append(
        "Twice the epochs: keep the learning rate. The one that is best on test data hardly moves with the number of "
        "epochs; the one with the lowest training loss falls."
    )
    return tuple(found)
