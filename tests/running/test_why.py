"""Which part of a key differs from stored runs that nearly match: by hand-made parts, and with a real store."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from helpers_protocol import blobs_task, failed, make_spec, tiny_sweep
from isotherm.core.records import RunSpec
from isotherm.core.run_schedule import RunSchedule
from isotherm.running.runner import run
from isotherm.running.store import Store, StoredRun
from isotherm.running.why import ASPECTS, Missing, NearMatch, explain, near_matches, why_missing
from isotherm.sweep.study import Study

CONTENT = {
    "code": "1",
    "architecture": "2",
    "weights": "3",
    "loss": "4",
    "metric": "5",
    "settings": "6",
    "version": "7",
}
BUILT_IN = {"definition": "mlp, version 1", "settings": "{}", "version": ""}
DATA = {"train inputs": "a", "train targets": "b", "test inputs": "c", "test targets": "d"}
PARTS = {
    "data": DATA,
    "model": CONTENT,
    "other train": {**DATA, "train inputs": "z"},
    "held out": {**DATA, "train inputs": "z", "validation inputs": "v"},
    "other loss": {**CONTENT, "loss": "z"},
    "other code": {**CONTENT, "code": "z", "weights": "z"},
    "built in": BUILT_IN,
    "newer": {**BUILT_IN, "definition": "mlp, version 2"},
    "optional": {**BUILT_IN, "settings": '{"model.widths": [40, 10]}'},
}


def specs(num_seeds: int = 2, **changes: Any) -> list[RunSpec]:
    fields = {"data_id": "data", "model_id": "model", **changes}
    return [make_spec(**{"seed": seed, **fields}) for seed in range(num_seeds)]


def only(missing: Sequence[RunSpec], stored: Sequence[RunSpec]) -> NearMatch:
    (match,), num_unlike = near_matches(missing, stored, PARTS)
    assert num_unlike == 0
    return match


def test_every_field_of_a_run_is_an_aspect() -> None:
    assert {field.name for field in dataclasses.fields(RunSpec)} == {*ASPECTS, "task"}


@pytest.mark.parametrize(
    ("wanted", "stored", "phrase"),
    [
        ({}, {"data_id": "other train"}, "only in the data (train inputs); are the data made with a fixed seed?"),
        ({}, {"data_id": "held out"}, "the data (train inputs, validation inputs on one side only)"),
        ({}, {"data_id": "of old"}, "stored by an earlier version with different keys"),
        ({}, {"model_id": "other loss"}, "only in the model (loss)"),
        ({}, {"model_id": "other code"}, "only in the model (code, initial or loaded weights)"),
        ({}, {"model_id": "of old"}, "stored by an earlier version with different keys"),
        ({}, {"model_id": "built in"}, "one is a built-in task as it is defined, the other is not"),
        (
            {"model_id": "newer"},
            {"model_id": "built in"},
            "only in the model (definition; stored: mlp, version 1; wanted: mlp, version 2)",
        ),
        (
            {"model_id": "optional"},
            {"model_id": "built in"},
            'the model (settings and options; stored: {}; wanted: {"model.widths": [40, 10]})',
        ),
        ({}, {"precision": "mixed"}, "only in the precision (stored: mixed; wanted: float32)"),
        ({}, {"clip_norm": 5.0}, "only in the clipping norm (stored: 5; wanted: none)"),
        ({}, {"num_steps": 99}, "only in the number of steps (stored: 99; wanted: "),
        ({}, {"momentum": 0.25}, "only in the momentum (stored: 0.25; wanted: "),
        (
            {},
            {"schedule": RunSchedule(shape="cosine", warmup_steps=5, final_fraction=0.0)},
            "only in the schedule (stored: cosine, 5 updates of warm-up, to 0 of the peak; wanted: the paper's)",
        ),
        (
            {},
            {"precision": "mixed", "l2": 0.5},
            "in the precision (stored: mixed; wanted: float32) and in the L2 coefficient (stored: ",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_differing_part_is_named(wanted: dict[str, Any], stored: dict[str, Any], phrase: str) -> None:
    match = only(specs(**wanted), specs(**stored))
    assert (match.num_missing, match.num_stored) == (2, 2)
    assert phrase in explain(match)
    is_old = "of old" in stored.values()
    there = (
        "2 runs with these settings were stored by "
        if is_old
        else "the store has 2 runs that differ from them only in "
    )
    assert explain(match).startswith(f"by hand: 2 runs are missing; {there}")
    assert ("fixed seed?" in explain(match)) == (stored.get("data_id") in ("other train", "held out"))


def test_other_seeds() -> None:
    match = only(specs(2), [make_spec(data_id="data", model_id="model", seed=seed) for seed in (5, 7)])
    assert "only in the seed (stored: 5, 7; wanted: 0, 1)" in explain(match)


def test_the_data_are_blamed_before_the_axes_of_a_sweep() -> None:
    match = only(specs(1), [*specs(1, data_id="other train"), *specs(1, num_steps=99)])
    assert [difference.aspect for difference in match.differences] == ["data_id"]


def test_the_nearest_of_several_models_is_named() -> None:
    match = only(specs(1), [*specs(1, model_id="other code"), *specs(1, model_id="other loss")])
    assert (match.differences[0].parts, match.num_stored) == (("loss",), 2)


def test_runs_unlike_anything_are_counted() -> None:
    stored = specs(2, precision="mixed", l2=0.5, gamma=3.0)
    assert near_matches(specs(3), stored, PARTS) == ([], 3)
    assert near_matches(specs(3), [], PARTS) == ([], 3)
    assert near_matches([], stored, PARTS) == ([], 0)


def test_other_data_and_another_model_are_another_task_unless_it_has_the_same_name() -> None:
    both = {"data_id": "other train", "model_id": "other loss"}
    assert near_matches(specs(1), specs(1, task="another", **both), PARTS) == ([], 1)
    assert [d.aspect for d in only(specs(1), specs(1, **both)).differences] == ["data_id", "model_id"]


# -- with a store -----------------------------------------------------------------------------------------------


def asked(sweep: Any, store: Store) -> Missing:
    return why_missing(Study.of(sweep).prepare(), store)


def test_a_complete_study_lacks_nothing() -> None:
    with Store.in_memory() as store:
        run(tiny_sweep(), store=store)
        assert asked(tiny_sweep(), store) == Missing(num_missing=0, num_failed=0, num_unlike=0, near_matches=())


def test_data_without_a_seed_are_found_out() -> None:
    def unseeded() -> Any:
        return blobs_task(train=(torch.randn(32, 2), torch.arange(32) % 2))

    with Store.in_memory() as store:
        run(tiny_sweep(task=unseeded()), store=store)
        found = asked(tiny_sweep(task=unseeded()), store)
    assert (found.num_missing, found.num_unlike) == (6, 0)
    assert explain(found.near_matches[0]) == (
        "blobs: 6 runs are missing; the store has 6 runs that differ from them only in the data (train inputs); "
        "are the data made with a fixed seed?"
    )


def test_another_loss_another_version_another_precision() -> None:
    with Store.in_memory() as store:
        run(tiny_sweep(), store=store)
        changed = [
            tiny_sweep(task=blobs_task(metric="cross_entropy")),
            tiny_sweep(task=blobs_task(version="2")),
            tiny_sweep(precision="float32"),
        ]
        sentences = [explain(match) for sweep in changed for match in asked(sweep, store).near_matches]
    assert [sentence.split("only in ")[1] for sentence in sentences] == [
        "the model (metric)",
        "the model (version)",
        "the precision (stored: float64; wanted: float32)",
    ]


def test_runs_of_the_study_itself_are_no_near_matches() -> None:
    with Store.in_memory() as store:
        run(tiny_sweep(batch_sizes=[8]), store=store)
        found = asked(tiny_sweep(batch_sizes=[8, 16]), store)
    assert (found.num_missing, found.num_unlike, found.near_matches) == (6, 6, ())


def test_failed_runs_are_counted_apart() -> None:
    spec = next(iter(Study.of(tiny_sweep()).plan().sweeps[0].grids()))
    plan = tiny_sweep().plan()
    first = plan.run_spec(spec, effective_learning_rate=plan.base_learning_rates(spec)[0], seed=0)
    with Store.in_memory() as store:
        store.put([StoredRun(spec=first, result=failed(), provenance={})])
        found = asked(tiny_sweep(), store)
    assert (found.num_missing, found.num_failed, found.num_unlike) == (6, 1, 5)
