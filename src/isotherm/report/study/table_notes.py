"""What is said beneath a table of optima: its flags, what its grids leave open, and how its numbers were chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isotherm.analysis.series import TunedGrid
from isotherm.report.wording import (
    EDGE_FLAGS,
    TRAIN_OBJECTIVE,
    end_sign,
    is_percent,
    objective_words,
    rate_symbol,
    rate_text,
)
from isotherm.sweep.plan import SweepPlan
from isotherm.sweep.plane import plane_optimum
from isotherm.sweep.protocol import Edge

FLAG_WORDS = {
    Edge.LOWER: "the optimum or its interval touches the lowest learning rate tried",
    Edge.UPPER: "the optimum or its interval touches the highest learning rate tried",
    Edge.BOTH: "the interval spans every learning rate tried",
    Edge.INCOMPLETE: "runs are missing; the optimum may move",
    Edge.NO_OPTIMUM: "no learning rate is stable",
}
UNRESOLVED_FLAG = "~"


def table_notes(plan: SweepPlan, grids: Sequence[TunedGrid]) -> tuple[str, ...]:
    """Return the notes beneath a sweep's table."""
    edges = dict.fromkeys(tuned.edge for tuned in grids)
    flags = [f"{EDGE_FLAGS[edge]} {FLAG_WORDS[edge]}" for edge in edges if edge in FLAG_WORDS]
    found = [_unresolved(plan, grids), _confirmation(plan, grids), _training(plan, grids), _at_end(grids)]
    return (*flags, *(note for notes in found for note in notes), *_final_rates(plan, grids))


def is_unresolved(tuned: TunedGrid) -> bool:
    """Tell whether a finer grid could show a better optimum; one at an end of its grid has a flag of its own."""
    best = tuned.optimum
    return best is not None and not best.is_resolved and not best.lies_at_end_of(tuned.grid)


def _unresolved(plan: SweepPlan, grids: Sequence[TunedGrid]) -> list[str]:
    gains = [t.optimum.unresolved_gain for t in grids if t.optimum is not None and is_unresolved(t)]
    if not gains:
        return []
    tuned, percent = objective_words(plan.objective, plan.metric), plan.objective.endswith("_metric")
    points = percent and is_percent(plan.metric)
    most = f"{100 * max(gains):.1f} points" if points else f"{max(gains):.2g}"
    return [f"{UNRESOLVED_FLAG} {tuned} may be better by up to {most} between the learning rates tried"]


def _confirmation(plan: SweepPlan, grids: Sequence[TunedGrid]) -> list[str]:
    if not plan.num_confirm:
        return []
    notes = []
    if any(tuned.selection_bias is not None for tuned in grids):
        notes.append("bias: mean of the seeds that chose less mean of those that confirm, ± its standard error")
    waiting = [t for t in grids if t.optimum is not None and t.confirmed is None]
    if waiting:
        notes.append(f"not confirmed yet: {_places(plan, waiting)}")
    lost = [t for t in grids if t.confirmed is not None and not t.confirmed.values_all]
    if lost:
        notes.append(f"every confirming seed diverged, numbers are of the seeds that chose: {_places(plan, lost)}")
    some = sum(t.confirmed.num_diverged for t in grids if t.confirmed is not None and t.confirmed.values_all)
    if some:
        notes.append(f"{some} confirming {'seed' if some == 1 else 'seeds'} diverged; means are over the others")
    return notes


def _training(plan: SweepPlan, grids: Sequence[TunedGrid]) -> list[str]:
    """Name the learning rates with the lowest training loss where the L2 penalty moves them."""
    moved = [
        f"{rate_text(tuned.train_loss_optimum.effective_learning_rate)} at {_places(plan, [tuned])}"
        for tuned in grids
        if tuned.train_optimum is not None
        and tuned.train_loss_optimum is not None
        and tuned.train_optimum.index != tuned.train_loss_optimum.index
    ]
    return (
        [f"train {rate_symbol(plan)} is that of {TRAIN_OBJECTIVE}; of the loss alone: {', '.join(moved)}"]
        if moved
        else []
    )


def _at_end(grids: Sequence[TunedGrid]) -> list[str]:
    """Explain the signs before training optima at an end of their grid."""
    found = {end_sign(t.train_optimum, t.grid) for t in grids if t.train_optimum is not None}
    signs = [sign.strip() for sign in ("≤ ", "≥ ") if sign in found]
    if not signs:
        return []
    ends = {"≤": "lowest", "≥": "highest"}
    return [f"{sign}: {TRAIN_OBJECTIVE} is least at the {ends[sign]} learning rate tried" for sign in signs]


def _final_rates(plan: SweepPlan, grids: Sequence[TunedGrid]) -> list[str]:
    """Name the final learning rates of the optima where those were swept apart."""
    optima = [(tuned, plane_optimum(tuned.grid)) for tuned in grids if tuned.grid.rows]
    words = [
        f"{rate_text(best.final_learning_rate)} [{rate_text(best.final_interval[0])}, "
        f"{rate_text(best.final_interval[1])}]{'' if best.final_edge is Edge.INTERIOR else f' ({best.final_edge})'} at "
        f"{_places(plan, [tuned])}"
        for tuned, best in optima
        if best is not None
    ]
    rate = rate_symbol(plan)
    return [f"{rate} is that at the start, at the best final one; final {rate}: {', '.join(words)}"] if words else []


def _places(plan: SweepPlan, grids: Iterable[TunedGrid]) -> str:
    """Return the grids by what varies in the sweep."""
    if len(plan.budgets) == len(plan.methods) == 1:
        return "B = " + ", ".join(f"{tuned.axes.batch_size:,}" for tuned in grids)
    return "; ".join(str(tuned.axes) for tuned in grids)
