"""Why a store lacks the runs of a study: which part of their keys differs from stored runs that nearly match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from isotherm.core.records import RunSpec
from isotherm.running.store import Store
from isotherm.sweep.rounds import all_runs, missing_runs
from isotherm.sweep.study import PreparedStudy
from isotherm.tasks.builtin import TASKS

Parts = Mapping[str, Mapping[str, str]]

# What a key is made of, in the order in which a difference is blamed: the axes of a sweep last.
ASPECTS = (
    "data_id",
    "model_id",
    "precision",
    "clip_norm",
    "l2",
    "l2_scope",
    "gamma",
    "schedule",
    "num_evaluations",
    "num_steps",
    "optimizer",
    "momentum",
    "seed",
    "batch_size",
    "effective_learning_rate",
)
_IDS = ("data_id", "model_id")
_ONE_SIDED = " on one side only"
_WORDS = {
    "weights": "initial or loaded weights",
    "settings": "settings and options",
    "clip_norm": "clipping norm",
    "l2": "L2 coefficient",
    "l2_scope": "scope of the L2 penalty",
    "gamma": "decay factor γ",
    "num_evaluations": "number of evaluations",
    "num_steps": "number of steps",
    "optimizer": "optimiser",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One aspect in which stored runs differ from wanted ones.

    `parts` are the parts of the data or the model that differ; None where the store does not know them. `stored` and
    `wanted` are the values of a setting, or of a part that is kept in plain text.
    """

    aspect: str
    parts: tuple[str, ...] | None = None
    stored: tuple[Any, ...] = ()
    wanted: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NearMatch:
    """Missing runs, and how many stored ones equal them but for some differences."""

    task: str
    num_missing: int
    num_stored: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """The runs that a study lacks: failed ones, those with near matches, and those unlike anything stored."""

    num_missing: int
    num_failed: int
    num_unlike: int
    near_matches: tuple[NearMatch, ...]


def why_missing(prepared: PreparedStudy, store: Store) -> Missing:
    """Return what stands between a study and the runs of a store."""
    results = store.results()
    missing = missing_runs(prepared.plan.sweeps, results)
    absent = [spec for spec in missing if spec.key not in results]
    wanted = all_runs(prepared.plan.sweeps, results)
    others = [run.spec for run in store.runs() if run.spec.key not in wanted]
    parts: dict[str, Mapping[str, str]] = dict(store.parts())
    for identity in prepared.identities.values():
        parts |= {identity.data_id: identity.data_parts, identity.model_id: identity.model_parts}
    matches, num_unlike = near_matches(absent, others, parts)
    return Missing(
        num_missing=len(missing),
        num_failed=len(missing) - len(absent),
        num_unlike=num_unlike,
        near_matches=tuple(matches),
    )


def near_matches(missing: Sequence[RunSpec], stored: Sequence[RunSpec], parts: Parts) -> tuple[list[NearMatch], int]:
    """Return the stored runs that differ from missing ones in one aspect, or in two, and how many have none like them.

    Args:
        missing: runs that are wanted.
        stored: runs that are there and not wanted.
        parts: of every data_id and model_id, as far as they are known.
    """
    found: dict[_Group, list[_Pair]] = {}
    left = list(missing)
    for num_differences in (1, 2):
        for aspects in combinations(ASPECTS, num_differences):
            pairs, left = _paired(left, stored, aspects)
            for spec, alike in pairs:
                differing = tuple(_parts_that_differ(aspect, spec, alike, parts) for aspect in aspects)
                group = _Group(task=spec.task, aspects=aspects, differing=differing)
                found.setdefault(group, []).append((spec, alike))
    return [_near_match(group, pairs, parts) for group, pairs in found.items()], len(left)


def explain(match: NearMatch) -> str:
    """Return a near match as a sentence.

    >>> seed = Difference(aspect="seed", stored=(0, 1), wanted=(2,))
    >>> explain(NearMatch(task="mine", num_missing=1, num_stored=2, differences=(seed,)))
    'mine: 1 run is missing; the store has 2 runs that differ from it only in the seed (stored: 0, 1; wanted: 2)'
    """
    what, it = ("run is", "it") if match.num_missing == 1 else ("runs are", "them")
    there = "run that differs" if match.num_stored == 1 else "runs that differ"
    if any(difference.aspect in _IDS and difference.parts is None for difference in match.differences):
        were = "run with these settings was" if match.num_stored == 1 else "runs with these settings were"
        return (
            f"{match.task}: {match.num_missing:,} {what} missing; {match.num_stored:,} {were} stored by an earlier "
            "version with different keys; they are kept and reported but not reused"
        )
    differences = " and in ".join(_phrase(difference) for difference in match.differences)
    is_own_data = match.differences[0].aspect == "data_id" and match.task not in TASKS
    hint = "; are the data made with a fixed seed?" if is_own_data else ""
    return (
        f"{match.task}: {match.num_missing:,} {what} missing; the store has {match.num_stored:,} {there} from {it} "
        f"only in {differences}{hint}"
    )


