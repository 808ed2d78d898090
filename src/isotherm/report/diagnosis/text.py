"""A diagnosis in sentences and tables, the same in the terminal and on the page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isotherm.core.statistics import Interval
from isotherm.core.temperature import bare_learning_rate
from isotherm.diagnose.answer import rise_words
from isotherm.diagnose.diagnosis import Choice, Current, Diagnosis, Probe
from isotherm.report.wording import count_text, duration_text, is_percent, momentum_label

NOT_DETERMINED = "not determined"
NO_RECOMMENDATION = "The data do not support a recommendation"
REGIME = "regime of SGD"
RANGE_SIGN = "–"
_NOTHING = "–"
# Factors of the best learning rate between which the shape of the short grids' curves says what is lost.
_TRUSTED = (1 / 6, 6.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """A table as text: a cell's second line is the interval of its first, `words` are columns of words.

    `marked` are the indices of the recommended rows.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()


# -- numbers --------------------------------------------------------------------------------------------------------


def value_text(value: float) -> str:
    """Return a number with three significant digits.

    >>> [value_text(value) for value in (0.03125, 3.0, 12345.6, math.inf)]
    ['0.0312', '3', '12,300', '∞']
    """
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else _NOTHING
    if abs(value) < 999.5:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):,.0f}"


def limits_text(interval: Interval) -> str:
    """Return the limits of an interval; an infinite one is open.

    >>> limits_text(Interval(estimate=3, low=2, high=4)), limits_text(Interval(estimate=3, low=2, high=math.inf))
    ('[2, 4]', '[2, ∞)')
    """
    opening = "[" if math.isfinite(interval.low) else "("
    closing = "]" if math.isfinite(interval.high) else ")"
    return f"{opening}{value_text(interval.low)}, {value_text(interval.high)}{closing}"


def estimate_text(interval: Interval | None) -> str:
    """Return an estimate with its limits; for an infinite one, its lower limit.

    >>> estimate_text(Interval(estimate=3, low=2, high=4)), estimate_text(None)
    ('3 [2, 4]', 'not determined')
    >>> estimate_text(Interval(estimate=math.inf, low=96, high=math.inf))
    'above 96'
    """
    if interval is None:
        return NOT_DETERMINED
    if interval.estimate == math.inf:
        return f"above {value_text(interval.low)}"
    return f"{value_text(interval.estimate)} {limits_text(interval)}"


def cell_text(interval: Interval | None) -> str:
    """Return the same for a table, in two narrow lines.

    >>> print(cell_text(Interval(estimate=3, low=2, high=math.inf)))
    3
    2–∞
    """
    if interval is None or interval.estimate == math.inf:
        return estimate_text(interval)
    sign = RANGE_SIGN if interval.low >= 0 else " to "
    return f"{value_text(interval.estimate)}\n{value_text(interval.low)}{sign}{value_text(interval.high)}"


def bare(interval: Interval, momentum: float) -> Interval:
    """Return the bare learning rate of an effective one, as an optimiser takes it.

    >>> bare(Interval(estimate=4, low=2, high=8), 0.5)
    Interval(estimate=2.0, low=1.0, high=4.0)
    """
    estimate, low, high = (
        bare_learning_rate(rate, momentum=momentum) for rate in (interval.estimate, interval.low, interval.high)
    )
    return Interval(estimate=estimate, low=low, high=high)


# -- sentences ------------------------------------------------------------------------------------------------------


def headline(diagnosis: Diagnosis) -> str:
    """Return the answer in a few words."""
    sizes = dict(sorted(diagnosis.recommended.items(), reverse=True))
    if not sizes:
        return f"{NO_RECOMMENDATION} for {diagnosis.budget}"
    if len(set(sizes.values())) == 1:
        return f"For {diagnosis.budget}, train with batch size {next(iter(sizes.values())):,}"
    words = " or ".join(f"{size:,} ({momentum_label(m)})" for m, size in sizes.items())
    return f"For {diagnosis.budget}, train with batch size {words}"


def answer_sentences(diagnosis: Diagnosis) -> list[str]:
    """Return each optimiser's batch size, learning rate and cost, and what to keep; nothing without a choice."""
    if diagnosis.choice is None:
        return []
    return [
        *(_optimiser_sentence(diagnosis, momentum) for momentum in (0.0, diagnosis.momentum)),
        _keep_sentence(diagnosis),
        f"learning rates are the peak of the schedule: {diagnosis.schedule}",
    ]


def _keep_sentence(diagnosis: Diagnosis) -> str:
    found = diagnosis.isotherm
    if found.is_plateau:
        return "any learning rate inside the interval does as well: the metric hardly depends on it"
    if found.used_slope == 1.0:
        return f"temperature to keep: T = ε_eff / B = {estimate_text(found.temperature)}"
    return f"the learning rate rises {rise_words(found)}"


