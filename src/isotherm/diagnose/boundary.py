"""The boundary B* three ways, and what it means that they agree or disagree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from isotherm.core.statistics import Interval
from isotherm.core.temperature import effective_learning_rate
from isotherm.diagnose.diagnosis import Boundary, Probe, Regime, Stability
from isotherm.diagnose.fits import ratio
from isotherm.theory.closed_forms import critical_learning_rate

SGD = 0.0
# Fraction of the largest stable learning rate to use: on a quadratic, descent is fastest at half of it.
USED_PART = 0.5
# How far the best fraction may be from that, either way; it depends on the task and the length of training.
PART_FACTOR = 2.0
# Estimates of the boundary agree if they are within this factor.
AGREEMENT = 2.0
# The best effective learning rate below the stability limit, at a batch size.
Line = Callable[[float], Interval]
# Batch sizes between which the boundary is looked for.
_LEAST, _MOST = 2.0**-10, 2.0**40


def ceiling(limit: Interval) -> Interval:
    """Return the largest effective learning rate to use, given the largest stable one."""
    return Interval(
        estimate=USED_PART * limit.estimate,
        low=USED_PART * limit.low / PART_FACTOR,
        high=USED_PART * limit.high * PART_FACTOR,
    )


def crossing(line: Line, top: Interval) -> Interval:
    """Return the batch size at which the best learning rate reaches a ceiling; infinite if it never does."""
    least, rise = line(1.0).estimate, math.log2(line(2.0).estimate / line(1.0).estimate)
    if rise <= 0.05:
        return Interval(estimate=math.inf, low=1.0, high=math.inf)
    size = min(_MOST, max(_LEAST, (top.estimate / least) ** (1 / rise)))
    apart = ratio(top, line(size))
    below, above = (apart.estimate / apart.low, apart.high / apart.estimate) if apart.low > 0 else (math.inf, math.inf)
    return Interval(estimate=size, low=size / below ** (1 / rise), high=size * above ** (1 / rise))


def regime(batch_size: int, boundary: Interval | None) -> Regime:
    """Return on which side of the boundary a batch size lies."""
    if boundary is None:
        return "unknown"
    if batch_size < boundary.low:
        return "noise dominated"
    return "curvature dominated" if batch_size > boundary.high else "near the boundary"


def boundaries(
    stability: Sequence[Stability], line: Line | None, probes: Sequence[Probe]
) -> tuple[tuple[Boundary, ...], str]:
    """Return every estimate of B*, and what their agreement means."""
    found: list[Boundary] = []
    last = probes[-1] if probes else None
    for stable in stability:
        size = None if stable.limit is None or line is None else crossing(line, ceiling(stable.limit))
        how = "where the best learning rate of the short grids reaches half of the largest stable one"
        found.append(Boundary(source="sweep", momentum=stable.momentum, batch_size=size, how=how))
    for stable in stability:
        size = None
        if last is not None and last.sharpness is not None and line is not None:
            size = crossing(line, ceiling(_critical(last.sharpness, momentum=stable.momentum)))
        words = "2/λ_max" if stable.momentum == SGD else f"2(1+m)/((1-m)λ_max), m = {stable.momentum:g},"
        how = f"where it reaches half of {words}{_when(last)}"
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