_Pair = tuple[RunSpec, list[RunSpec]]  # a missing run, and stored ones that nearly match it


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """What missing runs that are reported together share."""

    task: str
    aspects: tuple[str, ...]
    differing: tuple[tuple[str, ...] | None, ...]


def _paired(
    missing: Sequence[RunSpec], stored: Sequence[RunSpec], aspects: tuple[str, ...]
) -> tuple[list[_Pair], list[RunSpec]]:
    """Return the missing runs with the stored ones that equal them but for some aspects, and those that have none."""
    index: dict[tuple[Any, ...], list[RunSpec]] = {}
    for spec in stored:
        index.setdefault(_without(spec, aspects), []).append(spec)
    alike = [index.get(_without(spec, aspects)) for spec in missing]
    pairs = [(spec, found) for spec, found in zip(missing, alike, strict=True) if found is not None]
    return pairs, [spec for spec, found in zip(missing, alike, strict=True) if found is None]


def _without(spec: RunSpec, aspects: Iterable[str]) -> tuple[Any, ...]:
    """Return all of a run's key but some aspects; runs of other data and another model must share their task's name."""
    values = tuple(getattr(spec, name) for name in ASPECTS if name not in aspects)
    return (*values, spec.task) if {"data_id", "model_id"} <= set(aspects) else values


def _parts_that_differ(aspect: str, spec: RunSpec, alike: Sequence[RunSpec], parts: Parts) -> tuple[str, ...] | None:
    """Return which parts of an id differ from those of the stored run nearest to it; None where they are not known."""
    if aspect not in _IDS:
        return ()
    own = parts[getattr(spec, aspect)]
    known = {getattr(other, aspect) for other in alike} & parts.keys()
    return min((_differing(own, parts[i]) for i in sorted(known)), key=len, default=None)


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of parts that differ; of those that only one side has, this is said.

    >>> _differing({"code": "1", "loss": "2"}, {"code": "3", "definition": "4", "loss": "2"})
    ('code', 'definition on one side only')
    """
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return tuple(name if name in one and name in other else f"{name}{_ONE_SIDED}" for name in names)


def _near_match(group: _Group, pairs: Sequence[_Pair], parts: Parts) -> NearMatch:
    stored = {spec.key: spec for _, alike in pairs for spec in alike}
    wanted = [spec for spec, _ in pairs]
    differences = []
    for aspect, names in zip(group.aspects, group.differing, strict=True):
        there, here = (_values(aspect, names, specs, parts) for specs in (stored.values(), wanted))
        is_id = aspect in _IDS
        differences.append(Difference(aspect=aspect, parts=names if is_id else None, stored=there, wanted=here))
    return NearMatch(task=group.task, num_missing=len(pairs), num_stored=len(stored), differences=tuple(differences))


def _values(aspect: str, names: tuple[str, ...] | None, specs: Iterable[RunSpec], parts: Parts) -> tuple[Any, ...]:
    """Return the values of a setting, or of the parts of a built-in task, which are plain text; hashes say nothing."""
    values = {getattr(spec, aspect) for spec in specs}
    if aspect == "data_id":
        return ()
    if aspect == "model_id":
        named = [parts[i] for i in sorted(values) if "definition" in parts.get(i, {})]
        texts = [part[name] for part in named for name in names or () if name in part]
        return tuple(dict.fromkeys(texts))
    if aspect == "schedule":  # what a plan makes of its schedule, in words
        return tuple(sorted("the paper's" if value is None else str(value) for value in values))
    return tuple(sorted(values, key=lambda value: (value is None, value)))


def _phrase(difference: Difference) -> str:
    if difference.aspect == "data_id":
        return f"the data ({_data_phrase(difference.parts)})"
    if difference.aspect == "model_id":
        return f"the model ({_model_phrase(difference)})"
    name = _WORDS.get(difference.aspect, difference.aspect.replace("_", " "))
    return f"the {name} ({_value_phrase(difference)})"


def _data_phrase(parts: tuple[str, ...] | None) -> str:
    return ", ".join(parts or ())


def _model_phrase(difference: Difference) -> str:
    assert difference.parts is not None, "runs whose parts are unknown are explained elsewhere"
    if f"definition{_ONE_SIDED}" in difference.parts:
        return "one is a built-in task as it is defined, the other is not"
    names = ", ".join(_WORDS.get(name, name) for name in difference.parts)
    return f"{names}; {_value_phrase(difference)}" if difference.stored and difference.wanted else names


def _value_phrase(difference: Difference) -> str:
    stored, wanted = (", ".join(_text(value) for value in values) for values in (difference.stored, difference.wanted))
    return f"stored: {stored}; wanted: {wanted}"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