def _optimiser_sentence(diagnosis: Diagnosis, momentum: float) -> str:
    choice = diagnosis.choice_with(momentum)
    rate = None if choice is None else choice.rates.get(momentum)
    if choice is None or rate is None:
        return f"{momentum_label(momentum)}: learning rate {NOT_DETERMINED}"
    shown = estimate_text(bare(rate, momentum))
    text = f"{momentum_label(momentum)}: batch size {choice.batch_size:,}, learning rate {shown}"
    if momentum != 0:
        text = f"{text}, which is ε_eff = {estimate_text(rate)}"
    return f"{text}; {diagnosis.budget}, {choice.num_steps:,} updates"


def isotherm_sentence(diagnosis: Diagnosis) -> str:
    """Return the law of the optima, and how far it had to be extrapolated."""
    found = diagnosis.isotherm
    if found.temperature is None:
        return "No optimum lies inside its grid and below the stability limit, so no isotherm can be fitted."
    sizes = ", ".join(f"{size:,}" for size in found.batch_sizes)
    text = f"The optima at B = {sizes} give T = {estimate_text(found.temperature)} for {diagnosis.budget}"
    if found.is_plateau:
        return f"{text}; the metric is the same over the whole interval."
    parts = []
    if found.slope is None:
        parts.append("whether others lie on the same isotherm is unknown")
    else:
        parts.append(f"log ε_eff* rises with slope {estimate_text(found.slope)} in log B (1 on an isotherm)")
    if found.exponent is not None:
        parts.append(f"and with slope {estimate_text(found.exponent)} in the log of the training's length")
    longest = f"The longest short runs have {value_text(found.longest_part)} of the intended length."
    return f"{text}; {' '.join(parts)}. {longest}"


def current_sentence(diagnosis: Diagnosis) -> str | None:
    """Return the assessment of the user's setting; None if none was given."""
    current = diagnosis.current
    if current is None:
        return None
    setting = (
        f"B = {current.batch_size:,}, learning rate {value_text(current.learning_rate)}, "
        f"{momentum_label(current.momentum)} (ε_eff = {value_text(current.effective_learning_rate)}, "
        f"T = {value_text(current.temperature)})"
    )
    regime = "unknown regime" if current.regime == "unknown" else current.regime
    return f"{setting}: {regime}. {current.words}{_lost_text(diagnosis)}"


def _lost_text(diagnosis: Diagnosis) -> str:
    """Return what the setting in use is expected to cost at the end, if it is known and matters."""
    current = diagnosis.current
    if current is None or current.lost is None or not current.is_stable or current.factor is None:
        return ""
    name = diagnosis.metric.replace("_", " ")
    if not _TRUSTED[0] <= current.factor <= _TRUSTED[1]:
        return f" It is expected to cost more {name} than the short runs measured."
    return f" Expected cost in {name}: {_lost(diagnosis, current.lost)}."


def _lost(diagnosis: Diagnosis, lost: float) -> str:
    if is_percent(diagnosis.metric):
        return f"{100 * lost:.1f} points"
    return value_text(lost)


def cost_sentence(diagnosis: Diagnosis) -> str:
    """Return what the diagnosis cost."""
    cost = diagnosis.cost
    return (
        f"This took {duration_text(cost.seconds)}: {count_text(cost.num_runs, 'short run')}, "
        f"{cost.num_examples:,} training examples in all."
    )


# -- tables ---------------------------------------------------------------------------------------------------------


def choices_table(diagnosis: Diagnosis) -> TextTable:
    """Return what to use at every batch size, and what it costs; the setting in use is a row of its own."""
    label = momentum_label(diagnosis.momentum)
    rows = [(c.batch_size, 0, _choice_row(c, diagnosis.momentum)) for c in diagnosis.choices]
    chosen = {c.batch_size for m in diagnosis.recommended if (c := diagnosis.choice_with(m)) is not None}
    if diagnosis.current is not None and diagnosis.choices:
        rows.append((diagnosis.current.batch_size, 1, _current_row(diagnosis, diagnosis.current)))
    rows.sort(key=lambda row: row[:2])
    return TextTable(
        title=f"What to use at each batch size for {diagnosis.budget}, with 95 % intervals",
        columns=(
            *("B", REGIME, "SGD: ε = ε_eff", f"{label}: ε_eff", f"{label}: ε", "updates"),
            *("examples per s, s per epoch", f"epochs: SGD, {label}"),
        ),
        rows=tuple(row for _, _, row in rows),
        words=(REGIME,),
        marked=tuple(k for k, (size, own, _) in enumerate(rows) if own == 0 and size in chosen),
    )


def _choice_row(choice: Choice, momentum: float) -> tuple[str, ...]:
    plain, heavy = choice.rates.get(0.0), choice.rates.get(momentum)
    shown = (plain, heavy, None if heavy is None else bare(heavy, momentum))
    return (
        f"{choice.batch_size:,}",
        choice.regime,
        *(_NOTHING if rate is None else cell_text(rate) for rate in shown),
        f"{choice.num_steps:,}" if choice.has_enough_steps else f"{choice.num_steps:,}\ntoo few",
        _speed_text(choice),
        "\n".join(
            f"× {value_text(choice.extra_epochs[m])}" if m in choice.extra_epochs else _NOTHING for m in (0.0, momentum)
        ),
    )


def _current_row(diagnosis: Diagnosis, current: Current) -> tuple[str, ...]:
    """Return the setting in use as a row: its learning rate against the best one, and its cost."""
    rate = value_text(current.effective_learning_rate)
    if current.factor is not None:
        rate = f"{rate}\nbest × {value_text(current.factor)}"
    is_plain = current.momentum == 0
    known = current.lost is not None and current.is_stable
    if current.is_stable is False:
        cost = "fails"
    elif known and current.factor is not None and _TRUSTED[0] <= current.factor <= _TRUSTED[1]:
        assert current.lost is not None
        cost = f"costs {_lost(diagnosis, current.lost)}"
    else:
        cost = _NOTHING if current.lost is None else "costs more than measured"
    epochs = _NOTHING if current.extra_epochs is None else f"× {value_text(current.extra_epochs)}"
    return (
        f"{current.batch_size:,}\nyours",
        f"{current.regime}\n{cost}",
        rate if is_plain else _NOTHING,
        _NOTHING if is_plain else rate,
        _NOTHING if is_plain else value_text(current.learning_rate),
        f"{current.num_steps:,}",
        _speed_text(current),
        epochs,
    )


def _speed_text(choice: Choice | Current) -> str:
    if choice.speed is None or choice.epoch_seconds is None:
        return _NOTHING
    return f"{value_text(choice.speed)}\n{value_text(choice.epoch_seconds)} s"


def boundaries_table(diagnosis: Diagnosis) -> TextTable:
    """Return the estimates of B* side by side, and how each was made."""
    momenta = sorted({boundary.momentum for boundary in diagnosis.boundaries})
    sources = list(dict.fromkeys(boundary.source for boundary in diagnosis.boundaries))
    rows = []
    for source in sources:
        own = {boundary.momentum: boundary for boundary in diagnosis.boundaries if boundary.source == source}
        cells = [cell_text(own[m].batch_size) if m in own else _NOTHING for m in momenta]
        hows = dict.fromkeys(boundary.how for boundary in own.values())
        rows.append((source, *cells, "; ".join(hows)))
    return TextTable(
        title="The boundary B*, above which curvature limits the learning rate",
        columns=("from", *map(momentum_label, momenta), "how"),
        rows=tuple(rows),
        words=("from", "how"),
    )


def stability_table(diagnosis: Diagnosis) -> TextTable:
    """Return the largest stable effective learning rates."""
    return TextTable(
        title="Stability limits: where half of the short runs fail",
        columns=("", "limit of ε_eff", "B", "updates", "failed", "tried"),
        rows=tuple(
            (
                momentum_label(s.momentum),
                estimate_text(s.limit),
                f"{s.batch_size:,}",
                f"{s.num_steps:,}",
                f"{sum(s.num_failed)} of {sum(s.num_runs)}",
                f"{value_text(min(s.rates))} to {value_text(max(s.rates))}" if s.rates else _NOTHING,
            )
            for s in diagnosis.stability
        ),
        words=("", "tried"),
    )


def grids_table(diagnosis: Diagnosis) -> TextTable:
    """Return the optima of the short grids."""
    return TextTable(
        title="Optima of the short grids, by held-out metric",
        columns=("B", "", "updates", "seeds", "optimal ε_eff", "T"),
        rows=tuple(
            (
                f"{grid.batch_size:,}",
                momentum_label(grid.momentum),
                f"{grid.num_steps:,}",
                str(grid.num_seeds),
                estimate_text(grid.optimum),
                _NOTHING if grid.optimum is None else value_text(grid.optimum.estimate / grid.batch_size),
            )
            for grid in diagnosis.grids
        ),
        words=("",),
    )


def probes_table(diagnosis: Diagnosis) -> TextTable:
    """Return curvature and gradient noise at the start and after a short training."""
    return TextTable(
        title="Curvature and gradient noise",
        columns=("updates", "sharpness λ_max", "2 / λ_max", "noise scale B_simple", "examples", "noise mode"),
        rows=tuple(
            (
                f"{probe.step:,}",
                cell_text(probe.sharpness),
                _stable_text(probe),
                cell_text(probe.noise_scale),
                f"{probe.num_examples:,}",
                probe.mode,
            )
            for probe in diagnosis.probes
        ),
        words=("noise mode",),
    )


def _stable_text(probe: Probe) -> str:
    """Return 2 / λ_max, the limit of SGD on a quadratic, if any direction curves upwards."""
    sharpness = probe.sharpness
    if sharpness is None:
        return NOT_DETERMINED
    if sharpness.estimate <= 0:
        return _NOTHING
    high = 2 / sharpness.low if sharpness.low > 0 else math.inf
    limit = Interval(estimate=2 / sharpness.estimate, low=2 / sharpness.high, high=high)
    return cell_text(limit)
